"""Which of several attempts is the best, and how they differ. Pure: the caller, which has the trees, compares files."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean, median
from typing import TYPE_CHECKING

from holdfast.engine.diffs.git_patch import hunks
from holdfast.engine.experiments.attempts import Difference, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.experiments.attempts import Measure, Outcome
    from holdfast.model.command_results import Diff
    from holdfast.model.ids import CheckpointId

MAX_PAIRS = 45
"""The most pairs of attempts to compare (all, of ten); with more attempts, each is compared with the best."""

_NEVER = math.inf


def rank(outcomes: Sequence[Outcome], measure: Measure, *, highest: bool = False) -> list[Outcome]:
    """``outcomes``, the best first.

    Successful attempts come first, then failed ones, then incomplete ones. Within each group the lower exit code, the
    shorter output, or the shorter duration is better. By ``score`` the lower one is better (with ``highest`` the
    higher), whatever the exit code, and attempts without a score are last. Ties go to the quicker one, then to the one
    that was named first.
    """
    return sorted(outcomes, key=lambda one: (*_rank(one, measure, highest), one.duration_ms, one.attempt.number))


def _rank(outcome: Outcome, measure: Measure, highest: bool) -> tuple[float, ...]:
    code = _NEVER if outcome.result is None else outcome.result.exit_code
    ended = 0 if outcome.succeeded else 1 if outcome.phase in ("done", "failed") and outcome.result is not None else 2
    match measure:
        case "score":
            score = outcome.score
            return (0, -score if highest else score) if score is not None else (1, ended, code)
        case "duration":
            return (ended, outcome.duration_ms, code)
        case "output":
            return (ended, _printed(outcome), code)
        case "exit_code":
            return (ended, code)


def _printed(outcome: Outcome) -> float:
    """The size of its output; infinite if a part was left out."""
    if outcome.result is None or outcome.result.truncated:
        return _NEVER
    return len(outcome.result.stdout)


def best(ranked: Sequence[Outcome], measure: Measure) -> Outcome | None:
    """The first of ``ranked``, if it is any good."""
    if not ranked:
        return None
    first = ranked[0]
    good = first.score is not None if measure == "score" else first.succeeded
    return first if good else None


def statistics(outcomes: Sequence[Outcome]) -> Statistics:
    """About all of them together."""
    times = [one.duration_ms for one in outcomes if one.phase in ("done", "failed") and one.result is not None]
    return Statistics(
        attempts=len(outcomes),
        succeeded=sum(one.succeeded for one in outcomes),
        min_ms=min(times, default=0),
        max_ms=max(times, default=0),
        average_ms=fmean(times) if times else 0.0,
        median_ms=float(median(times)) if times else 0.0,
    )


def differences(
    ranked: Sequence[Outcome], files: Callable[[CheckpointId, CheckpointId], Diff | None]
) -> list[Difference]:
    """How the attempts differ, two by two, the better of each pair first; ``files`` compares two trees."""
    if math.comb(len(ranked), 2) <= MAX_PAIRS:
        pairs = list(combinations(ranked, 2))
    else:
        pairs = [(ranked[0], other) for other in ranked[1:]]
    return [_difference(one, other, files) for one, other in pairs]


def _difference(one: Outcome, other: Outcome, files: Callable[[CheckpointId, CheckpointId], Diff | None]) -> Difference:
    a, b = one.result, other.result
    return Difference(
        a=one.attempt.number,
        b=other.attempt.number,
        exit_code=0 if a is None or b is None else a.exit_code - b.exit_code,
        stdout=unified(a.stdout if a else "", b.stdout if b else ""),
        stderr=unified(a.stderr if a else "", b.stderr if b else ""),
        files=None if one.after is None or other.after is None else files(one.after, other.after),
    )


def unified(before: str, after: str) -> str:
    """The hunks of a unified diff between two texts; empty if they are the same."""
    return b"".join(hunks(_bytes(before), _bytes(after))).decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
