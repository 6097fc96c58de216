"""Answers about experiments, and about what sessions take from each other."""

from __future__ import annotations

from holdfast.model.answers.merges import FileRecord, OpenOverlap
from holdfast.model.answers.workspace import NotCaptured, Paths, Restored, added_paths, deleted_paths, modified_paths
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import Path


class RenamedPath(TypedDict):
    """A renamed path."""

    from_: Annotated[Path, "before_path"]
    to: Annotated[Path, "path"]


class ChangedFiles(Paths):
    """Changed files."""

    renamed: list[RenamedPath]


class Attempt(TypedDict):
    """An attempt."""

    attempt: Annotated[int, "attempt.number"]
    """From 1, in the order given."""
    name: Annotated[str, "attempt.name"]
    command: Annotated[str, "attempt.command"]
    env: Annotated[dict[str, str], "attempt.env"]
    shell: Annotated[str | None, "attempt.shell"]
    """Null: the session's."""
    timeout: Annotated[float | None, "attempt.timeout_seconds"]
    """Seconds; null: the session's."""
    status: Annotated[str, "phase"]
    """``done``, ``failed``, ``timed out`` or ``cancelled``."""
    exit_code: Annotated[int | None, "result.exit_code"]
    stdout: Annotated[str, "result.stdout", ""]
    stderr: Annotated[str, "result.stderr", ""]
    truncated: Annotated[bool, "result.truncated", False]
    """Output is missing."""
    duration_ms: int
    score: float | None
    error: str
    """Why it ended early or has no score."""
    fork: str | None
    """If it stays."""
    directory: Path | None
    before: str | None
    """A checkpoint that goes with the fork."""
    after: str | None
    """A checkpoint that goes with the fork."""
    changed: ChangedFiles | None
    """Since ``fork_point``."""
    not_captured: list[NotCaptured]
    """Files left behind."""


class AttemptDifference(TypedDict):
    """The difference of attempts."""

    a: int
    """An attempt."""
    b: int
    """Another."""
    exit_code: int
    """``a`` minus ``b``."""
    stdout: str
    """Unified diff."""
    stderr: str
    """Unified diff."""
    files: ChangedFiles | None


class Statistics(TypedDict):
    """Of all attempts; times of those that ran to their own end."""

    attempts: int
    succeeded: int
    success_rate: float
    min_ms: int
    max_ms: int
    average_ms: float
    median_ms: float


class Adopted(Restored):
    """The adoption."""

    state: str
    """The saved state with the changes."""


class Experiment(TypedDict):
    """An experiment."""

    experiment: Annotated[str, "comparison.experiment"]
    session: Annotated[str, "comparison.session"]
    fork_point: Annotated[str, "comparison.fork_point"]
    """The saved state that all began with."""
    measure: Annotated[str, "comparison.measure"]
    """``exit_code``, ``output``, ``duration`` or ``score``."""
    winner: Annotated[int | None, "comparison.winner.attempt.number"]
    """The best attempt."""
    kept: Annotated[bool, "comparison.kept"]
    """All forks stay."""
    attempts: list[Attempt]
    """The best first."""
    differences: Annotated[list[AttemptDifference], "comparison.differences"]
    """Of all pairs; of more than ten attempts, of each with the best."""
    statistics: Annotated[Statistics, "comparison.statistics"]
    adopted: Adopted | None


class MergeConflict(TypedDict):
    """A conflict of a merge."""

    path: Path
    there: Path
    """On the other side."""
    why: str
    """See docs/reference/merge.md#sessions."""
    reason: str
    """For people."""


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
    """A merge or a pick."""

    source: str
    """The other session."""
    base: Annotated[str, "merged.plan.base"]
    """The common checkpoint."""
    before: Annotated[str, "merged.plan.production"]
    """This session's."""
    theirs: Annotated[str, "merged.plan.fork"]
    """The merged one."""
    added: Annotated[list[Path], merge_added]
    modified: Annotated[list[Path], merge_modified]
    deleted: Annotated[list[Path], merge_deleted]
    conflicts: list[MergeConflict]
    settled: list[MergeConflict]
    """Decided by a person or a preference."""
    files: Annotated[list[FileRecord], "merged.prepared.records"]
    overlapping_files: list[OpenOverlap]
    uncaptured: Annotated[list[Path], "merged.plan.uncaptured"]
    not_captured: list[NotCaptured]
    """Of the other session; empty for ``pick``."""
    dry_run: bool
    state: Annotated[str | None, "checkpoint.hash"]
    """The saved state with the changes."""
    restored: Annotated[Restored | None, "merged.restored"]


class BadCommand(TypedDict):
    """A bad command."""

    seq: int
    command: str


class TriedState(TypedDict):
    """A tried state."""

    checkpoint: Annotated[str, "checkpoint.id"]
    verdict: str
    """``good``, ``bad`` or ``skip``."""
    exit_code: int
    duration_ms: int


def candidate_ids(found: Any) -> list[str]:
    """The ids of the states of which one is the first bad one."""
    return [one.id for one in found.candidates]


class Bisected(TypedDict):
    """The bisection."""

    candidates: Annotated[list[str], candidate_ids]
    """The first bad state; if several, it is among them."""
    command: BadCommand | None
    """The session's command that made that state."""
    tried: list[TriedState]


class RepeatedCommand(TypedDict):
    """A repeated command."""

    seq: Annotated[int, "before.seq"]
    """In ``source``."""
    now: Annotated[int, "now.seq"]
    """In this session."""
    command: Annotated[str, "before.command"]
    exit_code: Annotated[int | None, "now.result.exit_code"]
    same_end: bool
    same_output: bool


def left_numbers(done: Any) -> list[int]:
    """The numbers of the commands that were not run."""
    return [entry.seq for entry in done.left]


class Replayed(TypedDict):
    """The replay."""

    source: str
    repeated: list[RepeatedCommand]
    left: Annotated[list[int], left_numbers]
    """Commands not run."""
    stopped: bool
    """The last exit code differed from before."""
