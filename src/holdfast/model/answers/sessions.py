"""Answers about sessions."""

from __future__ import annotations

from holdfast.model.answers.commands import RunningMachine
from holdfast.model.answers.workspace import NotCaptured, Process, Restored
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated

    from holdfast.model.answers.words import Path, PlainText, SystemPath, Time


class Command(TypedDict):
    """A command."""

    id: str
    seq: int
    input: PlainText
    """The request in words."""
    command: PlainText
    generated: bool
    """A model made it from ``input``."""
    level: str
    """See docs/reference/classify.md#levels."""
    directory: Annotated[SystemPath, "cwd"]
    """Where it began."""
    started_at: Time
    duration_ms: int
    exit_code: Annotated[int | None, "result.exit_code"]
    """Null if unknown."""
    stdout: Annotated[str, "result.stdout", ""]
    r"""All output of ``session shell``. A byte that is not UTF-8 is ``\xHH``, a backslash itself."""
    stderr: Annotated[str, "result.stderr", ""]
    truncated: Annotated[bool, "result.truncated", False]
    """Output is missing; a mark stands in its place."""
    timed_out: Annotated[bool, "result.timed_out", False]
    before: str | None
    after: str | None


class Executed(Command):
    """A command that was executed."""

    session: str
    directory_after: SystemPath
    not_kept: list[str]
    """Exported variables too long for any program."""


class History(TypedDict):
    """The history."""

    session: str
    commands: list[Command]
    """Newest first."""
    dropped: int | None
    """Older commands not kept; null with ``--limit``."""


class Reference(TypedDict):
    """A reference."""

    name: str
    """``branches/SESSION/NAME``."""
    type: str
    session: str
    checkpoint: str
    """A hash."""
    updated_at: Time
    metadata: dict[str, str]
    """With a ``message``, if any."""


class Branch(Reference):
    """A branch."""

    removed: bool


class Branches(TypedDict):
    """The branches of a session."""

    session: str
    branches: list[Reference]


class SessionCheckpoint(TypedDict):
    """A saved state, without its history."""

    hash: str
    session: str
    parent: str | None
    """A hash."""
    kind: str
    """``auto``, ``manual``, ``fork`` or ``branch``."""
    message: str
    created_at: Time
    tree: Annotated[str | None, "state.tree"]
    """The checkpoint with its files."""
    directory: Annotated[SystemPath, "state.cwd"]
    seq: Annotated[int, "state.seq"]


class SessionConfiguration(TypedDict):
    """The configuration of a session."""

    shell: str
    timeout_seconds: float
    max_output_bytes: int
    supervised: bool
    isolation: str
    """``none`` or ``vm``."""
    commands: Annotated[int, "triggers.commands"]
    idle_seconds: Annotated[float, "triggers.idle_seconds"]
    min_seconds: Annotated[float, "triggers.min_seconds"]
    max_journal: Annotated[int, "triggers.max_journal"]


class Started(TypedDict):
    """A session that was started."""

    id: str
    owner: str
    root: Path
    directory: Annotated[SystemPath, "state.cwd"]
    """Relative to the root, or absolute."""
    config: SessionConfiguration
    checkpoint: Annotated[str, "head.hash"]
    """The first saved state's hash."""
    tree: Annotated[str | None, "state.tree"]
    """The checkpoint with its files."""


class StoppedSession(TypedDict):
    """A stopped machine."""

    id: str
    stopped: bool
    """A machine ran."""


class BackgroundProcess(Process):
    """A process that a command left running."""

    since: Time
    recoverable: bool
    """Always false."""


class SessionInfo(TypedDict):
    """A session."""

    id: str
    parent: str | None
    """Of a fork."""
    owner: str
    shared: list[str]
    purpose: str
    """``session``, ``fork`` or ``experiment``."""
    status: str
    """``live``; else it is being made or deleted."""
    root: Path | None
    """Null while being made."""
    workspace: str | None
    provider: str
    """Of its directory; empty in place."""
    mode: str
    created_at: Time
    updated_at: Time
    checkpoint: Annotated[str | None, "newest"]
    """The newest saved state's hash."""
    tree: str | None
    """The checkpoint with its files."""
    directory: Annotated[SystemPath | None, "state.cwd"]
    env: Annotated[dict[PlainText, PlainText], "state.env", {}]
    """Exported variables that it sets."""
    unset: Annotated[list[PlainText], "state.unset", []]
    """Variables that it removed."""
    seq: Annotated[int, "state.seq", 0]
    """Of its last command."""
    config: Annotated[SessionConfiguration | None, "state.config"]
    commands: Annotated[int, "state.metrics.commands", 0]
    total_ms: Annotated[int, "state.metrics.total_ms", 0]
    recoveries: Annotated[int, "state.metrics.recoveries", 0]
    running: Command | None
    busy: bool
    """A process has it open."""
    checkpoints: int
    """Saved states."""
    stored_bytes: int
    journal: int
    """Entries since the newest saved state."""
    journal_bytes: int
    forks: list[str]
    processes: list[BackgroundProcess]
    machine: RunningMachine | None


class Sessions(TypedDict):
    """Sessions, oldest first."""

    sessions: list[SessionInfo]


class SessionFork(TypedDict):
    """A new session."""

    id: str
    root: Path
    fork_point: str
    """A hash."""
    reference: Annotated[Reference, "ref"]
    provider: str
    mode: str
    passed_over: list[str]
    """Better providers that could not capture, with reasons."""


class CheckedOut(TypedDict):
    """A session at another of its states."""

    checkpoint: Annotated[str, "checkpoint.hash"]
    """The requested hash."""
    directory: Annotated[SystemPath, "state.cwd"]
    saved: Reference
    """The state before."""
    restored: Restored
    not_captured: list[NotCaptured]
    """Of a fork: files in no checkpoint and missing in its parent."""


class DeletedSession(TypedDict):
    """A deleted session."""

    id: str
    deleted: bool
    """False with ``--dry-run``."""
    with_directory: bool
    """A fork's directory goes too."""
    not_found: Path | None
    """A fork's directory that was moved, and stays."""
    now_at: Path | None
    """Where the moved directory is."""
    not_captured: list[NotCaptured]
    """Of a fork: files in no checkpoint and missing in its parent."""
    processes: list[BackgroundProcess]


class Shared(TypedDict):
    """The users of a session."""

    id: str
    owner: str
    shared: list[str]


class Classified(TypedDict):
    """The level of a command."""

    command: PlainText
    level: str
    """See docs/reference/classify.md#levels."""
