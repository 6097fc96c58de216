"""Answers about merges and promotions."""

from __future__ import annotations

import json

from holdfast.model.answers.workspace import NotCaptured, Restored
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any, NotRequired

    from holdfast.model.answers.words import (
        Forecast,
        MergeOutcome,
        Path,
        PromotionIsolation,
        PromotionPhase,
        PromotionResult,
        Rung,
        Time,
    )


class MergeCounts(TypedDict):
    """Numbers of files."""

    apply_theirs: int
    keep_production: int
    deletes: int
    unchanged: int
    overlapping: int
    identical: int


def rung_words(attempt: Any) -> str | None:
    """The words of a rung, if it has any."""
    return attempt.said or None


class ForeseenRung(TypedDict):
    """The forecast of one rung."""

    rung: Rung
    result: Forecast
    said: NotRequired[Annotated[str, rung_words]]
    """Why it declines."""


class Foreseen(TypedDict):
    """A forecast of ``merge.ladder``, in its order."""

    applies: bool
    """All of it, without a question."""
    rungs: list[ForeseenRung]


def count_changesets(overlap: Any) -> int:
    """How many changesets have touched a file."""
    return len(overlap.numbers)


class Overlap(TypedDict):
    """A file that both sides changed."""

    path: Path
    production_path: Annotated[Path, "conflict.path"]
    """Where it is, or was, here."""
    fork_path: Annotated[Path, "conflict.there"]
    """Where it is, or was, in the fork."""
    changeset_count: Annotated[int, count_changesets]
    changesets: Annotated[list[int], "numbers"]
    why: str
    """See docs/reference/merge.md."""
    detail: str
    """For people."""
    version: str
    can_reapply: Annotated[bool, "is_applicable"]
    """New content is all that it needs."""


class OpenOverlap(Overlap):
    """An open overlap."""

    production_diff: NotRequired[str]
    fork_diff: NotRequired[str]
    foreseen: NotRequired[Foreseen]
    """Only of a dry run; the diffs only of a real one."""


def plan_writes(plan: Any) -> list[bytes]:
    """The paths that a plan writes."""
    return [change.path for change in plan.writes]


def plan_deletes(plan: Any) -> list[bytes]:
    """The paths that a plan deletes."""
    return [change.path for change in plan.deletes]


class MergePlan(TypedDict):
    """A plan of a merge."""

    result: MergeOutcome
    """``needs_reapply``: some overlaps are open."""
    fork_checkpoint: Annotated[str, "base"]
    """The fork point."""
    production_checkpoint: Annotated[str, "production"]
    promote_checkpoint: Annotated[str, "fork"]
    """The fork's state."""
    changesets: int
    """Of the fork since its fork point."""
    straight: Annotated[bool, "is_straight"]
    """Production has not changed since."""
    changes: Annotated[MergeCounts, "counts"]
    writes: Annotated[list[Path], plan_writes]
    deletes: Annotated[list[Path], plan_deletes]
    uncaptured: list[Path]
    """Paths that the fork only stopped capturing; they stay."""


def question_id(attempt: Any) -> str | None:
    """The id of a pending question; None otherwise."""
    return attempt.id or None


class RungAttempt(TypedDict):
    """An attempt of a rung."""

    rung: str
    changesets: Annotated[list[int], "numbers"]
    result: str
    said: NotRequired[Annotated[str, rung_words]]
    id: NotRequired[Annotated[str, question_id]]


class FileRecord(TypedDict):
    """A record of a file."""

    path: Path
    why: str
    version: str
    outcome: str
    tried: list[RungAttempt]


class Merged(MergePlan):
    """A merge."""

    overlapping_files: NotRequired[list[OpenOverlap]]
    dry_run: bool
    files: list[FileRecord]
    """See docs/reference/merge.md#what-is-recorded."""
    merged: str | None
    """The merged state."""
    restored: Restored | None
    """Null if the tree was untouched."""
    not_captured: list[NotCaptured]
    """Of the fork: files in no checkpoint and missing here."""


class PromotionOverlap(TypedDict):
    """An overlap of a promotion."""

    path: str
    changeset_count: int
    detail: str
    why: str
    version: str
    """For a decision."""
    production_diff: NotRequired[str]
    """Missing if all differences together exceed a million letters."""
    fork_diff: NotRequired[str]


class ForeseenOverlap(PromotionOverlap):
    """A foreseen overlap."""

    foreseen: NotRequired[Foreseen]


class PromotionPlan(TypedDict):
    """With ``--dry-run``."""

    result: str
    """``clean``, ``unchanged`` or ``needs_reapply``."""
    changesets: int
    changes: MergeCounts | None
    overlapping_files: list[ForeseenOverlap]
    uncaptured: list[str]


class InUse(TypedDict):
    """A process."""

    pid: int
    command: str


class Restarted(TypedDict):
    """The restart."""

    exit_code: int
    output: str


def file_records(promotion: Any) -> list[Any]:
    """The result for each file that both sides have changed, with the work of each rung of the ladder."""
    record = promotion.facts.record
    return json.loads(record)["files"] if record else []


class Promoted(TypedDict):
    """A promotion."""

    id: Annotated[str, "row.id"]
    result: Annotated[PromotionResult, "answer.result"]
    """Empty while under way."""
    changesets: Annotated[int, "facts.changesets"]
    """Of the fork."""
    changes: Annotated[MergeCounts | None, "facts.changes"]
    overlapping_files: Annotated[list[PromotionOverlap], "answer.overlapping_files"]
    uncaptured: Annotated[list[str], "facts.uncaptured"]
    files: Annotated[list[dict[str, Any]], file_records]
    """See docs/reference/merge.md#what-is-recorded."""
    production: Annotated[str, "path"]
    """Its path."""
    phase: Annotated[PromotionPhase, "row.phase"]
    theirs: Annotated[str, "row.theirs"]
    """The promoted checkpoint."""
    checkpoint: Annotated[str, "answer.checkpoint"]
    """Production's new state."""
    previous: Annotated[str, "answer.previous"]
    """Production's former state."""
    provider: Annotated[str, "facts.provider"]
    """See docs/reference/promote.md#the-copy."""
    provider_reason: Annotated[str, "facts.provider_reason"]
    isolation: Annotated[PromotionIsolation, "facts.isolation"]
    """Of the commands; empty if none ran."""
    isolation_reason: Annotated[str, "facts.isolation_reason"]
    """Of ``none``: why."""
    atomic: Annotated[bool, "answer.atomic"]
    """False: files were copied one by one, because of ``hindrance``."""
    hindrance: Annotated[str, "facts.hindrance"]
    undo_command: Annotated[str, "answer.undo_command"]
    failed_step: Annotated[str, "answer.failed_step"]
    """``setup_command``, ``build_command``, ``start_command`` or ``health_check``."""
    command: Annotated[str, "answer.command"]
    exit_code: Annotated[int, "answer.exit_code"]
    output: Annotated[str, "answer.output"]
    """The last part."""
    code: Annotated[str, "answer.code"]
    message: Annotated[str, "answer.message"]
    recovery: Annotated[str, "answer.recovery"]
    replans: Annotated[int, "facts.replans"]
    """How often production changed meanwhile."""
    late: Annotated[list[str], "facts.late"]
    """Paths written in the old directory after the swap."""
    used_by: Annotated[list[InUse], "facts.used_by"]
    """Processes still in the old directory."""
    kept: Annotated[str, "facts.kept"]
    """The old directory, if kept."""
    restart: Annotated[Restarted | None, "facts.restart"]
    created_at: Annotated[Time, "row.created_at"]
    updated_at: Annotated[Time, "row.updated_at"]


class Promotions(TypedDict):
    """With ``--list``."""

    promotions: list[Promoted]
    """Oldest first."""


class PromotionSweep(TypedDict):
    """With ``--sweep``."""

    settled: list[str]
    """Interrupted promotions."""
    removed: list[str]
    kept: list[str]
    busy: list[str]
    """Another process works on them."""


class PromotionStep(TypedDict):
    """With ``--steps``, as each begins."""

    step: str
    """``plan``, ``copy``, ``setup``, ``build``, ``check``, ``swap``, ``restart`` or ``finish``."""
