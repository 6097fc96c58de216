"""Which edits are one barrier, which a step has to do with, and when they are forgotten."""

from __future__ import annotations

import pytest

from holdfast.undo.barriers import Barriers
from holdfast.undo.records import Make, Outside
from holdfast.undo.traces import reach


def edit(seq: int, *paths: bytes, who: str = "vim", blocks: bool = True) -> Outside:
    return Outside(seq, paths, seq * 3_000_000_000, who, blocks)


def test_edits_that_follow_each_other_are_one() -> None:
    barriers = Barriers([edit(1, b"b"), edit(2, b"a"), edit(4, b"c"), edit(5, b"d", who="git")])
    assert [(record.seq, record.paths) for record in barriers.records] == [
        (2, (b"a", b"b")),
        (4, (b"c",)),
        (5, (b"d",)),
    ]
    assert barriers.add(edit(6, b"d", who="git")) is None


def test_edits_shortly_after_each_other_are_one_and_it_is_the_later() -> None:
    barriers = Barriers([Outside(3, (b"a",), 0, "git")])
    assert barriers.add(Outside(9, (b"a",), 1_000_000_000, "git")) == Outside(9, (b"a",), 1_000_000_000, "git")
    barriers.add(Outside(12, (b"a",), 4_000_000_000, "git"))
    assert [record.seq for record in barriers.records] == [9, 12]


def test_what_is_as_the_step_left_it_is_no_barrier_any_more() -> None:
    mine = reach([Make(3, 1, b"one", "f", 0), Make(4, 1, b"two", "f", 0)])
    barriers = Barriers([edit(5, b"one", b"two")])
    found = barriers.crossed(1, 3, mine, lambda path, _: path == b"one")
    assert found is not None
    assert found.paths == (b"two",)
    assert barriers.crossed(1, 3, mine, lambda *_: True) is None


def test_very_many_paths_are_anything() -> None:
    barriers = Barriers([edit(1, *(b"%d" % at for at in range(1001)))])
    assert barriers.records[0].paths == (b"",)
    assert barriers.add(edit(2, b"one more")) is None


@pytest.mark.parametrize(
    ("paths", "is_crossed"),
    [
        ((b"dir/file",), True),
        ((b"dir",), True),
        ((b"dir/file/below",), False),
        ((b"other",), False),
        ((b"",), True),
    ],
)
def test_what_a_step_has_to_do_with(paths: tuple[bytes, ...], is_crossed: bool) -> None:
    mine = reach([Make(3, 1, b"dir/file", "f", 0)])
    barriers = Barriers([edit(5, *paths)])
    assert (barriers.crossed(1, 3, mine) is not None) == is_crossed
    assert barriers.crossed(1, 6, mine) is None
    assert Barriers([edit(5, *paths, blocks=False)]).crossed(1, 3, mine) is None


def test_they_go_with_the_steps_before_them() -> None:
    barriers = Barriers([edit(2, b"a"), edit(9, b"b")])
    barriers.prune(5)
    assert [record.seq for record in barriers.records] == [9]
    barriers.prune(0)
    assert barriers.records == []
