"""What the answers hold that is no object of docs/reference/json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from holdfast.api._truncated_results import Step
from holdfast.model.answers.files import Entry
from holdfast.model.answers.steps import Barrier
from holdfast.model.answers.workspace import Checkpoint
from holdfast.model.fast_typing import TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.answers.words import Danger, NanoTime, Path

MAX_LISTED: Final = 1000
"""So many items are in a list."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """What all of them are."""


Result: TypeAlias = "Object | Mapping[str, object]"
"""One of those, or an object of docs/reference/json.md."""


class Server(Object, frozen=True, kw_only=True):
    """Who answers."""

    name: str
    version: str


class Limits(Object, frozen=True, kw_only=True):
    """What the server bears."""

    line_bytes: int
    """The longest line of a client."""
    requests: int
    """So many may be unanswered, commands not counted."""
    queued_commands: int
    """So many may wait in each directory."""
    read_bytes: int
    """Of one ``fs.read`` or ``checkpoint.read``."""
    listed: int
    """So many items are in a list; ``totals`` says how many there are."""
    diff_bytes: int
    """The content of a ``checkpoint.diff``."""


class Welcome(Object, frozen=True, kw_only=True):
    """What was agreed on."""

    version: int
    server: Server
    operations: list[str]
    events: list[str]
    limits: Limits


class Done(Object, frozen=True, kw_only=True):
    """Nothing to say."""


class UndoLimits(TypedDict):
    """How much an undo log holds."""

    max_log_size_bytes: Annotated[int, "max_bytes"]
    max_step_count: Annotated[int, "max_steps"]
    max_single_step_size_bytes: Annotated[int, "max_step_bytes"]


class Thresholds(TypedDict):
    """Before what a person is asked."""

    delete_threshold: Annotated[int, "deletes"]
    overwrite_threshold_bytes: Annotated[int, "overwrite_bytes"]
    rename_over: bool
    unprotected: Annotated[bool, "limit"]
    timeout_seconds: Annotated[float, "timeout"]


class Guarding(Thresholds):
    """What holds: of all that is asked for in the workspace the strictest."""

    own: Thresholds | None
    """What this session asks for, if that is something else."""


class Waiting(TypedDict):
    """An operation that waits for a person."""

    safeguard_id: str
    step_id: Annotated[int, "step"]
    danger: Danger
    path: Path
    message: str
    asked_at: NanoTime
    denied_at: NanoTime


class MachineInfo(Object, frozen=True, kw_only=True):
    """The virtual machine that the commands of a directory run in."""

    image: str
    accelerator: str
    filesystem: str
    """How it sees the directory: ``virtiofs`` or ``9p``."""
    persistent: bool
    """Its disk stays after the session."""
    memory_bytes: int
    """What it has of this host's memory."""


class DirectoryStatus(Object, frozen=True, kw_only=True):
    """A working directory; what does not apply to a read-only one is null or empty."""

    index: int
    label: str
    path: str
    access: str
    state: str
    """``stopped``, ``idle``, ``running`` or ``failed``."""
    run: str
    step_id: int | None
    queued: int
    isolation: str | None
    """The level."""
    machine: MachineInfo | None
    """Where a virtual machine runs for it."""
    undo: UndoLimits | None
    safeguard: Guarding | None
    held: list[Waiting]
    unfinished_restore: str | None
    """The checkpoint that a restore that was cut short was to lead to."""


class SessionStatus(Object, frozen=True, kw_only=True):
    """What the session does."""

    state: str
    """``stopped``, ``idle``, ``running``, or ``error`` if one of the directories has failed."""
    backend: str
    """What intercepts the changes."""
    directories: list[DirectoryStatus]


class History(Object, frozen=True, kw_only=True):
    """Steps, newest first."""

    steps: list[Step]
    next: int | None
    """What ``before`` is for the next page."""
    barriers: list[Barrier]
    """The edits by others among these steps, oldest first."""


class BegunStep(Object, frozen=True, kw_only=True):
    """A step that takes in what is changed from now on."""

    step_id: int


class Discarded(Object, frozen=True, kw_only=True):
    """What was forgotten."""

    discarded: int | None
    """How many steps; null if that cannot be told."""


class Executed(Object, frozen=True, kw_only=True):
    """What became of a command."""

    step_id: int
    exit_code: int
    cancelled: bool
    denied: bool
    changed: int
    """How many paths."""


class Cancelled(Object, frozen=True, kw_only=True):
    """Whether it was still there."""

    cancelled: bool


class Listing(Object, frozen=True, kw_only=True):
    """What a directory holds."""

    path: str
    entries: list[Entry]
    next: str | None
    """What ``after`` is for the next page."""


class Checkpoints(Object, frozen=True, kw_only=True):
    """Checkpoints, newest first."""

    head: str | None
    checkpoints: list[Checkpoint]
    next: str | None
    """What ``before`` is for the next page."""


class Answered(Object, frozen=True, kw_only=True):
    """What a person has answered."""

    safeguard_id: str
    action: str
