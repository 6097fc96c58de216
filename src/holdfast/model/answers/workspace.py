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
    """The record of a checkpoint."""

    id: str
    workspace: str
    """Its id."""
    parent: str | None
    label: str
    """The first of the labels."""
    labels: list[str]
    """In the order in which it got them."""
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
    """How many."""


class MadeCheckpoint(TypedDict):
    """A checkpoint that was made or found."""

    id: Annotated[str, "checkpoint.id"]
    parent: Annotated[str | None, "checkpoint.parent"]
    label: Annotated[str, "checkpoint.label"]
    labels: Annotated[list[str], "checkpoint.labels"]
    kind: Annotated[str, "checkpoint.kind"]
    """As in ``log``."""
    created: bool
    """False: it holds this state already."""
    labelled: bool
    """It has the requested label."""
    created_at: Annotated[Time, "checkpoint.created_at"]
    changes: Annotated[Counts, "checkpoint.changes"]
    total_files: Annotated[int, "checkpoint.total_files"]
    not_captured: list[NotCaptured]
    new_blobs: Annotated[int, "checkpoint.new_blobs"]
    stored_bytes: Annotated[int, "checkpoint.stored_bytes"]
    """The bytes that it added to the store."""
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
    """The differences from the last checkpoint."""

    workspace: Path
    last_checkpoint: Annotated[str | None, "last_checkpoint.id"]
    """Its id."""
    clean: bool
    added: Annotated[list[Path], added_paths]
    modified: Annotated[list[Path], modified_paths]
    deleted: Annotated[list[Path], deleted_paths]
    not_captured: list[NotCaptured]
    watching: bool
    unfinished_restore: str | None
    """The target of a restore that was cut short."""
    watch_failure: str | None
    """Why the watcher's last save failed."""
    next_save_at: Time | None
    """The watcher's next save if no other changes come."""
    next_save_by: Time | None
    """The same if they keep coming."""


class StatusWithIgnored(Status):
    """With ``--ignored``."""

    ignored: list[Path]
    """A directory ends with a slash."""


class Event(TypedDict):
    """An event of the history."""

    number: Annotated[int, "seq"]
    at: Time
    operation: str
    """``checkpoint``, ``prompt``, ``restore``, ``undo``, ``redo``, ``fork``, ``run`` or ``promote``."""
    checkpoint: str
    """The state of the tree afterwards."""
    steps: list[int]
    """Of an undo or a redo: those of the undo log; of a run, at its end: its own."""
    run: str
    """Of a run that begins or ends."""
    author: str
    """Of a prompt: the agent."""
    text: str
    """A prompt, or the command line of a run."""


def was_made(value: Any) -> bool:
    """Whether a checkpoint was made with it."""
    return value.made is not None


class LogRow(TypedDict):
    """A row."""

    name: str
    """The name that ``show`` takes."""
    kind: str
    """``checkpoint``, ``prompt``, ``restore``, ``undo``, ``redo``, ``fork``, ``run``, ``promote``, ``merge`` or
    ``command``; with ``--steps`` also ``step``, ``barrier``, ``held``.
    """
    number: int
    """Its number among rows of its kind; 0 for a checkpoint from a bundle."""
    at: Time
    author: str
    labels: list[str]
    text: PlainText
    """The message, the prompt, or the text of the held operation."""
    command: PlainText
    """The command line; of an undo or a redo that of the steps, if they have one in common."""
    exit_code: int | None
    """Of a step or a command."""
    checkpoint: str | None
    """The state of the tree afterwards."""
    made: Annotated[bool, was_made]
    """The event made that checkpoint, and it is kept."""
    changes: Annotated[Counts | None, "made.changes"]
    """Of the checkpoint that was made."""
    before: str | None
    """The state of the tree before."""
    steps: list[int]
    run: str
    session: str
    state: str
    """A step's state as in ``steps``. A run's without a noted end is ``open``, or ``killed`` if it no longer runs."""
    paths: list[Path]
    """Of a barrier or a held operation."""


class LogRowDetails(LogRow):
    """A row and its changed paths, as far as checkpoints tell."""

    changed: Paths


class Log(TypedDict):
    """The history."""

    head: str | None
    """The tree's state; with ``--all`` that of this workspace."""
    checkpoints: list[Checkpoint]
    """Newest first."""
    events: list[Event]
    """With ``-n`` since the oldest listed checkpoint."""
    rows: list[LogRow]
    """Newest first; empty with ``--all`` and ``--graph``. A PATH, ``--since``, ``--until``, ``--author`` and
    ``--grep`` select rows, and the checkpoints and events that belong to them.
    """


class CheckpointDetails(RecordedCheckpoint):
    """One checkpoint in detail."""

    not_captured: list[NotCaptured]
    new_blobs: int
    stored_bytes: int
    paths: Paths


class ChangedTree(TypedDict):
    """A change of the tree, done or planned."""

    checkpoint: str
    """The state that the tree was brought to."""
    rescue: str | None
    """The checkpoint that holds the state before; null for a dry run."""
    written: list[Path]
    """By their new names; includes paths that got back their former content or type. A moved directory stands for its
    content.
    """
    deleted: list[Path]
    """By their names before."""
    skipped: list[NotCaptured]
    """Unchanged paths, or ones with last writes kept as NAME.kept-1; the reason names the other version's place."""
    dry_run: bool


class Restored(ChangedTree):
    """A restore, an undo or a redo, done or planned."""

    undo_command: str | None
    """Null for a dry run, and if there was nothing to do."""
    steps: list[int]
    """Ids, of the undo log."""
    together: list[list[int]]
    """Groups of those steps that depend on each other."""


class Process(TypedDict):
    """A process."""

    pid: int
    command: list[Path]


class RestoredByCommand(Restored):
    """The answer of the command line."""

    stopped: list[Process]
    """Processes that ``undo --run --stop`` ended first."""


class Forked(TypedDict):
    """A new fork."""

    workspace: str
    """The id of the new workspace."""
    path: Path
    checkpoint: str
    """The first of the new workspace."""
    source: str
    """The checkpoint that was forked."""
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
    """How a file differs."""

    diff: NotRequired[str]
    """The hunks of a unified diff."""
    diff_base64: NotRequired[str]
    """In full, where it is not UTF-8."""
    binary: NotRequired[str]
    """A sentence, for binary content."""
    before_size: NotRequired[int]
    after_size: NotRequired[int]
    mode: NotRequired[ModeChange]
    """Where permissions or types differ."""


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
    """Its id."""
    target: str | None
    """Its id; null for the tree as it is now."""
    added: list[AddedFile]
    deleted: list[DeletedFile]
    modified: list[ModifiedFile]
    renamed: list[RenamedFile]
    stats: DiffStats
