"""The port of re-apply: one small change, a rung that may apply it anew, and its outcome."""

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
    """One small change of a fork to one file, to be applied to the file's present content."""

    path: bytes
    """The file's path in production."""
    why: ConflictKind
    now: bytes | None
    """The content to apply it to: production's, or the result of the fork's earlier changes. None: no file."""
    before: bytes | None
    """The content before the change."""
    after: bytes | None
    """The content after the change."""
    numbers: Sequence[int]
    """The fork's changesets that it is from; several for changes that are joined."""
    about: dict[str, Any]
    """Its context, as JSON: the fork's states with their messages, and other files that they changed."""

    @property
    def version(self) -> str:
        """Identifies the question that an answer is valid for: 32 hex digits that depend on path and contents."""
        sides = (self.now, self.before, self.after)
        told = (b"-" if content is None else hash_bytes(content).hex().encode() for content in sides)
        return hash_bytes(b"\0".join((self.path, *told))).hex()


class NewContent(NamedTuple):
    """The file's new content; None: it must be deleted."""

    content: bytes | None
    said: str = ""
    """By whom, or how, for the record."""


class Declined(NamedTuple):
    """Not by this rung."""

    reason: str


class Pending(NamedTuple):
    """No answer yet: an agent or a person has been asked."""

    id: str
    """The id of the question."""
    reason: str


RungOutcome = NewContent | Declined | Pending


class Rung(Protocol):
    """One way to apply a change anew. It writes nothing outside of its answer."""

    @property
    def name(self) -> RungName:
        """Its name in the settings."""
        ...

    @property
    def takes_all(self) -> bool:
        """True if it may be given all that a fork has done to a file as one change, which is then tried first."""
        ...

    def apply(self, task: ReapplyTask) -> RungOutcome:
        """Apply ``task``. Declines unusable answers with a reason instead of raising."""
        ...


# Checks of an answer: the agent that gave it may not have followed its instructions.

_MARKER = re.compile(rb"^(<{7}|>{7}|\|{7})(?= |\r?$)", re.MULTILINE)
"""Conflict markers. A line of equal signs is left out, since many texts underline headings with one."""


def refusal(task: ReapplyTask, content: bytes | None, max_bytes: int) -> str | None:
    """Why ``content`` cannot be the answer to ``task``; None if it can.

    A file that is text in all its versions must stay text, and UTF-8 if it was. An answer must not add conflict
    markers, nor be longer than ``max_bytes``. It may delete a file only if a side has deleted it.
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
