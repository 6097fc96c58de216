"""Which edits are one barrier, which a step has to do with, and when they are forgotten."""

from __future__ import annotations

import pytest

from holdfast.files.linux.file_handle import Identity
from holdfast.files.linux.metadata import Metadata
from holdfast.undo.journal.barriers import Barriers
from holdfast.undo.journal.records import NOT_KEPT, Content, ForeignEdit, Made, Make, Meta, Move
from holdfast.undo.journal.step_footprint import Aliases, first_contacts, footprint_of


def edit(seq: int, *paths: bytes, who: str = "vim", blocks: bool = True) -> ForeignEdit:
    return ForeignEdit(seq, paths, seq * 3_000_000_000, who, blocks)


def test_edits_that_follow_each_other_are_one() -> None:
    barriers = Barriers([edit(1, b"b"), edit(2, b"a"), edit(4, b"c"), edit(5, b"d", who="git")])
    assert [(record.seq, record.paths) for record in barriers.records] == [
        (2, (b"a", b"b")),
        (4, (b"c",)),
        (5, (b"d",)),
    ]
    assert barriers.add(edit(6, b"d", who="git")) is None


def test_edits_shortly_after_each_other_are_one_and_it_is_the_later() -> None:
    barriers = Barriers([ForeignEdit(3, (b"a",), 0, "git")])
    assert barriers.add(ForeignEdit(9, (b"a",), 1_000_000_000, "git")) == ForeignEdit(9, (b"a",), 1_000_000_000, "git")
    barriers.add(ForeignEdit(12, (b"a",), 4_000_000_000, "git"))
    assert [record.seq for record in barriers.records] == [9, 12]


def test_what_is_as_the_step_left_it_is_no_barrier_any_more() -> None:
    mine = footprint_of([Make(3, 1, b"one", "f", 0), Make(4, 1, b"two", "f", 0)])
    barriers = Barriers([edit(5, b"one", b"two")])
    found = barriers.newest_crossed(1, 3, mine, lambda path, _: path == b"one")
    assert found is not None
    assert found.paths == (b"two",)
    assert barriers.newest_crossed(1, 3, mine, lambda *_: True) is None


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
    mine = footprint_of([Make(3, 1, b"dir/file", "f", 0)])
    barriers = Barriers([edit(5, *paths)])
    assert (barriers.newest_crossed(1, 3, mine) is not None) == is_crossed
    assert barriers.newest_crossed(1, 6, mine) is None
    assert Barriers([edit(5, *paths, blocks=False)]).newest_crossed(1, 3, mine) is None


def test_they_go_with_the_steps_before_them() -> None:
    barriers = Barriers([edit(2, b"a"), edit(9, b"b")])
    barriers.prune(5)
    assert [record.seq for record in barriers.records] == [9]
    barriers.prune(0)
    assert barriers.records == []


def found(seq: int, *paths: bytes, finder: int = 9) -> ForeignEdit:
    return ForeignEdit(seq, paths, seq * 3_000_000_000, "", True, finder)


def test_what_was_changed_before_a_step_came_does_not_bar_it_whatever_was_added_later() -> None:
    mine = footprint_of([Make(10, 1, b"one", "f", 0)])
    for barriers in (
        Barriers([edit(5, b"one"), edit(6, b"two")]),
        Barriers([ForeignEdit(5, (b"one",), 0, "vim"), ForeignEdit(20, (b"two",), 1_000_000_000, "vim")]),
        Barriers([found(5, b"one"), found(20, b"two")]),
    ):
        assert len(barriers.records) == 1
        for read in (barriers, Barriers(barriers.pieces())):
            assert read.records == barriers.records, "also when it was read from a journal that began anew"
            assert read.newest_crossed(1, 10, mine) is None or read.records[0].finder is not None
            assert read.newest_crossed(1, 4, mine, lambda path, _: path != b"one") is not None
            assert read.newest_crossed(1, 10, mine, lambda path, _: path != b"one") is None
            assert read.edited_paths(4) == {b"one", b"two"}
            assert read.edited_paths(5) == {b"two"}


def test_what_was_changed_again_counts_as_late_as_that() -> None:
    mine = footprint_of([Make(10, 1, b"one", "f", 0)])
    barriers = Barriers([ForeignEdit(5, (b"one",), 0, "vim"), ForeignEdit(20, (b"one",), 1_000_000_000, "vim")])
    assert barriers.pieces() == [ForeignEdit(20, (b"one",), 1_000_000_000, "vim")]
    assert barriers.newest_crossed(1, 10, mine) is not None


def test_what_is_changed_again_counts_as_late_as_that_though_something_else_came_right_before() -> None:
    mine = footprint_of([Make(10, 1, b"one", "f", 0)])
    barriers = Barriers([ForeignEdit(5, (b"one",), 0, "vim"), ForeignEdit(20, (b"two",), 0, "vim")])
    assert barriers.add(ForeignEdit(21, (b"one",), 0, "vim")) == ForeignEdit(21, (b"one",), 0, "vim")
    assert barriers.add(ForeignEdit(22, (b"two", b"one"), 0, "vim")) is None, "nothing has come between"
    assert Barriers(barriers.pieces()).newest_crossed(1, 10, mine) is not None


def test_what_is_changed_again_and_again_takes_no_more_room() -> None:
    barriers = Barriers([ForeignEdit(at, (b"one",), 0, "vim") for at in range(1, 1000, 2)])
    assert len(barriers.records) == 1
    assert len(barriers._all[0].at) <= 2
    assert barriers.pieces() == [ForeignEdit(999, (b"one",), 0, "vim")]


def test_a_step_is_not_barred_by_what_was_there_when_it_came_to_it() -> None:
    mine = footprint_of([Make(3, 1, b"first", "f", 0), Make(10, 1, b"one", "f", 0)])
    barriers = Barriers([edit(5, b"one")])
    assert barriers.newest_crossed(1, 3, mine) is not None
    assert barriers.newest_crossed(1, 3, mine, came={b"one": 10}) is None
    assert barriers.newest_crossed(1, 3, mine, came={b"one": 4}) is not None


def test_very_many_paths_are_anything_whenever_the_step_came() -> None:
    barriers = Barriers([edit(5, *(b"%d" % at for at in range(1001)))])
    mine = footprint_of([Make(3, 1, b"first", "f", 0)])
    assert barriers.newest_crossed(1, 3, mine, came={b"": 10}) is not None
    assert Barriers(barriers.pieces()).records == barriers.records


def test_a_step_comes_to_a_path_with_what_it_found_there_or_below() -> None:
    """I8: by whatever name it has had to do with that."""
    one, two = Identity(b"1"), Identity(b"2")
    metadata = Metadata(0o644, 0, 0, 0)
    records = [
        Content(3, 1, b"linked", one, NOT_KEPT, metadata),
        Meta(7, 1, b"dir/other name", one, metadata),
        Make(8, 1, b"new", "f", 0),
        Made(9, 1, 8, two),
        Move(12, 1, b"new", b"deep/est/moved", "f", two),
    ]
    assert first_contacts(records, Aliases()) == {
        b"": 3, b"linked": 3, b"dir": 3, b"dir/other name": 3, b"new": 8, b"deep": 9, b"deep/est": 9,
        b"deep/est/moved": 9,
    }  # fmt: skip
