"""What the tools answer: the shapes of the engine's JSON objects (docs/json.md), for the schemas that clients see.

Lists that grow with the tree are cut; ``totals`` says how long each really is.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from holdfast.api.mcp.text import Encoding

Totals = dict[str, int]


class Counts(TypedDict):
    added: int
    modified: int
    deleted: int


class NotCaptured(TypedDict):
    path: str
    reason: str


class Changed(TypedDict):
    path: str
    change: Literal["added", "modified", "deleted", "renamed", "metadata"]
    source: str | None


class Step(TypedDict):
    id: int
    kind: str
    state: Literal["open", "done", "undone", "partly"]
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
    changes: list[Changed]
    totals: Totals


class Ticket(TypedDict):
    id: int
    step: int
    danger: str
    path: str
    message: str
    asked_at: str
    denied_at: str


class Barrier(TypedDict):
    id: int
    at: str
    after: int | None
    paths: list[str]
    who: str
    blocks: bool


class Checkpoint(TypedDict):
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


class Executed(TypedDict):
    exit_code: int
    stdout: str
    stderr: str
    stdout_omitted: int
    stderr_omitted: int
    step: Step | None
    timed_out: bool
    denied: bool
    held: list[Ticket]
    output_open: bool


class FileRead(TypedDict):
    path: str
    content: str
    encoding: Encoding
    offset: int
    bytes: int
    size: int
    hash: str | None
    next_cursor: str | None


class FileWritten(TypedDict):
    path: str
    bytes: int
    hash: str
    step: Step | None


class FileEdited(TypedDict):
    path: str
    replaced: int
    step: Step | None


class Entry(TypedDict):
    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: str
    mtime: str
    target: str | None


class Listing(TypedDict):
    path: str
    entries: list[Entry]
    total: int
    next_cursor: str | None


class Restored(TypedDict):
    checkpoint: str
    rescue: str | None
    written: list[str]
    deleted: list[str]
    skipped: list[NotCaptured]
    dry_run: bool
    undo_command: str | None
    steps: list[int]
    together: list[list[int]]
    totals: Totals


class History(TypedDict):
    steps: list[Step]
    total: int
    next_cursor: str | None


class WorkingDirectory(TypedDict):
    index: int
    label: str
    path: str
    access: Literal["read_write", "read_only"]
    state: Literal["stopped", "idle", "running", "failed"]
    run: str
    step: int | None


class Recovered(TypedDict):
    steps: list[int]
    paths: int


class SessionStatus(TypedDict):
    version: str
    directories: list[WorkingDirectory]
    directory: int
    guarded: bool
    held: list[Ticket]
    barriers: list[Barrier]
    recovered: list[Recovered]
    last_checkpoint: str | None
    steps: int
    differs: Counts | None
    unfinished_restore: bool


class CheckpointTaken(TypedDict):
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
    totals: Totals


class Checkpoints(TypedDict):
    head: str | None
    checkpoints: list[Checkpoint]
    total: int
    next_cursor: str | None


class FileDifference(TypedDict):
    path: str
    before_path: str
    status: Literal["A", "M", "D", "T", "R"]
    added: int | None
    removed: int | None
    binary: bool


class Difference(TypedDict):
    base: str | None
    target: str | None
    files: list[FileDifference]
    patch: str
    patch_omitted: int
    total: int
    next_cursor: str | None


class Forked(TypedDict):
    workspace: str
    path: str
    checkpoint: str
    source: str
    written: int
