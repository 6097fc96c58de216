"""Lanes beside the rows: where each state is drawn, and how a page goes on where the last one ended."""

from __future__ import annotations

import pytest

from holdfast.api.web.graph import MOST_LANES, Lanes
from holdfast.model.errors import UsageError


def test_a_line_of_states_is_one_lane():
    lanes = Lanes()
    rows = [lanes.state("c", "b"), lanes.state("b", "a"), lanes.state("a", None)]
    assert [row.lane for row in rows] == [0, 0, 0]
    assert [row.above for row in rows] == [[], [0], [0]]
    assert [row.below for row in rows] == [True, True, False]
    assert lanes.text() == ""


def test_what_was_undone_is_a_branch_that_meets_the_new_work_at_their_parent():
    lanes = Lanes()
    new = lanes.state("d", "b")
    undo = lanes.move("b", {"b"})
    undone = lanes.state("c", "b")
    parent = lanes.state("b", "a")
    assert (new.lane, undo.lane, undone.lane, parent.lane) == (0, 0, 1, 0)
    assert (undo.is_state, undo.above, undo.below) == (False, [0], True)
    assert undone.passing == [0]
    assert parent.above == [0, 1]


def test_an_undo_that_nothing_followed_begins_a_lane_down_to_its_state():
    lanes = Lanes()
    undo = lanes.move("a", {"a"})
    undone = lanes.state("b", "a")
    assert (undo.lane, undo.above, undo.below) == (0, [], True)
    assert (undone.lane, undone.passing) == (1, [0])
    assert lanes.state("a", None).above == [0, 1]


def test_what_has_no_known_state_is_on_the_lane_of_the_row_above():
    lanes = Lanes()
    assert lanes.move("forgotten", set()).below is False
    lanes.state("c", "b")
    edit = lanes.move(None, set())
    assert (edit.lane, edit.above, edit.below) == (0, [0], True)
    assert lanes.move("forgotten", set()).lane == 0


def test_a_page_goes_on_where_the_last_one_ended():
    lanes = Lanes()
    lanes.state("dd", "bb")
    lanes.state("cc", "bb")
    assert lanes.text() == "bb,bb"
    row = Lanes(lanes.text()).state("bb", None)
    assert (row.lane, row.above) == (0, [0, 1])


def test_there_are_never_more_lanes_than_there_is_room_for():
    lanes = Lanes()
    rows = [lanes.state(f"{number:x}a", f"{number:x}b") for number in range(3 * MOST_LANES)]
    assert max(row.lane for row in rows) == MOST_LANES - 1
    assert max(row.width for row in rows) <= MOST_LANES + 1
    Lanes(lanes.text())


@pytest.mark.parametrize("waiting", ["../x", "A", "a" * 65, "<b>", ",".join("a" * (MOST_LANES + 1))])
def test_lanes_of_an_address_are_looked_at(waiting):
    with pytest.raises(UsageError):
        Lanes(waiting)
