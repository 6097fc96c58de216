"""The search for the first bad state: right for any answer, in as few questions as there are bits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.sessions.exchange.bisection import Bisection, verdict_of
from holdfast.model.errors import UsageError


def search(count: int, first_bad: int, untold: frozenset[int] = frozenset()) -> tuple[range, list[int]]:
    bisection = Bisection(count)
    asked: list[int] = []
    while (at := bisection.next()) is not None:
        assert at not in asked
        assert 0 < at < count - 1
        asked.append(at)
        bisection.tell(at, "skip" if at in untold else "bad" if at >= first_bad else "good")
    return bisection.found().candidates, asked


@settings(deadline=None)
@given(st.integers(2, 400).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_the_first_bad_one_is_found_in_as_many_questions_as_there_are_bits(case: tuple[int, int]) -> None:
    count, first_bad = case
    found, asked = search(count, first_bad)
    assert list(found) == [first_bad]
    assert len(asked) <= math.ceil(math.log2(count - 1)) if count > 2 else not asked


@settings(deadline=None)
@given(
    st.integers(2, 40).flatmap(
        lambda count: st.tuples(st.just(count), st.integers(1, count - 1), st.frozensets(st.integers(1, count - 1)))
    )
)
def test_what_cannot_be_told_widens_the_answer_and_nothing_more(case: tuple[int, int, frozenset[int]]) -> None:
    count, first_bad, untold = case
    found, _ = search(count, first_bad, untold)
    assert first_bad in found
    # All but the last of the candidates could not be told.
    assert set(found) - {found[-1]} <= untold
    assert found[-1] == count - 1 or found[-1] not in untold


def test_it_says_how_much_is_left() -> None:
    bisection = Bisection(9)
    left = [bisection.left]
    while (at := bisection.next()) is not None:
        bisection.tell(at, "good")
        left.append(bisection.left)
    assert left == [3, 2, 1, 0]
    assert bisection.found().certain


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_search(count: int) -> None:
    with pytest.raises(UsageError, match="no state lies between"):
        Bisection(count)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [(0, "good"), (1, "bad"), (124, "bad"), (125, "skip"), (126, None), (127, None), (128, None), (137, None)],
)
def test_exit_codes(code: int, verdict: str | None) -> None:
    assert verdict_of(code) == verdict
