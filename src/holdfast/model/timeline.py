"""All that happened to a workspace, as one list: what `holdfast.engine.history.timeline` answers."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    "step",
    "barrier",
    "held",
    "command",
]
"""Events of the history; what the undo log knows: steps, edits by others, operations that wait for a person; the
commands of sessions.
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
    label: str = ""
    text: str = ""
    """The message, the prompt, what was asked for, or what is about to happen."""
    command: str = ""
    checkpoint: CheckpointId | None = None
    """The state that the tree was in afterwards; it may be forgotten since."""
    steps: tuple[int, ...] = ()
    """The steps that were reversed, that a run had, or that this is or belongs to."""
    run: str = ""
    session: str = ""
    state: str = ""
    """Of a step, as `StepInfo.state` has it."""
    paths: tuple[bytes, ...] = ()
    """What others edited, as far as it is known, or what is about to change; of all else it takes a look at the states.
    """


class TimelineFilter(NamedTuple):
    """Which items are wanted: those for which all of this holds. Empty and None hold for every one."""

    path: bytes = b""
    """They changed something at or below it, or a directory that it lies in. What is forgotten cannot be told."""
    author: str = ""
    kinds: tuple[TimelineKind, ...] = ()
    since: int | None = None
    until: int | None = None
    """From and to this time, in microseconds since 1970-01-01 UTC, as the clock said."""
    text: str = ""
    """It is in the label, the text or the command; capitals and small letters are the same."""


class TimelinePage(NamedTuple):
    """Some items, the newest first."""

    items: Sequence[TimelineItem]
    cursor: str | None
    """Where the next page begins; None: there is no more. What happens meanwhile is in no later page."""
