"""Answers about experiments, and about what sessions take from each other."""

from __future__ import annotations

from holdfast.model.answers.merges import FileRecord, OpenOverlap
from holdfast.model.answers.workspace import NotCaptured, Paths, Restored, added_paths, deleted_paths, modified_paths
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import Path


class RenamedPath(TypedDict):
    """A file under its new name."""

    from_: Annotated[Path, "before_path"]
    to: Annotated[Path, "path"]


class ChangedFiles(Paths):
    """Changed paths, by what happened to them."""

    renamed: list[RenamedPath]


class Attempt(TypedDict):
    """How an attempt has ended."""

    attempt: Annotated[int, "attempt.number"]
    name: Annotated[str, "attempt.name"]
    command: Annotated[str, "attempt.command"]
    env: Annotated[dict[str, str], "attempt.env"]
    shell: Annotated[str | None, "attempt.shell"]
    timeout: Annotated[float | None, "attempt.timeout_seconds"]
    status: Annotated[str, "phase"]
    exit_code: Annotated[int | None, "result.exit_code"]
    stdout: Annotated[str, "result.stdout", ""]
    stderr: Annotated[str, "result.stderr", ""]
    truncated: Annotated[bool, "result.truncated", False]
    duration_ms: int
    score: float | None
    error: str
    fork: str | None
    directory: Path | None
    before: str | None
    after: str | None
    changed: ChangedFiles | None
    not_captured: list[NotCaptured]


class AttemptDifference(TypedDict):
    """How the ends of two attempts differ."""

    a: int
    b: int
    exit_code: int
    stdout: str
    stderr: str
    files: ChangedFiles | None


class Statistics(TypedDict):
    """About all attempts together."""

    attempts: int
    succeeded: int
    success_rate: float
    min_ms: int
    max_ms: int
    average_ms: float
    median_ms: float


class Adopted(Restored):
    """What was brought to the session's tree."""

    state: str


class Experiment(TypedDict):
    """An experiment, and what was adopted of it."""

    experiment: Annotated[str, "comparison.experiment"]
    session: Annotated[str, "comparison.session"]
    fork_point: Annotated[str, "comparison.fork_point"]
    measure: Annotated[str, "comparison.measure"]
    winner: Annotated[int | None, "comparison.winner.attempt.number"]
    kept: Annotated[bool, "comparison.kept"]
    attempts: list[Attempt]
    differences: Annotated[list[AttemptDifference], "comparison.differences"]
    statistics: Annotated[Statistics, "comparison.statistics"]
    adopted: Adopted | None


class MergeConflict(TypedDict):
    """A file that both sides have changed."""

    path: Path
    there: Path
    why: str
    reason: str


def merge_added(found: Any) -> list[bytes]:
    """The paths that a merge adds."""
    return added_paths(found.merged.plan.stacked.plan)


def merge_modified(found: Any) -> list[bytes]:
    """The paths that it modifies."""
    return sorted([*modified_paths(found.merged.plan.stacked.plan), *found.put_together])


def merge_deleted(found: Any) -> list[bytes]:
    """The paths that it deletes."""
    return deleted_paths(found.merged.plan.stacked.plan)


class SessionMerge(TypedDict):
    """What merging a session or picking a command did, or would do."""

    source: str
    base: Annotated[str, "merged.plan.base"]
    before: Annotated[str, "merged.plan.production"]
    theirs: Annotated[str, "merged.plan.fork"]
    added: Annotated[list[Path], merge_added]
    modified: Annotated[list[Path], merge_modified]
    deleted: Annotated[list[Path], merge_deleted]
    conflicts: list[MergeConflict]
    settled: list[MergeConflict]
    files: Annotated[list[FileRecord], "merged.prepared.records"]
    overlapping_files: list[OpenOverlap]
    uncaptured: Annotated[list[Path], "merged.plan.uncaptured"]
    not_captured: list[NotCaptured]
    dry_run: bool
    state: Annotated[str | None, "checkpoint.hash"]
    restored: Annotated[Restored | None, "merged.restored"]


class BadCommand(TypedDict):
    """The command that made a bad state."""

    seq: int
    command: str


class TriedState(TypedDict):
    """A state that was asked about."""

    checkpoint: Annotated[str, "checkpoint.id"]
    verdict: str
    exit_code: int
    duration_ms: int


def candidate_ids(found: Any) -> list[str]:
    """The ids of the states of which one is the first bad one."""
    return [one.id for one in found.candidates]


class Bisected(TypedDict):
    """What a search has found, and what it has tried."""

    candidates: Annotated[list[str], candidate_ids]
    command: BadCommand | None
    tried: list[TriedState]


class RepeatedCommand(TypedDict):
    """A command that was run again."""

    seq: Annotated[int, "before.seq"]
    now: Annotated[int, "now.seq"]
    command: Annotated[str, "before.command"]
    exit_code: Annotated[int | None, "now.result.exit_code"]
    same_end: bool
    same_output: bool


def left_numbers(done: Any) -> list[int]:
    """The numbers of the commands that were not run."""
    return [entry.seq for entry in done.left]


class Replayed(TypedDict):
    """What was run again, and what was not."""

    source: str
    repeated: list[RepeatedCommand]
    left: Annotated[list[int], left_numbers]
    stopped: bool
