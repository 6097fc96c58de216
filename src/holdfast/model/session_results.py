"""The results of use-cases of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.command_results import RestoreResult
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.model.machine import RunningMachine
    from holdfast.model.session_types import (
        CommandEntry,
        SessionCheckpoint,
        SessionHash,
        SessionId,
        SessionMode,
        SessionRef,
        State,
    )


Purpose = Literal["session", "fork", "experiment"]
Status = Literal["making", "live", "going"]


class BackgroundProcess(NamedTuple):
    """A process that a command of a session has left running."""

    pid: int
    command: tuple[bytes, ...]
    since: int
    """When it began, in microseconds since 1970-01-01 UTC."""
    recoverable: bool = False
    """Whether it comes back after its end, as by a restart of the machine: no, as nothing keeps a process's state."""


class SessionInfo(NamedTuple):
    """A session."""

    id: SessionId
    parent: SessionId | None
    owner: str
    shared: tuple[str, ...]
    purpose: Purpose
    status: Status
    root: bytes | None
    """Where it works, when last seen; None while that is being made."""
    workspace: WorkspaceId | None
    provider: str
    """The provider that made its directory; empty: it works in place."""
    mode: SessionMode
    created_at: int
    updated_at: int
    newest: SessionHash | None
    """The session checkpoint that HEAD names."""
    tree: CheckpointId | None
    """The checkpoint of the workspace that holds the last recorded tree."""
    state: State | None
    running: CommandEntry | None
    """The command that runs in it, or ran when it was killed."""
    busy: bool
    """Whether a process has it open."""
    checkpoints: int
    """How many states of it are saved, and their bytes as they are stored."""
    stored_bytes: int
    journal: int
    """How many entries its journal has, and its bytes."""
    journal_bytes: int
    forks: tuple[SessionId, ...]
    processes: Sequence[BackgroundProcess] = ()
    """Processes that its commands left running, without those of ``running`` and without those in its ``machine``."""
    machine: RunningMachine | None = None
    """The virtual machine that its commands run in, while one does."""


class ForkResult(NamedTuple):
    """A fork of a session."""

    id: SessionId
    """Of the new session."""
    root: bytes
    fork_point: SessionHash
    ref: SessionRef
    provider: str
    mode: SessionMode
    passed_over: tuple[str, ...] = ()
    """Better providers that could capture nothing at this moment, each with why."""


class CheckedOut(NamedTuple):
    """The result of `checkout`."""

    state: State
    checkpoint: SessionCheckpoint
    """The requested state."""
    saved: SessionRef
    """The branch that the state before is saved as."""
    restored: RestoreResult
    """The changes of the tree."""
    not_captured: Sequence[NotCaptured] = ()
    """Files of the requested fork that are in its directory and in no checkpoint: they were not brought here."""


class Deleted(NamedTuple):
    """The result of `delete`. With ``dry_run`` its preview."""

    id: SessionId
    directory: bytes | None
    """The fork's directory, with its content; None: it works in place, or its directory was not found."""
    not_found: bytes | None = None
    """Where the directory of a fork was not, as it was moved or removed."""
    now_at: bytes | None = None
    """Where that is now, and stays, if it is known."""
    not_captured: Sequence[NotCaptured] = ()
    """Files of the deleted directory that are in no checkpoint; empty if it was not scanned."""


class Swept(NamedTuple):
    """The result of a sweep."""

    warmed: int = 0
    """Session checkpoints that went from the catalog to the object store."""
    cooled: int = 0
    """From there to the cold one."""
    removed: tuple[SessionId, ...] = ()
    """Sessions that were half made, half deleted, or had expired."""
