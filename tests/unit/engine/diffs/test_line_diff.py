"""The line matcher: right for every input, small answers for ordinary ones, bounded work for hostile ones."""

from __future__ import annotations

import difflib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.diffs.line_diff import Region, changed_regions

TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=30)


def rebuilt(before: list[bytes], after: list[bytes], regions: list[Region]) -> list[bytes]:
    """``before`` with its regions replaced, after a check that they are in order and the rest is equal."""
    out: list[bytes] = []
    at = there = 0
    for number, region in enumerate(regions):
        assert region.before_start < region.before_end or region.after_start < region.after_end
        assert not number or region.before_start > at or region.after_start > there
        assert before[at : region.before_start] == after[there : region.after_start]
        out += before[at : region.before_start] + after[region.after_start : region.after_end]
        at, there = region.before_end, region.after_end
    return out + before[at:]


@settings(max_examples=400, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from([0, 3, 20, 100, 1_000_000]))
def test_the_regions_lead_from_one_text_to_the_other(before: list[bytes], after: list[bytes], steps: int) -> None:
    assert rebuilt(before, after, changed_regions(before, after, max_steps=steps)) == after


def cost(regions: list[Region]) -> int:
    return sum(r.before_end - r.before_start + r.after_end - r.after_start for r in regions)


def test_without_anchors_the_answer_is_the_shortest() -> None:
    """Every line occurs twice or more, so that Myers' search alone answers."""
    rng = random.Random(3)
    for _ in range(200):
        before = [rng.choice([b"a", b"b"]) for _ in range(12)] + [b"a", b"b"] * 2
        after = [rng.choice([b"a", b"b"]) for _ in range(12)] + [b"b", b"a"] * 2
        assert cost(changed_regions(before, after)) == shortest(before, after)


def shortest(before: list[bytes], after: list[bytes]) -> int:
    """The least number of lines removed and added, by dynamic programming."""
    row = list(range(len(after) + 1))
    for i, line in enumerate(before, 1):
        last, row = row, [i]
        for j, other in enumerate(after, 1):
            row.append(last[j - 1] if line == other else 1 + min(last[j], row[-1]))
    return row[-1]


def test_few_edits_in_a_long_text_stay_few() -> None:
    rng = random.Random(5)
    before = [b"%d" % rng.randrange(50) for _ in range(20_000)]
    after = list(before)
    for _ in range(40):
        after.insert(rng.randrange(len(after)), b"new")
    regions = changed_regions(before, after)
    assert cost(regions) == 40
    assert rebuilt(before, after, regions) == after


def test_the_answer_is_about_as_small_as_difflibs() -> None:
    rng = random.Random(9)
    ours = theirs = 0
    for _ in range(60):
        before = [b"%d" % rng.randrange(60) for _ in range(80)]
        after = list(before)
        for _ in range(rng.randrange(12)):
            at = rng.randrange(len(after))
            after[at : at + rng.randrange(3)] = [b"%d" % rng.randrange(60) for _ in range(rng.randrange(3))]
        ours += cost(changed_regions(before, after))
        codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        theirs += sum(i2 - i1 + j2 - j1 for tag, i1, i2, j1, j2 in codes if tag != "equal")
    assert ours <= theirs * 1.1


@pytest.mark.parametrize("alphabet", [2, 20, 500, 100_000])
def test_the_work_on_unrelated_texts_is_bounded(alphabet: int) -> None:
    """And what comes out when the bound is reached is still right."""
    rng = random.Random(alphabet)
    before = [b"%d" % rng.randrange(alphabet) for _ in range(30_000)]
    after = [b"%d" % rng.randrange(alphabet) for _ in range(30_000)]
    regions = changed_regions(before, after, max_steps=200_000)
    assert rebuilt(before, after, regions) == after


def test_equal_and_empty_texts_have_no_regions() -> None:
    assert changed_regions([], []) == []
    assert changed_regions([b"a", b"a"], [b"a", b"a"]) == []
    assert changed_regions([], [b"a"]) == [Region(0, 0, 0, 1)]
    assert changed_regions([b"a"], []) == [Region(0, 1, 0, 0)]
