"""What requests hold and answers are made of: the OpenAPI document is generated from these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.engine import objects
from holdfast.engine.exports import NAME_PATTERN

Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64)]
Project = Annotated[str, Meta(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?)?$", max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
Label = Annotated[str, Meta(max_length=128)]
PathText = Annotated[str, Meta(max_length=16384)]
Reference = Annotated[str, Meta(min_length=1, max_length=256)]
"""A checkpoint, as on the command line: an id, a prefix of one, a label, ``@``, ``@-``, ``@-3``."""
CheckpointId = Annotated[str, Meta(pattern="^[0-9a-f]{24}$")]
BlobHash = Annotated[str, Meta(pattern="^blake3:[0-9a-f]{32}$")]
Mode = Literal["development", "production"]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a request holds. Unknown fields are refused."""


class NoBody(Body, frozen=True):
    """Nothing."""


class NewExport(Body, frozen=True):
    """A directory to serve."""

    name: Name
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Absolute, below one of the token's roots; without it an empty directory is made."""
    project: Project = ""
    auto_checkpoint: bool = True
    mode: Mode = "development"


class ExportChange(Body, frozen=True):
    """What is to be different of an export."""

    project: Project | UnsetType = UNSET
    auto_checkpoint: bool | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    """``production``: it is saved only when somebody asks for it."""


class NewCheckpoint(Body, frozen=True):
    """A checkpoint to take."""

    label: Label = ""
    message: Text = ""
    author: Annotated[str, Meta(max_length=256)] = ""
    full_hash: bool = False
    """Read every file again, instead of trusting what is remembered of unchanged ones."""


class NewProjectCheckpoint(NewCheckpoint, frozen=True):
    """A checkpoint to take of one of a project's exports."""

    export: Name | None = None
    """Needed where the project has several."""


class Restore(Body, frozen=True):
    """Where the tree is to be brought."""

    checkpoint: Reference
    paths: Annotated[list[PathText], Meta(max_length=10_000)] = []
    """Only these, and what is below them."""
    dry_run: bool = False
    expected: CheckpointId | None = None
    """Refuse unless the tree is as this checkpoint has it."""


class Recover(Body, frozen=True):
    """What is to become of a restore that was cut short."""

    action: Literal["continue", "abort"]


class Steps(Body, frozen=True):
    """How far to go."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    force: bool = False
    """Also over what others have changed since."""
    dry_run: bool = False


class Fork(Body, frozen=True):
    """A checkpoint to write out as an export of its own."""

    name: Name
    checkpoint: Reference = "@"
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """As in `NewExport`."""
    project: Project | None = None
    """By default that of the export."""
    auto_checkpoint: bool = True


class FileWrite(Body, frozen=True):
    """A file that is to be there. Exactly one of the three says what it holds."""

    path: Annotated[str, Meta(min_length=1, max_length=16384)]
    blob_hash: BlobHash | None = None
    """Content that is stored already."""
    content: str | None = None
    content_base64: str | None = None
    mode: Annotated[str, Meta(pattern="^(0[0-7]{3}|120000)$")] = "0644"
    """Octal; ``120000`` for a symbolic link, whose content is its target."""


class WriteFiles(Body, frozen=True):
    """What is to be written and deleted, and nothing else."""

    writes: Annotated[list[FileWrite], Meta(max_length=100_000)] = []
    deletes: Annotated[list[PathText], Meta(max_length=100_000)] = []
    source: CheckpointId | None = None
    """Where all of what is given by its hash has to be. Needed by a token that is for some exports alone."""
    message: Text = ""
    author: Annotated[str, Meta(max_length=256)] = ""


class Merge(Body, frozen=True):
    """Two lines of work, and where they parted."""

    production_checkpoint: CheckpointId
    promote_checkpoint: CheckpointId
    fork_checkpoint: CheckpointId | None = None
    """By default the newest that both come from."""


PromotionId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class Promote(Body, frozen=True):
    """What is to be promoted: one of the two."""

    promote_checkpoint: CheckpointId | None = None
    fork: Name | None = None
    """An export, whose present state is saved first."""
    message: Annotated[str, Meta(max_length=4000)] = ""
    author: Annotated[str, Meta(max_length=256)] = ""


class TakeReapply(Body, frozen=True):
    """Nothing is to be said."""


class AnswerReapply(Body, frozen=True):
    """What becomes of the file: exactly one of content, content_base64, delete and decline."""

    token: Annotated[str, Meta(min_length=1, max_length=128)]
    version: Annotated[str, Meta(min_length=1, max_length=128)]
    """That of the change, as it was taken."""
    content: str | UnsetType = UNSET
    content_base64: str | UnsetType = UNSET
    delete: bool | UnsetType = UNSET
    decline: Text | UnsetType = UNSET
    """Why it cannot be applied: the next rung has it then."""
    said: Text = ""
    """How it was done, for the record."""


# -- queries -----------------------------------------------------------------------------------------------------


class NoQuery(Body, frozen=True):
    """Nothing."""


class Page(Body, frozen=True):
    """Which part of a list."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(max_length=24000)] = ""
    """What the last answer had as ``next_cursor``; empty for the beginning."""


class ExportsPage(Page, frozen=True):
    """Which exports."""

    project: Annotated[str, Meta(max_length=128)] = ""
    """Of this project alone."""


class ReappliesQuery(Body, frozen=True):
    """How many."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class FilesPage(Page, frozen=True):
    """Which files."""

    path: PathText = ""
    """This one, or those below it."""


class DiffQuery(Body, frozen=True):
    """What of a diff."""

    path: PathText = ""
    """This file, or those below it."""
    content: bool = True
    """With the text of what differs; else which files do."""


class FileQuery(Body, frozen=True):
    """Which file."""

    path: Annotated[str, Meta(min_length=1, max_length=16384)]


# -- answers -----------------------------------------------------------------------------------------------------


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
    """What a promotion to the export runs, and how: docs/configuration.md."""

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
    """How what both sides have changed is applied anew: docs/merge.md."""

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


class Status(objects.Status):
    """How the tree differs from its last checkpoint."""

    totals: dict[str, int]
    """How long the lists really are: 1,000 items of each are shown."""


class ExportList(TypedDict):
    """Exports, by name."""

    exports: list[Export]
    next_cursor: str | None


class Checkpoint(objects.Checkpoint):
    """A checkpoint."""

    export: str


class CheckpointDetails(Checkpoint):
    """A checkpoint, and what it changed."""

    paths: objects.Paths
    not_captured_paths: list[objects.NotCaptured]
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
    changes: objects.Counts
    not_captured: list[objects.NotCaptured]
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


class Restored(objects.Restored):
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
    errors: list[objects.NotCaptured]
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
    """A file that both lines of work have changed; docs/json.md has the fields."""

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
    """What became of each file that both sides have changed, and what each rung did: docs/merge.md."""
    production: str
    phase: Phase
    theirs: str
    checkpoint: str
    previous: str
    atomic: bool
    hindrance: str
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
    """As docs/merge.md has it for the rung ``command``, with ``id``, ``token``, ``held_until`` and ``deadline``."""


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
