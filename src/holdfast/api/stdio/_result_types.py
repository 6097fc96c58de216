"""Answers that are no objects of docs/reference/json.md."""

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
"""The most items in a list."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all answers."""


Result: TypeAlias = "Object | Mapping[str, object]"
"""One of those, or an object of docs/reference/json.md."""


class Server(Object, frozen=True, kw_only=True):
    """Who answers."""

    name: str
    version: str


class Limits(Object, frozen=True, kw_only=True):
    """The server's limits."""

    line_bytes: int
    """The longest line of a client."""
    requests: int
    """Unanswered requests, commands not counted (``too_many_requests``)."""
    queued_commands: int
    """Waiting in each directory (``queue_full``)."""
    read_bytes: int
    """Of one ``fs.read`` or ``checkpoint.read``."""
    listed: int
    """Items of a list."""
    diff_bytes: int
    """The content of a ``checkpoint.diff`` (``too_large``)."""


class Welcome(Object, frozen=True, kw_only=True):
    """The agreed protocol."""

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
    """The limits at which a person is asked."""

    delete_threshold: Annotated[int, "deletes"]
    overwrite_threshold_bytes: Annotated[int, "overwrite_bytes"]
    rename_over: bool
    unprotected: Annotated[bool, "limit"]
    timeout_seconds: Annotated[float, "timeout"]


class Guarding(Thresholds):
    """The limits in force: the strictest of all in the workspace."""

    own: Thresholds | None
    """The limits of this session, if they differ."""


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
    """The memory of this host that it uses."""


class DirectoryStatus(Object, frozen=True, kw_only=True):
    """A working directory; fields that do not apply are null or empty."""

    index: int
    label: str
    path: str
    access: str
    state: str
    """``stopped``, ``idle``, ``running`` or ``failed``."""
    run: str
    """Of the session's steps."""
    step_id: int | None
    """Of the running command."""
    queued: int
    isolation: str | None
    """The level."""
    machine: MachineInfo | None
    """`image`, `accelerator`, `filesystem`, `persistent`, `memory_bytes`."""
    undo: UndoLimits | None
    """As of ``undo.configure``."""
    safeguard: Guarding | None
    """As of ``safeguard.configure``."""
    held: list[Waiting]
    """As of ``event.safeguard_triggered``."""
    unfinished_restore: str | None
    """The target of a ``checkpoint.restore`` that was cut short."""


class SessionStatus(Object, frozen=True, kw_only=True):
    """The state of the session."""

    state: str
    """``stopped``, ``idle``, ``running`` or ``error``."""
    backend: str
    directories: list[DirectoryStatus]


class History(Object, frozen=True, kw_only=True):
    """Steps, newest first."""

    steps: list[Step]
    next: int | None
    """``before`` of the next page."""
    barriers: list[Barrier]
    """Among these steps, oldest first."""


class BegunStep(Object, frozen=True, kw_only=True):
    """A step that groups all changes from now on."""

    step_id: int


class Discarded(Object, frozen=True, kw_only=True):
    """The result of discarding steps."""

    discarded: int | None
    """How many steps, or null."""


class Executed(Object, frozen=True, kw_only=True):
    """The result of a command."""

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
    """The entries of a directory."""

    path: str
    entries: list[Entry]
    next: str | None
    """``after`` of the next page."""


class Checkpoints(Object, frozen=True, kw_only=True):
    """Checkpoints, newest first."""

    head: str | None
    checkpoints: list[Checkpoint]
    next: str | None
    """``before`` of the next page."""


class Answered(Object, frozen=True, kw_only=True):
    """A person's answer."""

    safeguard_id: str
    action: str
