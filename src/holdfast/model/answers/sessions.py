"""Answers about sessions."""

from __future__ import annotations

from holdfast.model.answers.commands import RunningMachine
from holdfast.model.answers.workspace import NotCaptured, Process, Restored
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated

    from holdfast.model.answers.words import Path, PlainText, SystemPath, Time


class Command(TypedDict):
    """One command of a session's history."""

    id: str
    seq: int
    input: PlainText
    command: PlainText
    generated: bool
    level: str
    directory: Annotated[SystemPath, "cwd"]
    started_at: Time
    duration_ms: int
    exit_code: Annotated[int | None, "result.exit_code"]
    stdout: Annotated[str, "result.stdout", ""]
    stderr: Annotated[str, "result.stderr", ""]
    truncated: Annotated[bool, "result.truncated", False]
    timed_out: Annotated[bool, "result.timed_out", False]
    before: str | None
    after: str | None


class Executed(Command):
    """What was run: the command, the session, where that is now, and what it does not keep."""

    session: str
    directory_after: SystemPath
    not_kept: list[str]


class History(TypedDict):
    """Commands, newest first, and how many older ones are not kept (null: that was not looked at)."""

    session: str
    commands: list[Command]
    dropped: int | None


class Reference(TypedDict):
    """A branch, or what else names a state."""

    name: str
    type: str
    session: str
    checkpoint: str
    updated_at: Time
    metadata: dict[str, str]


class Branch(Reference):
    """A branch that was made, or (``removed``) is no more."""

    removed: bool


class Branches(TypedDict):
    """The branches of a session."""

    session: str
    branches: list[Reference]


class SessionCheckpoint(TypedDict):
    """A state of a session that is kept, without its history."""

    hash: str
    session: str
    parent: str | None
    kind: str
    message: str
    created_at: Time
    tree: Annotated[str | None, "state.tree"]
    directory: Annotated[SystemPath, "state.cwd"]
    seq: Annotated[int, "state.seq"]


class SessionConfiguration(TypedDict):
    """What holds for a session's commands."""

    shell: str
    timeout_seconds: float
    max_output_bytes: int
    supervised: bool
    isolation: str
    commands: Annotated[int, "triggers.commands"]
    idle_seconds: Annotated[float, "triggers.idle_seconds"]
    min_seconds: Annotated[float, "triggers.min_seconds"]
    max_journal: Annotated[int, "triggers.max_journal"]


class Started(TypedDict):
    """A session that was begun."""

    id: str
    owner: str
    root: Path
    directory: Annotated[SystemPath, "state.cwd"]
    config: SessionConfiguration
    checkpoint: Annotated[str, "head.hash"]
    tree: Annotated[str | None, "state.tree"]


class StoppedSession(TypedDict):
    """A session whose virtual machine was to be shut down."""

    id: str
    stopped: bool


class BackgroundProcess(Process):
    """A process that a command has left running."""

    since: Time
    recoverable: bool


class SessionInfo(TypedDict):
    """A session, looked at from outside."""

    id: str
    parent: str | None
    owner: str
    shared: list[str]
    purpose: str
    status: str
    root: Path | None
    workspace: str | None
    provider: str
    mode: str
    created_at: Time
    updated_at: Time
    checkpoint: Annotated[str | None, "newest"]
    tree: str | None
    directory: Annotated[SystemPath | None, "state.cwd"]
    env: Annotated[dict[PlainText, PlainText], "state.env", {}]
    unset: Annotated[list[PlainText], "state.unset", []]
    seq: Annotated[int, "state.seq", 0]
    config: Annotated[SessionConfiguration | None, "state.config"]
    commands: Annotated[int, "state.metrics.commands", 0]
    total_ms: Annotated[int, "state.metrics.total_ms", 0]
    recoveries: Annotated[int, "state.metrics.recoveries", 0]
    running: Command | None
    busy: bool
    checkpoints: int
    stored_bytes: int
    journal: int
    journal_bytes: int
    forks: list[str]
    processes: list[BackgroundProcess]
    machine: RunningMachine | None


class Sessions(TypedDict):
    """The sessions, oldest first."""

    sessions: list[SessionInfo]


class SessionFork(TypedDict):
    """A session that was forked from another."""

    id: str
    root: Path
    fork_point: str
    reference: Annotated[Reference, "ref"]
    provider: str
    mode: str
    passed_over: list[str]


class CheckedOut(TypedDict):
    """A session that was brought to another of its states."""

    checkpoint: Annotated[str, "checkpoint.hash"]
    directory: Annotated[SystemPath, "state.cwd"]
    saved: Reference
    restored: Restored
    not_captured: list[NotCaptured]


class DeletedSession(TypedDict):
    """What went, or would go, with a session."""

    id: str
    deleted: bool
    with_directory: bool
    not_found: Path | None
    now_at: Path | None
    not_captured: list[NotCaptured]
    processes: list[BackgroundProcess]


class Shared(TypedDict):
    """By whom a session may be used."""

    id: str
    owner: str
    shared: list[str]


class Classified(TypedDict):
    """What a command may do."""

    command: PlainText
    level: str
