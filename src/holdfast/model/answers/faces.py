"""Answers of the REST API and similar interfaces that no command has; the OpenAPI document is generated from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.model.answers import commands, merges
from holdfast.model.answers import workspace as answers
from holdfast.model.answers.merges import Foreseen
from holdfast.model.answers.sessions import Command
from holdfast.model.answers.workspace import Counts, NotCaptured, Paths
from holdfast.model.fast_typing import TypedDict

if TYPE_CHECKING:
    from typing import Annotated

    from holdfast.model.answers.words import (
        ContentHash,
        Milliseconds,
        Path,
        PromotionPhase,
        PromotionResult,
        SystemPath,
        Time,
    )
    from holdfast.model.entries import Entry


Mode = Literal["development", "production"]


class Condition(TypedDict):
    """How the upkeep of an export goes."""

    state: Literal["beginning", "watching", "broken", "elsewhere"]
    backend: str
    problem: str | None


class Export(TypedDict):
    """A directory that is served."""

    name: str
    kind: str
    path: Path
    workspace: str
    project: str
    auto_checkpoint: Annotated[bool, "auto"]
    mode: Mode
    created_at: Time
    revision: int
    upkeep: Condition


class PromoteSettings(TypedDict):
    """The commands and settings of promotions to the export: docs/reference/configuration.md."""

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
    """How what both sides have changed is applied anew: docs/reference/ladder.md."""

    ladder: list[str]
    max_bytes: int
    lease: float
    deadline: float
    queue_entries: int
    queue_bytes: int


class Configuration(TypedDict):
    """The settings from the export's own ``holdfast.toml`` and from the home; times in seconds."""

    promote: PromoteSettings
    merge: MergeSettings
    problem: str | None
    """The error in the export's own file, which is ignored then."""


class ExportDetails(Export):
    """An export, and how it is configured."""

    configuration: Configuration | None
    """Null if its directory cannot be reached."""


class ExportList(TypedDict):
    """Exports, by name."""

    exports: list[Export]
    next_cursor: str | None


class Checkpoint(answers.Checkpoint):
    """A checkpoint."""

    export: str


class CheckpointDetails(Checkpoint):
    """A checkpoint with its changes."""

    paths: Paths
    not_captured_paths: list[NotCaptured]
    totals: dict[str, int]
    """How long the lists in ``paths`` and ``not_captured_paths`` really are: 1,000 items of each are shown."""


class CheckpointList(TypedDict):
    """Checkpoints, newest first."""

    checkpoints: list[Checkpoint]
    next_cursor: str | None


class Stats(TypedDict):
    """Figures of taking a checkpoint."""

    total_files: Annotated[int, "checkpoint.total_files"]
    new_blobs: Annotated[int, "checkpoint.new_blobs"]
    stored_bytes: Annotated[int, "checkpoint.stored_bytes"]
    elapsed_ms: Milliseconds


class Taken(TypedDict):
    """A new checkpoint, or with ``created`` false the one that already holds this state."""

    checkpoint_id: Annotated[str, "checkpoint.id"]
    snapshot_id: str | None
    """Of the blocks below it: null for a directory."""
    parent: Annotated[str | None, "checkpoint.parent"]
    label: Annotated[str, "checkpoint.label"]
    labels: Annotated[list[str], "checkpoint.labels"]
    kind: Annotated[str, "checkpoint.kind"]
    created: bool
    labelled: bool
    created_at: Annotated[Time, "checkpoint.created_at"]
    changes: Annotated[Counts, "checkpoint.changes"]
    not_captured: list[NotCaptured]
    stats: Stats


def file_mode(entry: Entry) -> str:
    """The permissions in octal, or that it is a link."""
    return "120000" if entry.is_symlink else f"{entry.permissions:04o}"


class File(TypedDict):
    """A file of a checkpoint."""

    path: Path
    hash: ContentHash
    size: int
    mode: Annotated[str, file_mode]


class FileList(TypedDict):
    """Files of a checkpoint, by path."""

    files: list[File]
    next_cursor: str | None


class Forked(TypedDict):
    """A fork that was made."""

    export: Export
    checkpoint: str
    """Its first one."""
    source: str
    written: int


class Written(TypedDict):
    """The result of a plan."""

    written: int
    deleted: int
    errors: list[NotCaptured]
    before: str
    """The checkpoint that holds the state before."""
    checkpoint: str
    """The one with the state that it led to."""


class Overlap(merges.Overlap):
    """A file that both lines of work have changed; docs/reference/json.md has the fields."""

    foreseen: Foreseen


class MergeTotals(TypedDict):
    """How long lists are of which only the beginning is shown."""

    writes: int
    deletes: int
    overlapping_files: int
    uncaptured: int


class Merged(merges.MergePlan):
    """The preview of a merge, as in ``merge --dry-run --json``."""

    overlapping_files: list[Overlap]
    totals: MergeTotals


class Promoted(merges.Promoted):
    """A promotion: as ``promote --json`` says it."""

    totals: dict[str, int]
    """How long ``overlapping_files``, ``uncaptured``, ``files`` and ``late`` really are: 1,000 items of each are
    shown.
    """


class PromotionSummary(TypedDict):
    """How a promotion has ended, in short."""

    id: Annotated[str, "row.id"]
    result: Annotated[PromotionResult, "answer.result"]
    phase: Annotated[PromotionPhase, "row.phase"]
    theirs: Annotated[str, "row.theirs"]
    checkpoint: Annotated[str, "answer.checkpoint"]
    failed_step: Annotated[str, "answer.failed_step"]
    code: Annotated[str, "answer.code"]
    message: Annotated[str, "answer.message"]
    created_at: Annotated[Time, "row.created_at"]
    updated_at: Annotated[Time, "row.updated_at"]


class PromotionList(TypedDict):
    """Promotions to an export, newest first."""

    promotions: list[PromotionSummary]
    next_cursor: str | None


class WaitingReapply(TypedDict):
    """A change that waits to be applied anew."""

    id: str
    path: str
    held: bool
    """An agent has taken it."""
    deadline: str


class ReapplyList(TypedDict):
    """Changes that wait, the oldest first."""

    reapplies: list[WaitingReapply]


class TakenReapply(TypedDict):
    """A change that is the caller's until ``held_until``, or none."""

    change: dict[str, Any] | None
    """As docs/reference/ladder.md has it for the rung ``command``, with ``id``, ``token``, ``held_until`` and
    ``deadline``."""


class AnsweredReapply(TypedDict):
    """The status of the answer. It writes nothing: the next promotion or merge uses it."""

    id: str
    status: Literal["answered", "declined"]


class SnapshotList(commands.Snapshots):
    """Snapshots of an export, as ``snapshot list --json`` says them."""

    totals: dict[str, int]


class Deleted(TypedDict):
    """The deleted object."""

    deleted: str


class Health(TypedDict):
    """The server runs, or is ready for work."""

    status: Literal["ok", "unavailable"]
    version: str
    checks: dict[str, str]


class Problem(TypedDict):
    """Why an operation failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """Stable: its meaning never changes."""
    hint: str | None
    data: dict[str, Any] | None
    request_id: str


class ListedSession(TypedDict):
    """A session, without its variables and its history."""

    id: str
    parent: str | None
    owner: str
    purpose: str
    root: Path | None
    directory: Annotated[SystemPath | None, "state.cwd"]
    created_at: Time
    updated_at: Time
    busy: bool
    forks: list[str]


class Session(ListedSession):
    """A session, with its last commands, the last first."""

    history: list[Command]


class SessionList(TypedDict):
    """The sessions of an export, newest first."""

    sessions: list[ListedSession]
    next_cursor: str | None
