"""Answers about a workspace: its checkpoints, its tree, and what was done to it."""

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
    """Why something was not done."""

    code: str
    message: str
    hint: str | None
    processes: NotRequired[Annotated[list[Any], failed_processes]]
    """Those that stand in the way, where they are known."""


def failed_processes(value: Any) -> Any:
    """What an error knows of the processes that stand in the way."""
    data: dict[str, Any] = value.data or {}
    return data.get("processes")


class Failed(TypedDict):
    """What every failure prints."""

    error: Failure


class Counts(TypedDict):
    """How many files."""

    added: int
    modified: int
    deleted: int


class NotCaptured(TypedDict):
    """A path that was left out, or left alone."""

    path: Path
    reason: str


class RecordedCheckpoint(TypedDict):
    """What is kept about a checkpoint."""

    id: str
    workspace: str
    parent: str | None
    label: str
    labels: list[str]
    kind: str
    created_at: Time
    changes: Counts
    message: Annotated[str, "provenance.message"]
    author: Annotated[str, "provenance.author"]
    command: Annotated[str, "provenance.command"]
    total_files: int
    total_bytes: int


class Checkpoint(RecordedCheckpoint):
    """One of the checkpoints of a list."""

    not_captured: int
    """How many."""


class MadeCheckpoint(TypedDict):
    """A checkpoint that was taken, or (``created`` is false) the one that holds this state already."""

    id: Annotated[str, "checkpoint.id"]
    parent: Annotated[str | None, "checkpoint.parent"]
    label: Annotated[str, "checkpoint.label"]
    labels: Annotated[list[str], "checkpoint.labels"]
    kind: Annotated[str, "checkpoint.kind"]
    created: bool
    labelled: bool
    created_at: Annotated[Time, "checkpoint.created_at"]
    changes: Annotated[Counts, "checkpoint.changes"]
    total_files: Annotated[int, "checkpoint.total_files"]
    not_captured: list[NotCaptured]
    new_blobs: Annotated[int, "checkpoint.new_blobs"]
    stored_bytes: Annotated[int, "checkpoint.stored_bytes"]
    elapsed_ms: Milliseconds


def added_paths(value: Any) -> list[bytes]:
    """The paths of the ``changes`` of a value that it has added."""
    return _paths(value.changes, "A")


def modified_paths(value: Any) -> list[bytes]:
    """Those that it has modified; changes of type as well."""
    return _paths(value.changes, "MT")


def deleted_paths(value: Any) -> list[bytes]:
    """Those that it has deleted."""
    return _paths(value.changes, "D")


def _paths(changes: Sequence[Change], status: str) -> list[bytes]:
    return [change.path for change in changes if change.status in status]


class Paths(TypedDict):
    """Changed paths, by what happened to them."""

    added: Annotated[list[Path], added_paths]
    modified: Annotated[list[Path], modified_paths]
    deleted: Annotated[list[Path], deleted_paths]


class Status(TypedDict):
    """How the tree differs from its last checkpoint."""

    workspace: Path
    last_checkpoint: Annotated[str | None, "last_checkpoint.id"]
    clean: bool
    added: Annotated[list[Path], added_paths]
    modified: Annotated[list[Path], modified_paths]
    deleted: Annotated[list[Path], deleted_paths]
    not_captured: list[NotCaptured]
    watching: bool
    unfinished_restore: str | None
    watch_failure: str | None
    next_save_at: Time | None
    next_save_by: Time | None


class StatusWithIgnored(Status):
    """The same, with what the ignore rules leave out."""

    ignored: list[Path]


class Event(TypedDict):
    """What happened to a workspace's tree."""

    number: Annotated[int, "seq"]
    at: Time
    operation: str
    checkpoint: str
    steps: list[int]
    run: str
    author: str
    text: str


def was_made(value: Any) -> bool:
    """Whether a checkpoint was made with it."""
    return value.made is not None


class LogRow(TypedDict):
    """One thing that happened."""

    name: str
    kind: str
    number: int
    at: Time
    author: str
    labels: list[str]
    text: PlainText
    command: PlainText
    exit_code: int | None
    checkpoint: str | None
    made: Annotated[bool, was_made]
    changes: Annotated[Counts | None, "made.changes"]
    before: str | None
    steps: list[int]
    run: str
    session: str
    state: str
    paths: list[Path]


class LogRowDetails(LogRow):
    """The same, and the paths that it changed, as far as checkpoints tell."""

    changed: Paths


class Log(TypedDict):
    """The history, newest first, and where the tree stands in it."""

    head: str | None
    checkpoints: list[Checkpoint]
    events: list[Event]
    rows: list[LogRow]


class CheckpointDetails(RecordedCheckpoint):
    """All that is kept about one checkpoint: its record, the changed paths, and what was not captured."""

    not_captured: list[NotCaptured]
    new_blobs: int
    stored_bytes: int
    paths: Paths


class ChangedTree(TypedDict):
    """What became of a tree that was brought to another state, or would."""

    checkpoint: str
    rescue: str | None
    written: list[Path]
    deleted: list[Path]
    skipped: list[NotCaptured]
    dry_run: bool


class Restored(ChangedTree):
    """What a restore, an undo or a redo did, or would do."""

    undo_command: str | None
    steps: list[int]
    together: list[list[int]]
    """Groups of those steps that depend on each other."""


class Process(TypedDict):
    """A process."""

    pid: int
    command: list[Path]


class RestoredByCommand(Restored):
    """What a restore, an undo or a redo did, and what it has ended first."""

    stopped: list[Process]


class Forked(TypedDict):
    """A fork that was made."""

    workspace: str
    path: Path
    checkpoint: str
    source: str
    written: int
    mounted: bool


class AddedFile(TypedDict):
    """In a diff."""

    path: Path
    size: Annotated[int, "after.size"]


class DeletedFile(TypedDict):
    """In a diff."""

    path: Path


class ModeChange(TypedDict):
    """Permissions or types, as octal text."""

    before: Annotated[OctalMode, "before.mode"]
    after: Annotated[OctalMode, "after.mode"]


class Difference(TypedDict):
    """How a file differs. What does not apply is missing."""

    diff: NotRequired[str]
    diff_base64: NotRequired[str]
    binary: NotRequired[str]
    before_size: NotRequired[int]
    after_size: NotRequired[int]
    mode: NotRequired[ModeChange]


class _Renamed(TypedDict):
    from_: Annotated[Path, "before_path"]
    to: Annotated[Path, "path"]
    similarity: int


class ModifiedFile(Difference, DeletedFile):
    """In a diff."""


class RenamedFile(Difference, _Renamed):
    """In a diff."""


class DiffStats(TypedDict):
    """How many files."""

    added: int
    deleted: int
    modified: int
    renamed: int
    unchanged: int


class Diff(TypedDict):
    """How a target differs from a base."""

    base: str | None
    target: str | None
    added: list[AddedFile]
    deleted: list[DeletedFile]
    modified: list[ModifiedFile]
    renamed: list[RenamedFile]
    stats: DiffStats
