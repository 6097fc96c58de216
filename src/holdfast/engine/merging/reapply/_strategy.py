"""The port of re-apply: one small change, a rung that may apply it anew, and what it answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, Protocol

from holdfast.engine.diffs.git_patch import is_binary
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.merging.three_way import ConflictKind

RungName = Literal["command", "queue", "structure", "text", "person"]


class ReapplyTask(NamedTuple):
    """One small change of a fork to one file, to be applied to what that file is by now."""

    path: bytes
    """Where the file is to be, in production."""
    why: ConflictKind
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


class NewContent(NamedTuple):
    """The file's new content; None: it is to be deleted."""

    content: bytes | None
    said: str = ""
    """By whom, or how, for the record."""


class Declined(NamedTuple):
    """Not by this rung."""

    reason: str


class Pending(NamedTuple):
    """Not yet: an agent or a person has been asked."""

    id: str
    """What the question is called."""
    reason: str


RungOutcome = NewContent | Declined | Pending


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

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """Apply ``task``. Raises nothing for an answer that is of no use: that is declined, with the reason."""
        ...


# Whether an answer is taken: the agent that gave it is not trusted to have kept to what was asked.

_MARKER = re.compile(rb"^(<{7}|>{7}|\|{7})(?= |\r?$)", re.MULTILINE)
"""What merges leave where they could not decide. (A line of equal signs alone is a heading in many texts.)"""


def refusal(task: ReapplyTask, content: bytes | None, max_bytes: int) -> str | None:
    """Why ``content`` cannot be the answer to ``task``; None if it can.

    A file that is text in all its versions stays text, of the same encoding if that was UTF-8; no answer brings
    conflict markers that were not there; none is longer than ``max_bytes``; and a file is deleted only where a side has
    deleted it.
    """
    given = [one for one in (task.now, task.before, task.after) if one is not None]
    if content is None:
        deleted = task.now is None or task.after is None
        return None if deleted else "it deletes a file that neither side has deleted"
    if len(content) > max_bytes:
        return f"it has {len(content)} bytes, more than merge.max_bytes, {max_bytes}"
    if is_binary(content) and not any(map(is_binary, given)):
        return "it is no text, and the file was one"
    if not _is_utf8(content) and all(map(_is_utf8, given)):
        return "it is not UTF-8, and the file was"
    if _MARKER.search(content) and not any(map(_MARKER.search, given)):
        return "it has conflict markers"
    return None


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
