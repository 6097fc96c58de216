"""Who is the best of several attempts, what is said of all of them, and how two of them differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.experiments import _ranks as ranks
from holdfast.engine.experiments.attempts import Measure, Outcome
from holdfast.model.command_results import Diff
from holdfast.model.ids import CheckpointId

from .building import outcome


def order(outcomes: list[Outcome], measure: Measure, **options: bool) -> list[int]:
    return [one.attempt.number for one in ranks.rank(outcomes, measure, **options)]


def test_by_exit_code_the_lowest_is_first_and_0_is_lowest() -> None:
    assert order([outcome(1, 2), outcome(2, 0), outcome(3, None, phase="cancelled"), outcome(4, 1)], "exit_code") == [
        *(2, 4, 1, 3)
    ]


def test_a_quick_failure_is_no_better_than_a_slow_success() -> None:
    slow, quick = outcome(1, 0, ms=900), outcome(2, 1, ms=5)
    assert order([quick, slow], "duration") == [1, 2]
    assert order([quick, slow], "output") == [1, 2]


def test_by_duration_and_output_the_least_is_first() -> None:
    many = [outcome(1, ms=30, stdout="xx"), outcome(2, ms=10, stdout="xxx"), outcome(3, ms=20, stdout="x")]
    assert order(many, "duration") == [2, 3, 1]
    assert order(many, "output") == [3, 1, 2]


def test_output_of_which_something_was_left_out_is_the_longest() -> None:
    assert order([outcome(1, stdout="x", truncated=True), outcome(2, stdout="x" * 99)], "output") == [2, 1]


def test_one_that_was_ended_comes_after_one_that_failed() -> None:
    assert order([outcome(1, 137, phase="timed out"), outcome(2, 255)], "exit_code") == [2, 1]


def test_a_score_counts_whatever_the_exit_code_and_what_has_none_is_last() -> None:
    many = [outcome(1, 0), outcome(2, 1, score=3.0), outcome(3, 0, score=5.0)]
    assert order(many, "score") == [2, 3, 1]
    assert order(many, "score", highest=True) == [3, 2, 1]
    winner = ranks.best(ranks.rank(many, "score"), "score")
    assert winner is not None
    assert winner.attempt.number == 2


def test_ties_go_to_the_quicker_then_to_the_first() -> None:
    assert order([outcome(1, ms=9), outcome(2, ms=5), outcome(3, ms=5)], "exit_code") == [2, 3, 1]


@pytest.mark.parametrize("measure", ["exit_code", "output", "duration", "score"])
def test_nobody_wins_where_nothing_is_any_good(measure: Measure) -> None:
    ranked = ranks.rank([outcome(1, 1), outcome(2, None, phase="cancelled")], measure)
    assert ranks.best(ranked, measure) is None
    assert ranks.best([], measure) is None


OUTCOMES = st.lists(
    st.builds(
        outcome,
        st.integers(1, 99),
        st.none() | st.integers(0, 255),
        ms=st.integers(0, 100),
        stdout=st.text(max_size=3),
        score=st.none() | st.floats(allow_nan=False),
    ),
    unique_by=lambda one: one.attempt.number,
)


@settings(deadline=None)
@given(OUTCOMES, st.sampled_from(["exit_code", "output", "duration", "score"]), st.booleans(), st.randoms())
def test_the_order_does_not_depend_on_who_ended_first(outcomes, measure, highest, random) -> None:
    shuffled = random.sample(outcomes, len(outcomes))
    ranked = ranks.rank(outcomes, measure, highest=highest)
    assert ranks.rank(shuffled, measure, highest=highest) == ranked
    assert sorted(one.attempt.number for one in ranked) == sorted(one.attempt.number for one in outcomes)
    if measure != "score":
        kinds = [one.succeeded for one in ranked]
        assert kinds == sorted(kinds, reverse=True)


def test_statistics_leave_out_what_was_ended() -> None:
    found = ranks.statistics(
        [outcome(1, ms=10), outcome(2, 1, ms=40), outcome(3, 143, ms=9000, phase="timed out"), outcome(4, ms=10)]
    )
    assert found == (4, 2, 10, 40, 20.0, 10.0)
    assert found.success_rate == 0.5
    assert ranks.statistics([]).success_rate == 0.0


def no_files(_a: CheckpointId, _b: CheckpointId) -> Diff | None:
    return None


def test_how_two_attempts_differ() -> None:
    asked: list[tuple[str, str]] = []

    def files(a: CheckpointId, b: CheckpointId) -> Diff:
        asked.append((a, b))
        return Diff(a, b, [], [], 3)

    (found,) = ranks.differences(
        [
            outcome(2, 0, stdout="one\ntwo\n", after="a" * 24),
            outcome(1, 3, stdout="one\n", stderr="no", after="b" * 24),
        ],
        files,
    )
    assert (found.a, found.b, found.exit_code) == (2, 1, -3)
    assert found.stdout == "@@ -1,2 +1 @@\n one\n-two\n"
    assert found.stderr == "@@ -0,0 +1 @@\n+no\n\\ No newline at end of file\n"
    assert found.files is not None
    assert asked == [("a" * 24, "b" * 24)]


def test_no_tree_no_files_and_no_exit_code_no_difference() -> None:
    (found,) = ranks.differences([outcome(1, 3), outcome(2, None)], no_files)
    assert (found.exit_code, found.stdout, found.files) == (0, "", None)


def test_of_many_attempts_each_is_compared_with_the_best() -> None:
    ten = [outcome(number) for number in range(1, 11)]
    assert len(ranks.differences(ten, no_files)) == math.comb(10, 2)
    many = [outcome(number) for number in range(1, 12)]
    assert [(one.a, one.b) for one in ranks.differences(many, no_files)] == [(1, other) for other in range(2, 12)]


def test_output_that_is_not_utf_8_can_be_compared() -> None:
    assert ranks.unified("caf\udce9\n", "caf\n") == "@@ -1 +1 @@\n-caf\udce9\n+caf\n"
