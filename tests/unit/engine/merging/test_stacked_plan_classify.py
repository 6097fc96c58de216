"""What comes of each file in a stacked merge: the documented rules, and how small changes are told."""

from __future__ import annotations

import pytest

from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.stacked_plan import SmallChange
from holdfast.engine.merging.three_way import Decision, SideChanges
from holdfast.model.command_results import Renamed
from holdfast.model.entries import Change

from .merge_table import BASE, F, deciding, documented, entry, outcome, sides

ACTIONS = list(sides("fork"))
PAIRS = [(one, other) for one in ACTIONS for other in ACTIONS if (one, other) != ("nothing", "nothing")]
ONE, TWO, THREE = entry("1\n"), entry("2\n"), entry("3\n")


def test_every_rule_of_the_page_decides_a_pair() -> None:
    deciders = [deciding(*pair) for pair in PAIRS]
    assert [rule for rule in documented() if rule not in deciders] == []


@pytest.mark.parametrize(("production", "fork"), PAIRS)
def test_what_comes_of_each_pair_is_what_the_page_says(production: str, fork: str) -> None:
    assert outcome(sides("production")[production], sides("fork")[fork]) == deciding(production, fork).result


@pytest.mark.parametrize("action", [one for one in ACTIONS if one != "nothing"])
def test_what_both_have_done_alike_is_identical(action: str) -> None:
    both = sides("fork")[action]
    found = stacked_plan.classify(both, both, [])
    assert not found.overlaps
    assert not found.plan.changes
    assert {one.kind for one in found.files} == {"identical"}


@pytest.mark.parametrize("production", ACTIONS)
@pytest.mark.parametrize("fork", ACTIONS)
def test_nothing_of_either_side_is_lost(production: str, fork: str) -> None:
    """Each version of content that a side has made is in the merged state, or overlaps."""
    ours, theirs = sides("production")[production], sides("fork")[fork]
    found = stacked_plan.classify(ours, theirs, [])
    if found.overlaps:
        return
    merged = {one.path: one.after for one in ours.changes} | {one.path: one.after for one in ours.renamed}
    merged |= {one.path: one.after for one in found.plan.changes}
    held = {one.hash for one in merged.values() if one is not None}
    for side in (ours, theirs):
        made = [one.after for one in (*side.changes, *side.renamed)]
        for one in made:
            if one is not None and one.hash != BASE.hash:
                assert one.hash in held


def test_the_latest_version_of_each_path_counts() -> None:
    stack = [
        [Change(b"a", BASE, ONE), Change(b"b", None, ONE)],
        [Change(b"a", ONE, TWO), Change(b"b", ONE, None), Change(b"c", BASE, ONE)],
        [Change(b"c", ONE, BASE), Change(b"d", None, THREE)],
    ]
    assert stacked_plan.compose(stack) == [Change(b"a", BASE, TWO), Change(b"d", None, THREE)]


def test_small_changes_of_a_file_that_overlaps_are_told_one_by_one() -> None:
    stack = [
        [Change(F, BASE, ONE), Change(b"other", None, ONE)],
        [Change(b"other", ONE, TWO)],
        [Change(F, ONE, ONE._replace(mode=0o100755))],
        [Change(F, ONE._replace(mode=0o100755), TWO._replace(mode=0o100755))],
    ]
    found = stacked_plan.classify(
        SideChanges([Change(F, BASE, THREE)]), SideChanges(stacked_plan.compose(stack)), stack
    )
    (one,) = found.overlaps
    assert [small.number for small in one.small] == [1, 4]
    assert (one.small[0], one.small[-1].after) == (SmallChange(1, BASE, ONE), TWO._replace(mode=0o100755))
    assert list(one.numbers) == [1, 3, 4]
    assert one.mode == 0o100755
    assert one.is_applicable
    assert found.sets[0] == [(F, "overlapping"), (b"other", "one_sided")]
    assert [change.path for change in found.plan.changes] == [b"other"]


def test_small_changes_go_on_under_a_new_name() -> None:
    stack = [
        [Change(F, BASE, ONE)],
        [Change(F, ONE, None), Change(b"g", None, ONE)],
        [Change(b"g", ONE, TWO)],
    ]
    fork = SideChanges([], [Renamed(F, b"g", BASE, TWO, 60)])
    (one,) = stacked_plan.classify(SideChanges([Change(F, BASE, THREE)]), fork, stack).overlaps
    assert (one.path, one.base_path, one.production, one.fork) == (b"g", F, THREE, TWO)
    assert list(one.small) == [SmallChange(1, BASE, ONE), SmallChange(3, ONE, TWO)]


def test_a_stack_that_does_not_lead_there_is_one_change() -> None:
    production, fork = SideChanges([Change(F, BASE, THREE)]), SideChanges([Change(F, BASE, TWO)])
    (one,) = stacked_plan.classify(production, fork, [[Change(F, BASE, ONE)]]).overlaps
    assert list(one.small) == [SmallChange(0, BASE, TWO)]


def test_the_version_changes_with_either_side() -> None:
    def version(here, there):
        (one,) = stacked_plan.classify(
            SideChanges([Change(F, BASE, here)]), SideChanges([Change(F, BASE, there)]), []
        ).overlaps
        return one.version

    assert len({version(ONE, TWO), version(TWO, ONE), version(THREE, TWO), version(ONE, THREE)}) == 4
    assert version(ONE, TWO) == version(ONE, TWO)


@pytest.mark.parametrize(
    ("settled", "expected"),
    [
        (Decision("ours"), {b"f.production": BASE}),
        (Decision("theirs"), {b"f.fork": BASE}),
        (Decision(None, THREE), {b"f.production": THREE}),
        (Decision(None, None), {}),
    ],
)
def test_what_is_decided_of_a_file_that_both_have_renamed(settled: Decision, expected: dict) -> None:
    ours, theirs = sides("production")["renames"], sides("fork")["renames"]
    found = stacked_plan.classify(ours, theirs, [], settled={b"f.production": settled})
    assert not found.plan.conflicts
    state = {b"f.production": BASE} | {one.path: one.after for one in found.plan.changes}
    assert {path: one for path, one in state.items() if one is not None} == expected


def test_a_file_is_never_put_where_a_directory_is() -> None:
    ours, theirs = sides("production")["makes a directory"], sides("fork")["edits"]
    found = stacked_plan.classify(ours, theirs, [], settled={F: Decision("theirs")})
    assert [one.why for one in found.plan.conflicts] == ["in_the_way"]
