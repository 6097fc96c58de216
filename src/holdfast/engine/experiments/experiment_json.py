"""What experiments, and the operations between sessions, answer, as JSON objects (docs/reference/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.encoding.workspace_json import not_captured, restore_result
from holdfast.engine.merging.three_way import CONFLICT_TEXTS
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.experiments.attempts import Difference, Outcome
    from holdfast.engine.experiments.experiment import Adoption, Experiment
    from holdfast.engine.merging.three_way import MergeConflict
    from holdfast.engine.sessions.exchange.bisection import BisectResult
    from holdfast.engine.sessions.exchange.command_replay import ReplayResult
    from holdfast.engine.sessions.exchange.state_merge import SessionMerge
    from holdfast.model.command_results import Diff
    from holdfast.model.entries import Change

Json = dict[str, Any]


def experiment(found: Experiment, adopted: Adoption | None) -> Json:
    """An experiment, and what was adopted of it."""
    comparison = found.comparison
    statistics = comparison.statistics
    return {
        "experiment": comparison.experiment,
        "session": comparison.session,
        "fork_point": comparison.fork_point,
        "measure": comparison.measure,
        "winner": None if comparison.winner is None else comparison.winner.attempt.number,
        "kept": comparison.kept,
        "attempts": [_outcome(one, found.files(one), found.is_kept(one)) for one in comparison.ranked],
        "differences": [_difference(one) for one in comparison.differences],
        "statistics": {
            "attempts": statistics.attempts,
            "succeeded": statistics.succeeded,
            "success_rate": statistics.success_rate,
            "min_ms": statistics.min_ms,
            "max_ms": statistics.max_ms,
            "average_ms": statistics.average_ms,
            "median_ms": statistics.median_ms,
        },
        "adopted": None if adopted is None else {**restore_result(adopted.restored), "state": adopted.checkpoint.hash},
    }


def _outcome(outcome: Outcome, files: Diff | None, kept: bool) -> Json:
    result, attempt = outcome.result, outcome.attempt
    return {
        "attempt": attempt.number,
        "name": attempt.name,
        "command": attempt.command,
        "env": dict(attempt.env),
        "shell": attempt.shell,
        "timeout": attempt.timeout_seconds,
        "status": outcome.phase,
        "exit_code": None if result is None else result.exit_code,
        "stdout": "" if result is None else result.stdout,
        "stderr": "" if result is None else result.stderr,
        "truncated": result is not None and result.truncated,
        "duration_ms": outcome.duration_ms,
        "score": outcome.score,
        "error": outcome.error,
        "fork": outcome.fork if kept else None,
        "directory": display(outcome.root) if kept else None,
        "before": outcome.before,
        "after": outcome.after,
        "changed": _files(files),
        "not_captured": not_captured(outcome.not_captured),
    }


def _difference(difference: Difference) -> Json:
    return {
        "a": difference.a,
        "b": difference.b,
        "exit_code": difference.exit_code,
        "stdout": difference.stdout,
        "stderr": difference.stderr,
        "files": _files(difference.files),
    }


def _files(diff: Diff | None) -> Json | None:
    """Changed paths, by what happened to them."""
    if diff is None:
        return None
    return {
        **changed(diff.changes),
        "renamed": [{"from": display(one.before_path), "to": display(one.path)} for one in diff.renamed],
    }


def changed(changes: Sequence[Change]) -> Json:
    """``added``, ``modified``, ``deleted``: paths."""
    return {
        "added": [display(one.path) for one in changes if one.before is None],
        "modified": [display(one.path) for one in changes if one.before is not None and one.after is not None],
        "deleted": [display(one.path) for one in changes if one.after is None],
    }


def conflicts(found: Sequence[MergeConflict]) -> list[Json]:
    """Each ``path`` with ``there`` (where it is on the other side), ``why`` and the same for people."""
    return [
        {"path": display(one.path), "there": display(one.there), "why": one.why, "reason": CONFLICT_TEXTS[one.why]}
        for one in found
    ]


def merged(found: SessionMerge, dry_run: bool) -> Json:
    """What merging a session or picking a command did, or would do."""
    plan, restored_ = found.merged.plan, found.merged.restored
    return {
        "source": found.source,
        "base": found.merged.base,
        "before": found.merged.ours,
        "theirs": found.merged.theirs,
        **changed(plan.changes),
        "conflicts": conflicts(plan.conflicts),
        "settled": conflicts(plan.settled),
        "uncaptured": [display(path) for path in found.merged.uncaptured],
        "not_captured": not_captured(found.not_captured),
        "dry_run": dry_run,
        "state": None if found.checkpoint is None else found.checkpoint.hash,
        "restored": None if restored_ is None else restore_result(restored_),
    }


def bisected(found: BisectResult) -> Json:
    """What a search has found, and what it has tried."""
    return {
        "candidates": [one.id for one in found.candidates],
        "command": None if found.command is None else {"seq": found.command.seq, "command": found.command.command},
        "tried": [
            {
                "checkpoint": one.checkpoint.id,
                "verdict": one.verdict,
                "exit_code": one.exit_code,
                "duration_ms": one.duration_ms,
            }
            for one in found.tried
        ],
    }


def replayed(source: str, done: ReplayResult) -> Json:
    """What was run again, and what was not."""
    return {
        "source": source,
        "repeated": [
            {
                "seq": one.before.seq,
                "now": one.now.seq,
                "command": one.before.command,
                "exit_code": None if one.now.result is None else one.now.result.exit_code,
                "same_end": one.same_end,
                "same_output": one.same_output,
            }
            for one in done.repeated
        ],
        "left": [entry.seq for entry in done.left],
        "stopped": done.stopped,
    }
