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
"""Events of the history, of which a restore that brought a merge is one; what the undo log knows: steps, edits by
others, operations that wait for a person; the commands of sessions.
"""

PROMPT = "prompt"
"""What the message of a checkpoint begins with that was taken when a prompt came in; the prompt follows after a colon.
Of earlier versions it is all that the history knows of a prompt.
"""


def prompt_of(message: str) -> str | None:
    """The prompt that the message of a checkpoint tells of; None if it tells of none."""
    is_one = message == PROMPT or message.startswith(f"{PROMPT}: ")
    return message.removeprefix(PROMPT).removeprefix(": ") if is_one else None


class TimelineItem(NamedTuple):
    """One thing that happened. What does not apply to its kind is empty."""

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
    """Those that the checkpoint has now which was made with it, or which a restore, an undo or a redo went to; in the
    order in which they were given.
    """
    text: str = ""
    """The message, the prompt, what was asked for, or what is about to happen."""
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
    """Of a step, as `StepInfo.state` has it; of a run ``open`` if its end was not noted, ``killed`` if it goes on no
    more then.
    """
    paths: tuple[bytes, ...] = ()
    """What others edited, as far as it is known, or what is about to change; of all else it takes a look at the states.
    """
    exit_code: int | None = None
    """Of a step or a command, where it is known."""
    made: Checkpoint | None = None
    """The checkpoint that was made with it, if one was and it is kept."""
    before: CheckpointId | None = None
    """The state that the tree was in before it, where it is known."""
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
        """The first of the labels; empty if there is none."""
        return self.labels[0] if self.labels else ""


class TimelineFilter(NamedTuple):
    """Which items are wanted: those for which all of this holds. Empty and None hold for every one."""

    paths: tuple[bytes, ...] = ()
    """They changed something at or below one of these, or a directory that one lies in. What is forgotten cannot be
    told.
    """
    author: str = ""
    kinds: tuple[TimelineKind, ...] = ()
    since: int | None = None
    until: int | None = None
    """From and to this time, in microseconds since 1970-01-01 UTC, as the clock said."""
    text: str = ""
    """It is in a label, the text or the command; capitals and small letters are the same."""


class TimelinePage(NamedTuple):
    """Some items, the newest first."""

    items: Sequence[TimelineItem]
    cursor: str | None
    """Where the next page begins; None: there is no more. What happens meanwhile is in no later page."""
