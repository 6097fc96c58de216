"""What answers are made of: the OpenAPI document is generated from these types."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from holdfast.api.rest._request_types import Mode
from holdfast.model import json_types


class Condition(TypedDict):
    """How the upkeep of an export goes."""

    state: Literal["beginning", "watching", "broken", "elsewhere"]
    backend: str
    problem: str | None


class Export(TypedDict):
    """A directory that is served."""

    name: str
    kind: str
    path: str
    workspace: str
    project: str
    auto_checkpoint: bool
    mode: Mode
    created_at: str
    revision: int
    upkeep: Condition


class PromoteSettings(TypedDict):
    """What a promotion to the export runs, and how: docs/reference/configuration.md."""

    setup: list[str]
    build: list[str]
    start: list[str]
    health: list[str]
    timeout: float
    health_timeout: float
    health_interval: float
    isolation: str
    network: str


class MergeSettings(TypedDict):
    """How what both sides have changed is applied anew: docs/guide/merge.md."""

    ladder: list[str]
    max_bytes: int
    lease: float
    deadline: float
    queue_entries: int
    queue_bytes: int


class Configuration(TypedDict):
    """What the export's own ``holdfast.toml``, and the home's settings, say of it; times in seconds."""

    promote: PromoteSettings
    merge: MergeSettings
    problem: str | None
    """What is wrong with the export's own file, which is not obeyed then."""


class ExportDetails(Export):
    """An export, and how it is configured."""

    configuration: Configuration | None
    """Null if its directory cannot be reached."""


class Status(json_types.Status):
    """How the tree differs from its last checkpoint."""

    totals: dict[str, int]
    """How long the lists really are: 1,000 items of each are shown."""


class ExportList(TypedDict):
    """Exports, by name."""

    exports: list[Export]
    next_cursor: str | None


class Checkpoint(json_types.Checkpoint):
    """A checkpoint."""

    export: str


class CheckpointDetails(Checkpoint):
    """A checkpoint, and what it changed."""

    paths: json_types.Paths
    not_captured_paths: list[json_types.NotCaptured]
    totals: dict[str, int]
    """How long the lists in ``paths`` and ``not_captured_paths`` really are: 1,000 items of each are shown."""


class CheckpointList(TypedDict):
    """Checkpoints, newest first."""

    checkpoints: list[Checkpoint]
    next_cursor: str | None


class Stats(TypedDict):
    """What taking a checkpoint came to."""

    total_files: int
    new_blobs: int
    stored_bytes: int
    elapsed_ms: float


class Taken(TypedDict):
    """A checkpoint that was taken, or (``created`` is false) the one that holds this state already."""

    checkpoint_id: str
    snapshot_id: str | None
    """Of the blocks below it: null for a directory."""
    parent: str | None
    label: str
    kind: str
    created: bool
    labelled: bool
    created_at: str
    changes: json_types.Counts
    not_captured: list[json_types.NotCaptured]
    stats: Stats


class File(TypedDict):
    """A file of a checkpoint."""

    path: str
    hash: str
    size: int
    mode: str


class FileList(TypedDict):
    """Files of a checkpoint, by path."""

    files: list[File]
    next_cursor: str | None


class Restored(json_types.Restored):
    """What happened to the tree, or would happen."""

    totals: dict[str, int]
    """How long the lists really are: 1,000 items of each are shown."""


class Forked(TypedDict):
    """A fork that was made."""

    export: Export
    checkpoint: str
    """Its first one."""
    source: str
    written: int


class Written(TypedDict):
    """What became of a plan."""

    written: int
    deleted: int
    errors: list[json_types.NotCaptured]
    before: str
    """The checkpoint that holds the state before."""
    checkpoint: str
    """The one with the state that it led to."""


class MergeCounts(TypedDict):
    """How many files are which."""

    apply_theirs: int
    keep_production: int
    deletes: int
    unchanged: int
    overlapping: int
    identical: int


class ForeseenRung(TypedDict):
    """What one rung of `merge.ladder` would do about a file."""

    rung: Literal["command", "queue", "structure", "text", "person"]
    result: Literal["applies", "declines", "asked"]
    said: NotRequired[str]
    """Why it declines."""


class Foreseen(TypedDict):
    """What the ladder would do about a file: the first rung is asked, or tried, first."""

    applies: bool
    rungs: list[ForeseenRung]


class Overlap(TypedDict):
    """A file that both lines of work have changed; docs/reference/json.md has the fields."""

    path: str
    production_path: str
    fork_path: str
    changeset_count: int
    changesets: list[int]
    why: str
    detail: str
    version: str
    can_reapply: bool
    foreseen: Foreseen


class MergeTotals(TypedDict):
    """How long lists are of which only the beginning is shown."""

    writes: int
    deletes: int
    overlapping_files: int
    uncaptured: int


class Merged(TypedDict):
    """What a merge would come to: as ``merge --dry-run --json`` says it."""

    result: Literal["clean", "needs_reapply"]
    fork_checkpoint: str
    production_checkpoint: str
    promote_checkpoint: str
    changesets: int
    straight: bool
    changes: MergeCounts
    writes: list[str]
    deletes: list[str]
    uncaptured: list[str]
    """What the fork captures no more, and has not deleted: it stays as production has it."""
    overlapping_files: list[Overlap]
    totals: MergeTotals


class PromotionOverlap(TypedDict):
    """A file that both sides have changed."""

    path: str
    changeset_count: int
    detail: str


class InUse(TypedDict):
    """A process that is still in the directory that was production."""

    pid: int
    command: str


class Restarted(TypedDict):
    """How the restart went."""

    exit_code: int
    output: str


Result = Literal["", "promoted", "unchanged", "needs_reapply", "build_failed", "failed"]
Phase = Literal["building", "swapping", "swapped", "ended"]


class Promoted(TypedDict):
    """A promotion: as ``promote --json`` says it."""

    id: str
    result: Result
    """Empty while it is under way, or was cut short."""
    changesets: int
    changes: MergeCounts | None
    overlapping_files: list[PromotionOverlap]
    uncaptured: list[str]
    files: list[dict[str, Any]]
    """What became of each file that both sides have changed, and what each rung did: docs/guide/merge.md."""
    production: str
    phase: Phase
    theirs: str
    checkpoint: str
    previous: str
    atomic: bool
    hindrance: str
    provider: str
    provider_reason: str
    undo_command: str
    failed_step: str
    command: str
    exit_code: int
    output: str
    code: str
    message: str
    recovery: str
    replans: int
    late: list[str]
    used_by: list[InUse]
    kept: str
    restart: Restarted | None
    created_at: str
    updated_at: str
    totals: dict[str, int]
    """How long ``overlapping_files``, ``uncaptured``, ``files`` and ``late`` really are: 1,000 items of each are
    shown.
    """


class PromotionSummary(TypedDict):
    """How a promotion has ended, in short."""

    id: str
    result: Result
    phase: Phase
    theirs: str
    checkpoint: str
    failed_step: str
    code: str
    message: str
    created_at: str
    updated_at: str


class PromotionList(TypedDict):
    """Promotions to an export, newest first."""

    promotions: list[PromotionSummary]
    next_cursor: str | None


class WaitingReapply(TypedDict):
    """A change that waits to be applied anew."""

    id: str
    path: str
    held: bool
    """Somebody has taken it."""
    deadline: str


class ReapplyList(TypedDict):
    """Changes that wait, the oldest first."""

    reapplies: list[WaitingReapply]


class TakenReapply(TypedDict):
    """A change that is the caller's until ``held_until``, or none."""

    change: dict[str, Any] | None
    """As docs/guide/merge.md has it for the rung ``command``, with ``id``, ``token``, ``held_until`` and
    ``deadline``."""


class AnsweredReapply(TypedDict):
    """What became of the answer. Nothing is written by it: the next promotion or merge uses it."""

    id: str
    status: Literal["answered", "declined"]


class Deleted(TypedDict):
    """What was deleted."""

    deleted: str


class Health(TypedDict):
    """That it lives, or can do its work."""

    status: Literal["ok", "unavailable"]
    version: str
    checks: dict[str, str]


class Problem(TypedDict):
    """Why something was not done (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """Stable: what it means never changes."""
    hint: str | None
    data: dict[str, Any] | None
    request_id: str
