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
    """How many files are which."""

    apply_theirs: int
    keep_production: int
    deletes: int
    unchanged: int
    overlapping: int
    identical: int


def rung_words(attempt: Any) -> str | None:
    """What a rung has to say, if anything."""
    return attempt.said or None


class ForeseenRung(TypedDict):
    """What one rung of `merge.ladder` would do about a file."""

    rung: Rung
    result: Forecast
    said: NotRequired[Annotated[str, rung_words]]
    """Why it declines."""


class Foreseen(TypedDict):
    """What the ladder would do about a file: the first rung is asked, or tried, first."""

    applies: bool
    rungs: list[ForeseenRung]


def count_changesets(overlap: Any) -> int:
    """How many changesets have touched a file."""
    return len(overlap.numbers)


class Overlap(TypedDict):
    """A file that both lines of work have changed."""

    path: Path
    production_path: Annotated[Path, "conflict.path"]
    fork_path: Annotated[Path, "conflict.there"]
    changeset_count: Annotated[int, count_changesets]
    changesets: Annotated[list[int], "numbers"]
    why: str
    detail: str
    version: str
    can_reapply: Annotated[bool, "is_applicable"]


class OpenOverlap(Overlap):
    """One that is not settled: what was changed in it, or, of a dry run, what the ladder would do about it."""

    production_diff: NotRequired[str]
    fork_diff: NotRequired[str]
    foreseen: NotRequired[Foreseen]


def plan_writes(plan: Any) -> list[bytes]:
    """What a plan writes."""
    return [change.path for change in plan.writes]


def plan_deletes(plan: Any) -> list[bytes]:
    """What it deletes."""
    return [change.path for change in plan.deletes]


class MergePlan(TypedDict):
    """What a merge would come to."""

    result: MergeOutcome
    fork_checkpoint: Annotated[str, "base"]
    production_checkpoint: Annotated[str, "production"]
    promote_checkpoint: Annotated[str, "fork"]
    changesets: int
    straight: Annotated[bool, "is_straight"]
    changes: Annotated[MergeCounts, "counts"]
    writes: Annotated[list[Path], plan_writes]
    deletes: Annotated[list[Path], plan_deletes]
    uncaptured: list[Path]
    """What the fork captures no more, and has not deleted: it stays as production has it."""


def question_id(attempt: Any) -> str | None:
    """What a question that is pending is called, if it is one."""
    return attempt.id or None


class RungAttempt(TypedDict):
    """What one rung did about one change."""

    rung: str
    changesets: Annotated[list[int], "numbers"]
    result: str
    said: NotRequired[Annotated[str, rung_words]]
    id: NotRequired[Annotated[str, question_id]]


class FileRecord(TypedDict):
    """What became of one file that both sides have changed."""

    path: Path
    why: str
    version: str
    outcome: str
    tried: list[RungAttempt]


class Merged(MergePlan):
    """What a merge did, or would do."""

    overlapping_files: NotRequired[list[OpenOverlap]]
    dry_run: bool
    files: list[FileRecord]
    merged: str | None
    restored: Restored | None
    not_captured: list[NotCaptured]


class PromotionOverlap(TypedDict):
    """A file that both sides have changed."""

    path: str
    changeset_count: int
    detail: str
    why: str
    version: str
    """What a decision of it is for."""
    production_diff: NotRequired[str]
    fork_diff: NotRequired[str]


class ForeseenOverlap(PromotionOverlap):
    """One of a dry run, with what the ladder would do about it."""

    foreseen: NotRequired[Foreseen]


class PromotionPlan(TypedDict):
    """What would become of a promotion."""

    result: str
    changesets: int
    changes: MergeCounts | None
    overlapping_files: list[ForeseenOverlap]
    uncaptured: list[str]


class InUse(TypedDict):
    """A process that is still in the directory that was production."""

    pid: int
    command: str


class Restarted(TypedDict):
    """How the restart went."""

    exit_code: int
    output: str


def file_records(promotion: Any) -> list[Any]:
    """What became of each file that both sides have changed, and what each rung of the ladder did about it."""
    record = promotion.facts.record
    return json.loads(record)["files"] if record else []


class Promoted(TypedDict):
    """A promotion; the fields of its result are there whatever that is, and empty where they do not apply."""

    id: Annotated[str, "row.id"]
    result: Annotated[PromotionResult, "answer.result"]
    """Empty while it is under way, or was cut short."""
    changesets: Annotated[int, "facts.changesets"]
    changes: Annotated[MergeCounts | None, "facts.changes"]
    overlapping_files: Annotated[list[PromotionOverlap], "answer.overlapping_files"]
    uncaptured: Annotated[list[str], "facts.uncaptured"]
    files: Annotated[list[dict[str, Any]], file_records]
    """What became of each file that both sides have changed, and what each rung did: docs/reference/merge.md."""
    production: Annotated[str, "path"]
    phase: Annotated[PromotionPhase, "row.phase"]
    theirs: Annotated[str, "row.theirs"]
    checkpoint: Annotated[str, "answer.checkpoint"]
    previous: Annotated[str, "answer.previous"]
    provider: Annotated[str, "facts.provider"]
    provider_reason: Annotated[str, "facts.provider_reason"]
    isolation: Annotated[PromotionIsolation, "facts.isolation"]
    """Where the commands ran; empty if none did."""
    isolation_reason: Annotated[str, "facts.isolation_reason"]
    atomic: Annotated[bool, "answer.atomic"]
    hindrance: Annotated[str, "facts.hindrance"]
    undo_command: Annotated[str, "answer.undo_command"]
    failed_step: Annotated[str, "answer.failed_step"]
    command: Annotated[str, "answer.command"]
    exit_code: Annotated[int, "answer.exit_code"]
    output: Annotated[str, "answer.output"]
    code: Annotated[str, "answer.code"]
    message: Annotated[str, "answer.message"]
    recovery: Annotated[str, "answer.recovery"]
    replans: Annotated[int, "facts.replans"]
    late: Annotated[list[str], "facts.late"]
    used_by: Annotated[list[InUse], "facts.used_by"]
    kept: Annotated[str, "facts.kept"]
    restart: Annotated[Restarted | None, "facts.restart"]
    created_at: Annotated[Time, "row.created_at"]
    updated_at: Annotated[Time, "row.updated_at"]


class Promotions(TypedDict):
    """The promotions, oldest first."""

    promotions: list[Promoted]


class PromotionSweep(TypedDict):
    """What a sweep did."""

    settled: list[str]
    removed: list[str]
    kept: list[str]
    busy: list[str]


class PromotionStep(TypedDict):
    """A step of a promotion that begins."""

    step: str
