"""All that happened to a workspace, as one list: what `holdfast.engine.history.timeline` answers."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId

TimelineKind = Literal[
    "checkpoint",
    "prompt",
    "restore",
    "undo",
    "redo",
    "fork",
    "run",
    "promote",
    "merge",
    "step",
    "barrier",
    "held",
    "command",
]
"""Kinds of rows: events of the history, with merges apart from restores; from the undo log steps, edits by others and
held operations; commands of sessions.
"""

PROMPT = "prompt"
"""Prefix of the message of a checkpoint that was taken at a prompt; the prompt follows. For prompts of earlier versions
this message is the only record.
"""


def prompt_of(message: str) -> str | None:
    """The prompt that the message of a checkpoint tells of; None if it tells of none."""
    is_one = message == PROMPT or message.startswith(f"{PROMPT}: ")
    return message.removeprefix(PROMPT).removeprefix(": ") if is_one else None


class TimelineItem(NamedTuple):
    """A row of the timeline. Fields that do not apply to its kind are empty."""

    kind: TimelineKind
    number: int
    """By which it is known among its like: of the event, the step, the barrier, the ticket, the command in its
    session.
    """
    at: int
    """Microseconds since 1970-01-01 UTC, as the clock said; the order of the items does not depend on it."""
    author: str = ""
    """Who made the checkpoint, owns the session, or (of a barrier) edited, as far as it is known."""
    labels: tuple[str, ...] = ()
    """The present labels of its checkpoint, or of the one that a restore, an undo or a redo went to, in the order in
    which they were given.
    """
    text: str = ""
    """The message, the prompt, the words from which a command was generated, or the description of a held operation."""
    command: str = ""
    """The command line; of an undo or a redo that of the steps, if all are of one."""
    checkpoint: CheckpointId | None = None
    """The state that the tree was in afterwards; it may be forgotten since."""
    steps: tuple[int, ...] = ()
    """The steps that were reversed, that a run had, or that this is or belongs to."""
    run: str = ""
    """The run that this is or belongs to, or whose steps were reversed, if all are of one."""
    session: str = ""
    state: str = ""
    """For a step `StepInfo.state`; for a run without a noted end ``open``, or ``killed`` if it no longer runs."""
    paths: tuple[bytes, ...] = ()
    """Paths of a foreign edit, as far as known, or of a held operation; empty for others: compare their states."""
    exit_code: int | None = None
    """Of a step or a command, where it is known."""
    made: Checkpoint | None = None
    """The checkpoint that was made with it, if one was and it is kept."""
    before: CheckpointId | None = None
    """The state that the tree was in before it, where it is known. If that is forgotten, the parent of ``made``, whose
    changes now include those of the forgotten one.
    """
    of: str = ""
    """Of an undo or a redo by checkpoints: the `name` of the row whose change it took back, or brought again."""

    @property
    def name(self) -> str:
        """By which `show` finds it: the id of a checkpoint that is nothing else; else ``prompt:41``, ``run:ID``,
        ``command:SESSION:3``, and so on.
        """
        if self.kind == "checkpoint" and self.made is not None:
            return self.made.id
        if self.kind == "run":
            return f"run:{self.run}"
        return f"{self.kind}:{f'{self.session}:' if self.session else ''}{self.number}"

    @property
    def label(self) -> str:
        """The first of the labels; empty without any."""
        return self.labels[0] if self.labels else ""


class TimelineFilter(NamedTuple):
    """Which items are wanted: those for which all of this holds. Empty and None hold for every one."""

    paths: tuple[bytes, ...] = ()
    """Items that changed a path at or below one of these, or a directory above. A forgotten checkpoint's changes
    count as those of its children.
    """
    author: str = ""
    kinds: tuple[TimelineKind, ...] = ()
    since: int | None = None
    until: int | None = None
    """From and to this time, in microseconds since 1970-01-01 UTC, as the clock said."""
    text: str = ""
    """It occurs in a label, the text or the command, in capital or small letters."""


class TimelinePage(NamedTuple):
    """Items, newest first."""

    items: Sequence[TimelineItem]
    cursor: str | None
    """The cursor of the next page; None at the end. Later pages hold no newer items."""
