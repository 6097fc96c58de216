"""The objects of docs/json.md as types, so that a face can publish their schemas.

What an object holds is decided where it is made, in `holdfast.engine.encoding` and beside it; `as_object` holds the
two to each other. A list that may grow with the tree is cut (`cut`); ``totals`` then says how long each really is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from holdfast.engine.browsing import Kind as ItemKind
from holdfast.undo.records import StepKind
from holdfast.undo.service import StepState

if TYPE_CHECKING:
    from holdfast.engine.encoding import Json

MAX_LISTED: Final = 1000

T = TypeVar("T")


class Object(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all of them are."""


def as_object(value: Json, kind: type[T]) -> T:
    """``value`` as what it is. Raises `msgspec.ValidationError` if it is something else: a mistake of ours."""
    return msgspec.convert(value, kind)


def cut(value: Json, *names: str, most: int = MAX_LISTED) -> Json:
    """``value`` with at most so many items in each of the lists ``names``, and ``totals``."""
    lists: dict[str, list[Any]] = {name: value[name] for name in names}
    return {
        **value,
        **{name: items[:most] for name, items in lists.items()},
        "totals": {name: len(items) for name, items in lists.items()},
    }


class Counts(Object, frozen=True, kw_only=True):
    """How many files."""

    added: int
    modified: int
    deleted: int


class NotCaptured(Object, frozen=True, kw_only=True):
    """A path that was left out, or left alone."""

    path: str
    reason: str


class Checkpoint(Object, frozen=True, kw_only=True):
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


class MadeCheckpoint(Object, frozen=True, kw_only=True):
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
    totals: dict[str, int]


class Status(Object, frozen=True, kw_only=True):
    """How the tree differs from its last checkpoint."""

    workspace: str
    last_checkpoint: str | None
    clean: bool
    added: list[str]
    modified: list[str]
    deleted: list[str]
    not_captured: list[NotCaptured]
    watching: bool
    unfinished_restore: str | None
    watch_failure: str | None
    totals: dict[str, int]


class Restored(Object, frozen=True, kw_only=True):
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
    totals: dict[str, int]


class Forked(Object, frozen=True, kw_only=True):
    """A fork that was made."""

    workspace: str
    path: str
    checkpoint: str
    source: str
    written: int


class AddedFile(Object, frozen=True, kw_only=True):
    """In a diff."""

    path: str
    size: int


class DeletedFile(Object, frozen=True, kw_only=True):
    """In a diff."""

    path: str


class ModeChange(Object, frozen=True, kw_only=True):
    """Permissions or types, as octal text."""

    before: str
    after: str


class Content(Object, frozen=True, kw_only=True, omit_defaults=True):
    """How the content of a file differs. What does not apply is missing."""

    diff: str | None = None
    diff_base64: str | None = None
    binary: str | None = None
    before_size: int | None = None
    after_size: int | None = None
    mode: ModeChange | None = None


class ModifiedFile(Content, frozen=True, kw_only=True, omit_defaults=True):
    """In a diff."""

    path: str


class RenamedFile(Content, frozen=True, kw_only=True, omit_defaults=True):
    """In a diff."""

    source: str = msgspec.field(name="from")
    to: str
    similarity: int


class DiffStats(Object, frozen=True, kw_only=True):
    """How many files."""

    added: int
    deleted: int
    modified: int
    renamed: int
    unchanged: int


class Diff(Object, frozen=True, kw_only=True):
    """How a target differs from a base."""

    base: str | None
    target: str | None
    added: list[AddedFile]
    deleted: list[DeletedFile]
    modified: list[ModifiedFile]
    renamed: list[RenamedFile]
    stats: DiffStats


class PathChange(Object, frozen=True, kw_only=True):
    """What a step did to one path."""

    path: str
    change: Literal["added", "modified", "deleted", "renamed", "metadata"]
    source: str | None


class Step(Object, frozen=True, kw_only=True):
    """One step, with what it did to at most so many paths as were asked for."""

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
    changes: list[PathChange]
    totals: dict[str, int]


class Conflict(Object, frozen=True, kw_only=True):
    """What was left as it is."""

    path: str
    reason: str
    kept: str | None


class RolledBack(Object, frozen=True, kw_only=True):
    """What was taken back."""

    steps: list[int]
    paths: int
    conflicts: list[Conflict]


class Barrier(Object, frozen=True, kw_only=True):
    """An edit that no step made."""

    id: int
    at: str
    after: int | None
    paths: list[str]
    who: str
    blocks: bool


class Ticket(Object, frozen=True, kw_only=True):
    """An operation that waits for a person."""

    id: int
    step: int
    danger: Literal["delete", "overwrite", "rename_over", "limit"]
    path: str
    message: str
    asked_at: str
    denied_at: str


class Entry(Object, frozen=True, kw_only=True):
    """What a directory holds."""

    name: str
    kind: ItemKind
    size: int
    mode: str
    mtime: str
    target: str | None


class Part(Object, frozen=True, kw_only=True):
    """A part of a file."""

    path: str
    offset: int
    size: int
    hash: str | None
    data: str | None
    data_base64: str | None
    next_offset: int | None
