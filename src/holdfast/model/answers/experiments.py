"""Answers about experiments, and about what sessions take from each other."""

from __future__ import annotations

from holdfast.model.answers.merges import FileRecord, OpenOverlap
from holdfast.model.answers.workspace import NotCaptured, Paths, Restored, added_paths, deleted_paths, modified_paths
from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import Path


class RenamedPath(TypedDict):
    """A renamed file."""

    from_: Annotated[Path, "before_path"]
    to: Annotated[Path, "path"]


class ChangedFiles(Paths):
    """Changed paths."""

    renamed: list[RenamedPath]


class Attempt(TypedDict):
    """An attempt."""

    attempt: Annotated[int, "attempt.number"]
    """Its number from 1, in the order given."""
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
    """Output was left out."""
    duration_ms: int
    score: float | None
    error: str
    """Why the attempt ended early, or has no score."""
    fork: str | None
    """Null unless its fork stays."""
    directory: Path | None
    before: str | None
    """A checkpoint; it goes with the fork."""
    after: str | None
    """A checkpoint; it goes with the fork."""
    changed: ChangedFiles | None
    """Against the state that all began with."""
    not_captured: list[NotCaptured]
    """Files left behind that no checkpoint holds."""


class AttemptDifference(TypedDict):
    """The difference of two attempts."""

    a: int
    """The number of an attempt."""
    b: int
    """The number of another."""
    exit_code: int
    """The exit code of a minus that of b."""
    stdout: str
    """A unified diff."""
    stderr: str
    """A unified diff."""
    files: ChangedFiles | None


class Statistics(TypedDict):
    """All attempts together."""

    attempts: int
    succeeded: int
    success_rate: float
    min_ms: int
    """The times are of attempts that ran to their own end."""
    max_ms: int
    average_ms: float
    median_ms: float


class Adopted(Restored):
    """The adopted changes."""

    state: str
    """The session's saved state with it."""


class Experiment(TypedDict):
    """An experiment."""

    experiment: Annotated[str, "comparison.experiment"]
    """Its id."""
    session: Annotated[str, "comparison.session"]
    fork_point: Annotated[str, "comparison.fork_point"]
    """The saved state that all began with."""
    measure: Annotated[str, "comparison.measure"]
    """``exit_code``, ``output``, ``duration`` or ``score``."""
    winner: Annotated[int | None, "comparison.winner.attempt.number"]
    """The number of the best attempt."""
    kept: Annotated[bool, "comparison.kept"]
    """All forks are still there."""
    attempts: list[Attempt]
    """The best first."""
    differences: Annotated[list[AttemptDifference], "comparison.differences"]
    """Of all pairs; of more than ten attempts, of each with the best."""
    statistics: Annotated[Statistics, "comparison.statistics"]
    adopted: Adopted | None


class MergeConflict(TypedDict):
    """A file that both sides changed."""

    path: Path
    there: Path
    """Its path on the other side."""
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
    """A merge or a pick, done or planned."""

    source: str
    """The other session."""
    base: Annotated[str, "merged.plan.base"]
    """The common checkpoint."""
    before: Annotated[str, "merged.plan.production"]
    """The checkpoint of this session before."""
    theirs: Annotated[str, "merged.plan.fork"]
    """The checkpoint that is merged."""
    added: Annotated[list[Path], merge_added]
    modified: Annotated[list[Path], merge_modified]
    deleted: Annotated[list[Path], merge_deleted]
    conflicts: list[MergeConflict]
    settled: list[MergeConflict]
    """Conflicts that a person or a preference decided."""
    files: Annotated[list[FileRecord], "merged.prepared.records"]
    overlapping_files: list[OpenOverlap]
    """The open ones."""
    uncaptured: Annotated[list[Path], "merged.plan.uncaptured"]
    not_captured: list[NotCaptured]
    """Files of the other session that no checkpoint holds; empty for ``pick``."""
    dry_run: bool
    state: Annotated[str | None, "checkpoint.hash"]
    """The session's saved state with it."""
    restored: Annotated[Restored | None, "merged.restored"]


class BadCommand(TypedDict):
    """A command."""

    seq: int
    command: str


class TriedState(TypedDict):
    """A tested state."""

    checkpoint: Annotated[str, "checkpoint.id"]
    verdict: str
    """``good``, ``bad`` or ``skip``."""
    exit_code: int
    duration_ms: int


def candidate_ids(found: Any) -> list[str]:
    """The ids of the states of which one is the first bad one."""
    return [one.id for one in found.candidates]


class Bisected(TypedDict):
    """The result of the search."""

    candidates: Annotated[list[str], candidate_ids]
    """The first bad one; of several it is one of them."""
    command: BadCommand | None
    """The session's command that made it."""
    tried: list[TriedState]


class RepeatedCommand(TypedDict):
    """A command that was run again."""

    seq: Annotated[int, "before.seq"]
    """In the other session."""
    now: Annotated[int, "now.seq"]
    """In this one."""
    command: Annotated[str, "before.command"]
    exit_code: Annotated[int | None, "now.result.exit_code"]
    same_end: bool
    same_output: bool


def left_numbers(done: Any) -> list[int]:
    """The numbers of the commands that were not run."""
    return [entry.seq for entry in done.left]


class Replayed(TypedDict):
    """The commands that were run again."""

    source: str
    repeated: list[RepeatedCommand]
    left: Annotated[list[int], left_numbers]
    """Numbers of commands that were not run."""
    stopped: bool
    """The last one ended with another exit code than before."""
