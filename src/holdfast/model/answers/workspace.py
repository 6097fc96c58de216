"""Answers about a workspace: its checkpoints, its tree, and operations on it."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Annotated, Any, NotRequired

    from holdfast.model.answers.words import (
        Milliseconds,
        OctalMode,
        Path,
        PlainText,
        Time,
    )
    from holdfast.model.entries import Change


class Failure(TypedDict):
    """The reason of a failure."""

    code: str
    """Stable."""
    message: str
    """For people; it may change."""
    hint: str | None
    """For people: the next thing to do."""
    processes: NotRequired[Annotated[list[Any], failed_processes]]
    """Processes that block the operation, where they are known (``step_open``, ``still_written``)."""


def failed_processes(value: Any) -> Any:
    """The data of an error about the processes that block an operation."""
    data: dict[str, Any] = value.data or {}
    return data.get("processes")


class Failed(TypedDict):
    """A failure."""

    error: Failure


class Counts(TypedDict):
    """How many files."""

    added: int
    modified: int
    deleted: int


class NotCaptured(TypedDict):
    """A path that was not captured or not changed."""

    path: Path
    reason: str


class RecordedCheckpoint(TypedDict):
    """A recorded checkpoint."""

    id: str
    workspace: str
    parent: str | None
    label: str
    """First of ``labels``."""
    labels: list[str]
    """Oldest first."""
    kind: str
    """``manual``, ``auto`` (by ``watch``, and before an agent's prompt), ``rescue`` (before a restore or undo, and
    after ``restore --patch``), ``run``, ``fork`` (a fork's first), ``import`` or ``merge``.
    """
    created_at: Time
    changes: Counts
    message: Annotated[str, "provenance.message"]
    author: Annotated[str, "provenance.author"]
    command: Annotated[str, "provenance.command"]
    """Text for people, not written as paths are."""
    total_files: int
    total_bytes: int


class Checkpoint(RecordedCheckpoint):
    """A listed checkpoint."""

    not_captured: int


class MadeCheckpoint(TypedDict):
    """A checkpoint that was made or found."""

    id: Annotated[str, "checkpoint.id"]
    parent: Annotated[str | None, "checkpoint.parent"]
    label: Annotated[str, "checkpoint.label"]
    labels: Annotated[list[str], "checkpoint.labels"]
    kind: Annotated[str, "checkpoint.kind"]
    """As in ``log``."""
    created: bool
    """False if nothing had changed."""
    labelled: bool
    """It has the requested label."""
    created_at: Annotated[Time, "checkpoint.created_at"]
    changes: Annotated[Counts, "checkpoint.changes"]
    total_files: Annotated[int, "checkpoint.total_files"]
    not_captured: list[NotCaptured]
    new_blobs: Annotated[int, "checkpoint.new_blobs"]
    stored_bytes: Annotated[int, "checkpoint.stored_bytes"]
    """Added to the store."""
    elapsed_ms: Milliseconds


def added_paths(value: Any) -> list[bytes]:
    """The paths of the ``changes`` of a value that it has added."""
    return _paths(value.changes, "A")


def modified_paths(value: Any) -> list[bytes]:
    """The paths with a new content, permissions or type."""
    return _paths(value.changes, "MT")


def deleted_paths(value: Any) -> list[bytes]:
    """The paths that were deleted."""
    return _paths(value.changes, "D")


def _paths(changes: Sequence[Change], status: str) -> list[bytes]:
    return [change.path for change in changes if change.status in status]


class Paths(TypedDict):
    """Changed paths, by what happened to them."""

    added: Annotated[list[Path], added_paths]
    modified: Annotated[list[Path], modified_paths]
    deleted: Annotated[list[Path], deleted_paths]


class Status(TypedDict):
    """The status."""

    workspace: Path
    last_checkpoint: Annotated[str | None, "last_checkpoint.id"]
    clean: bool
    added: Annotated[list[Path], added_paths]
    modified: Annotated[list[Path], modified_paths]
    deleted: Annotated[list[Path], deleted_paths]
    not_captured: list[NotCaptured]
    watching: bool
    unfinished_restore: str | None
    """Its target."""
    watch_failure: str | None
    """Why the last save failed."""
    next_save_at: Time | None
    """The watcher's next save if nothing else changes."""
    next_save_by: Time | None
    """The same if changes keep coming."""


class StatusWithIgnored(Status):
    """With ``--ignored``."""

    ignored: list[Path]
    """A directory ends with a slash."""


class Event(TypedDict):
    """An event."""

    number: Annotated[int, "seq"]
    at: Time
    operation: str
    """``checkpoint``, ``prompt``, ``restore``, ``undo``, ``redo``, ``fork``, ``run`` or ``promote``."""
    checkpoint: str
    """The tree's state afterwards."""
    steps: list[int]
    """Of an undo or a redo; at a run's end its own."""
    run: str
    author: str
    """The agent of a prompt."""
    text: str
    """A prompt, or a run's command line."""


def was_made(value: Any) -> bool:
    """Whether a checkpoint was made with it."""
    return value.made is not None


class LogRow(TypedDict):
    """A row."""

    name: str
    """For ``show``."""
    kind: str
    """An event's operation, ``merge`` or ``command``; with ``--steps`` also ``step``, ``barrier``, ``held``."""
    number: int
    """Among rows of its kind; 0 for a checkpoint from a bundle."""
    at: Time
    author: str
    labels: list[str]
    text: PlainText
    """The message, the prompt or the held operation."""
    command: PlainText
    """The command line; of an undo or redo that of its steps, if they share one."""
    exit_code: int | None
    checkpoint: str | None
    """The tree's state afterwards."""
    made: Annotated[bool, was_made]
    """The row made that checkpoint, and it is kept."""
    changes: Annotated[Counts | None, "made.changes"]
    """If ``made``."""
    before: str | None
    """The tree's state before."""
    steps: list[int]
    run: str
    session: str
    state: str
    """A step's as in ``steps``. A run without a noted end is ``open``, or ``killed`` if it no longer runs."""
    paths: list[Path]
    """Of a barrier or a held operation."""


class LogRowDetails(LogRow):
    """A row of the log in detail."""

    changed: Paths
    """As far as checkpoints tell."""


class Log(TypedDict):
    """The log."""

    head: str | None
    """The tree's state; with ``--all`` this workspace's."""
    checkpoints: list[Checkpoint]
    """Newest first."""
    events: list[Event]
    """With ``-n`` since the oldest listed checkpoint."""
    rows: list[LogRow]
    """Newest first; empty with ``--all`` and ``--graph``. PATH, ``--since``, ``--until``, ``--author`` and ``--grep``
    select rows, with their checkpoints and events.
    """


class CheckpointDetails(RecordedCheckpoint):
    """One checkpoint in detail."""

    not_captured: list[NotCaptured]
    new_blobs: int
    stored_bytes: int
    paths: Paths


class ChangedTree(TypedDict):
    """A changed tree."""

    checkpoint: str
    """The tree's new state."""
    rescue: str | None
    """The state before; null for a dry run."""
    written: list[Path]
    """By new names; includes paths that got back content or type. A moved directory stands for its content."""
    deleted: list[Path]
    """By former names."""
    skipped: list[NotCaptured]
    """Unchanged paths, or ones with last writes kept as NAME.kept-1; the reason names the other version's place."""
    dry_run: bool


class Restored(ChangedTree):
    """A restore, an undo or a redo."""

    undo_command: str | None
    """Null for a dry run, and if there was nothing to do."""
    steps: list[int]
    """Of the undo log."""
    together: list[list[int]]
    """Groups of steps that depend on each other."""


class Process(TypedDict):
    """A process."""

    pid: int
    command: list[Path]


class RestoredByCommand(Restored):
    """The answer of the command line."""

    stopped: list[Process]
    """By ``undo --run --stop``."""


class Forked(TypedDict):
    """A new fork."""

    workspace: str
    """The new one."""
    path: Path
    checkpoint: str
    """Its first one."""
    source: str
    """The forked checkpoint."""
    written: int
    """How many files; 0 with ``--mount``."""
    mounted: bool


class AddedFile(TypedDict):
    """An added file."""

    path: Path
    size: Annotated[int, "after.size"]


class DeletedFile(TypedDict):
    """A deleted file."""

    path: Path


class ModeChange(TypedDict):
    """Types and permissions."""

    before: Annotated[OctalMode, "before.mode"]
    after: Annotated[OctalMode, "after.mode"]


class Difference(TypedDict):
    """A difference."""

    diff: NotRequired[str]
    """Hunks of a unified diff."""
    diff_base64: NotRequired[str]
    """If not UTF-8, in full."""
    binary: NotRequired[str]
    """For binary content: a sentence."""
    before_size: NotRequired[int]
    after_size: NotRequired[int]
    mode: NotRequired[ModeChange]


class _Renamed(TypedDict):
    from_: Annotated[Path, "before_path"]
    to: Annotated[Path, "path"]
    similarity: int
    """Percent."""


class ModifiedFile(Difference, DeletedFile):
    """A modified file."""


class RenamedFile(Difference, _Renamed):
    """A renamed file."""


class DiffStats(TypedDict):
    """Numbers of files."""

    added: int
    deleted: int
    modified: int
    renamed: int
    unchanged: int


class Diff(TypedDict):
    """The differences of two states."""

    base: str | None
    target: str | None
    """Null: the present tree."""
    added: list[AddedFile]
    deleted: list[DeletedFile]
    modified: list[ModifiedFile]
    renamed: list[RenamedFile]
    stats: DiffStats
