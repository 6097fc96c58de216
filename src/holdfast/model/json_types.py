"""The JSON objects that leave the process (docs/reference/json.md) as types: what ``--json`` prints, and what the faces
answer.

`holdfast.engine.encoding.workspace_json`, and what is beside it, makes them. The command line never loads this module:
it is for the type checker, and for a face that publishes schemas, which are made from these types and their docstrings.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

EntryKind = Literal["file", "directory", "link", "other"]
StepKind = Literal["command", "api", "ambient", "explicit"]
StepState = Literal["open", "done", "undone", "partly"]
Danger = Literal["delete", "overwrite", "rename_over", "limit"]


class Counts(TypedDict):
    """How many files."""

    added: int
    modified: int
    deleted: int


class NotCaptured(TypedDict):
    """A path that was left out, or left alone."""

    path: str
    reason: str


class Checkpoint(TypedDict):
    """One of the checkpoints of a list."""

    id: str
    workspace: str
    parent: str | None
    label: str
    kind: str
    created_at: str
    changes: Counts
    message: str
    author: str
    command: str
    total_files: int
    total_bytes: int
    not_captured: int
    """How many."""


class MadeCheckpoint(TypedDict):
    """A checkpoint that was taken, or (``created`` is false) the one that holds this state already."""

    id: str
    parent: str | None
    label: str
    kind: str
    created: bool
    labelled: bool
    created_at: str
    changes: Counts
    total_files: int
    not_captured: list[NotCaptured]
    new_blobs: int
    stored_bytes: int
    elapsed_ms: float


class Paths(TypedDict):
    """Changed paths, by what happened to them."""

    added: list[str]
    modified: list[str]
    deleted: list[str]


class Status(Paths):
    """How the tree differs from its last checkpoint."""

    workspace: str
    last_checkpoint: str | None
    clean: bool
    not_captured: list[NotCaptured]
    watching: bool
    unfinished_restore: str | None
    watch_failure: str | None


class Restored(TypedDict):
    """What a restore, an undo or a redo did, or would do."""

    checkpoint: str
    rescue: str | None
    written: list[str]
    deleted: list[str]
    skipped: list[NotCaptured]
    dry_run: bool
    undo_command: str | None
    steps: list[int]
    together: list[list[int]]
    """Groups of those steps that depend on each other."""


class Forked(TypedDict):
    """A fork that was made."""

    workspace: str
    path: str
    checkpoint: str
    source: str
    written: int
    mounted: bool


class AddedFile(TypedDict):
    """In a diff."""

    path: str
    size: int


class DeletedFile(TypedDict):
    """In a diff."""

    path: str


class ModeChange(TypedDict):
    """Permissions or types, as octal text."""

    before: str
    after: str


class Difference(TypedDict):
    """How a file differs. What does not apply is missing."""

    diff: NotRequired[str]
    diff_base64: NotRequired[str]
    binary: NotRequired[str]
    before_size: NotRequired[int]
    after_size: NotRequired[int]
    mode: NotRequired[ModeChange]


class ModifiedFile(Difference):
    """In a diff."""

    path: str


_Source = TypedDict("_Source", {"from": str})


class RenamedFile(Difference, _Source):
    """In a diff."""

    to: str
    similarity: int


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


class PathChange(TypedDict):
    """What a step did to one path."""

    path: str
    change: Literal["added", "modified", "deleted", "renamed", "metadata"]
    source: str | None


class Step(TypedDict):
    """One step."""

    id: int
    kind: StepKind
    state: StepState
    command: list[str]
    directory: str
    run: str
    parent: int | None
    started_at: str
    ended_at: str | None
    paths: int
    bytes: int
    protected: bool
    unprotected_reason: str
    exit_code: int | None
    barrier_after: bool


class Conflict(TypedDict):
    """What was left as it is."""

    path: str
    reason: str
    kept: str | None


class StepWithChanges(Step):
    """One step, with what it did."""

    changes: list[PathChange]
    conflicts: list[Conflict]


class RolledBack(TypedDict):
    """What was taken back."""

    steps: list[int]
    paths: int
    conflicts: list[Conflict]


class Barrier(TypedDict):
    """An edit that no step made."""

    id: int
    at: str
    after: int | None
    paths: list[str]
    who: str
    blocks: bool


class Ticket(TypedDict):
    """An operation that waits for a person."""

    id: int
    step: int
    danger: Danger
    path: str
    message: str
    asked_at: str
    denied_at: str


class Entry(TypedDict):
    """What a directory holds."""

    name: str
    kind: EntryKind
    size: int
    mode: str
    mtime: str
    target: str | None


class Listing(TypedDict):
    """A directory, or a part of it."""

    path: str
    entries: list[Entry]


class Part(TypedDict):
    """A part of a file."""

    path: str
    offset: int
    size: int
    hash: str | None
    data: str | None
    data_base64: str | None
    next_offset: int | None
