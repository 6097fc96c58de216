"""What somebody does to the directories that an undo would work in stops it before it touches anything (I8)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor

from ..conftest import Bench
from ..local_service.test_undo_service import opened

Work = Callable[[InterceptedActor], object]


def nothing(_: object) -> None:
    """Nothing more."""


def replaces(actor: InterceptedActor) -> None:
    actor.write(b"e/n", b"new")
    actor.rename(b"e/n", b"d/z")


def makes(actor: InterceptedActor) -> None:
    actor.mkdir(b"new")
    actor.write(b"new/f", b"new")


def appends(actor: InterceptedActor) -> None:
    actor.write(b"d/z", b"step", at=4)


def moves_e(tree: Path) -> None:
    (tree / "e").rename(tree / "g")


def links_e(tree: Path) -> None:
    moves_e(tree)
    (tree / "e").symlink_to("g")


def adds(tree: Path) -> None:
    (tree / "new/h").write_bytes(b"hand")


def moves_and_edits(tree: Path) -> None:
    (tree / "d").rename(tree / "h")
    with (tree / "h/z").open("ab") as file:
        file.write(b"HAND")


@pytest.mark.parametrize(
    ("before", "by_hand", "after"),
    [
        pytest.param(replaces, moves_e, nothing, id="moved away"),
        pytest.param(replaces, links_e, nothing, id="a link in its place"),
        pytest.param(replaces, lambda tree: shutil.rmtree(tree / "e"), nothing, id="removed"),
        pytest.param(makes, adds, nothing, id="filled"),
        pytest.param(makes, adds, lambda actor: actor.rename(b"new", b"newer"), id="filled, then moved"),
        pytest.param(appends, moves_and_edits, lambda actor: actor.write(b"h/z", b"more", at=8), id="moved and edited"),
        pytest.param(lambda actor: actor.unlink(b"e/k"), moves_e, nothing, id="nowhere to put it back"),
    ],
)
@pytest.mark.parametrize("is_in_the_midst", [False, True])
def test_nothing_is_touched(
    bench: Bench, before: Work, by_hand: Callable[[Path], object], after: Work, is_in_the_midst: bool
) -> None:
    """Nobody has told of the edit."""
    for path in (bench.tree / "d/z", bench.tree / "e/k"):
        path.parent.mkdir()
        path.write_bytes(b"orig")
    with opened(bench) as keeper:
        step = keeper.service.open("command")
        keeper.act(step, before)
        if is_in_the_midst or after is not nothing:
            by_hand(bench.tree)
        keeper.act(step, after)
        keeper.service.close(step, 0)
        if not is_in_the_midst and after is nothing:
            by_hand(bench.tree)
        there = bench.photograph()
        with pytest.raises(RefusedError) as refused:
            keeper.service.undo([step])
        assert refused.value.code == "barrier"
        bench.assert_as(there)
        assert keeper.service.undo([step], force=True).conflicts


def test_redo_looks_as_well(bench: Bench) -> None:
    (bench.tree / "new").mkdir()
    with opened(bench) as keeper:
        step = keeper.step(lambda actor: actor.rmdir(b"new"))
        keeper.service.undo([step])
        adds(bench.tree)
        there = bench.photograph()
        with pytest.raises(RefusedError, match="new/h"):
            keeper.service.redo([step])
        bench.assert_as(there)


def test_the_barrier_of_a_directory_that_was_moved_away_is_named(bench: Bench) -> None:
    for path in (bench.tree / "d/z", bench.tree / "e/k"):
        path.parent.mkdir()
        path.write_bytes(b"orig")
    with opened(bench) as keeper:
        step = keeper.step(replaces)
        moves_e(bench.tree)
        keeper.service.record_foreign_edit([b"e", b"g"], "mv (12)")
        with pytest.raises(RefusedError, match=r"mv \(12\) has changed e since"):
            keeper.service.undo([step])


def test_another_directory_in_its_place_will_do(bench: Bench) -> None:
    (bench.tree / "e").mkdir()
    (bench.tree / "e/k").write_bytes(b"orig")
    with opened(bench) as keeper:
        step = keeper.step(lambda actor: actor.unlink(b"e/k"))
        (bench.tree / "e").rename(bench.tree / "g")
        (bench.tree / "e").mkdir()
        keeper.service.undo([step])
        assert (bench.tree / "e/k").read_bytes() == b"orig"


def test_steps_that_move_their_own_directories_are_in_nobodys_way(bench: Bench) -> None:
    (bench.tree / "e").mkdir()
    (bench.tree / "e/k").write_bytes(b"orig")
    before = bench.photograph()
    with opened(bench) as keeper:
        first = keeper.step(lambda actor: (actor.unlink(b"e/k"), actor.mkdir(b"e/in"), actor.write(b"e/in/f", b"f")))
        second = keeper.step(lambda actor: (actor.rename(b"e", b"g"), actor.rename(b"g/in", b"h")))
        third = keeper.step(lambda actor: (actor.unlink(b"h/f"), actor.rmdir(b"h"), actor.rmdir(b"g")))
        steps = [first, second, third]
        after = bench.photograph()
        keeper.service.undo(steps)
        bench.assert_as(before)
        keeper.service.redo(steps)
        bench.assert_as(after)
