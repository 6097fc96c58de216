"""The port of re-apply: one small change, a rung that may apply it anew, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from holdfast.model.ids import hash_bytes
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.merging.threeway import Why

RungName = Literal["command", "queue", "structure", "text", "person"]


class Task(NamedTuple):
    """One small change of a fork to one file, to be applied to what that file is by now."""

    path: bytes
    """Where the file is to be, in production."""
    why: Why
    now: bytes | None
    """The content to apply it to: production's, or what came of the fork's changes before this one. None: no file."""
    before: bytes | None
    """What the change found."""
    after: bytes | None
    """What it left."""
    numbers: Sequence[int]
    """The changesets of the fork that it is from; several for a change that is told as one."""
    about: dict[str, Any]
    """What surrounds it, as JSON: the fork's states and what was said of them, other files that they changed."""

    @property
    def version(self) -> str:
        """What an answer is for, and for nothing else: 32 hex digits that depend on path and content."""
        sides = (self.now, self.before, self.after)
        told = (b"-" if content is None else hash_bytes(content).hex().encode() for content in sides)
        return hash_bytes(b"\0".join((self.path, *told))).hex()


class Answer(NamedTuple):
    """The file's new content; None: it is to be deleted."""

    content: bytes | None
    said: str = ""
    """By whom, or how, for the record."""


class Declined(NamedTuple):
    """Not by this rung."""

    reason: str


class Pending(NamedTuple):
    """Not yet: somebody has been asked."""

    id: str
    """What the question is called."""
    reason: str


Outcome = Answer | Declined | Pending


class Rung(Protocol):
    """One way to apply a change anew. It never writes anywhere but what it answers."""

    @property
    def name(self) -> RungName:
        """What the settings call it."""
        ...

    @property
    def takes_all(self) -> bool:
        """True if it may be given all that a fork has done to a file as one change, which is then tried first."""
        ...

    def apply(self, task: Task) -> Outcome:
        """Apply ``task``. Raises nothing for an answer that is of no use: that is declined, with the reason."""
        ...
