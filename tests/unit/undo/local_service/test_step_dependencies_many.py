"""A run of very many steps: the work for each of them does not grow with how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.files.linux.file_handle import Identity
from holdfast.undo.journal import step_footprint
from holdfast.undo.journal.path_tree import PathTree
from holdfast.undo.journal.records import Made, Make, Move, Mutation, StepId
from holdfast.undo.journal.step_footprint import objects_by_path
from holdfast.undo.local_service import _step_dependencies
from holdfast.undo.reports.step_changes import path_changes
from holdfast.undo.service import LogLimits

from ..conftest import Bench
from ..local_service.test_undo_service import Keeper, opened


def work(keeper: Keeper, number: int, beside: StepId | None) -> StepId:
    """A step of several paths; some of them have all steps in common, and some only the one before, which with
    ``beside`` goes on meanwhile.
    """
    step = keeper.service.open("command", run="run")
    keeper.act(
        step,
        lambda actor: (
            actor.write(b"all/%d" % (number % 7), b"%d" % number),
            actor.write(b"new%d" % number, b"new"),
            actor.rename(b"new%d" % number, b"all/n%d" % number),
            actor.unlink(b"all/n%d" % (number - 1)) if number else None,
        ),
    )
    if beside is not None:
        keeper.act(beside, lambda actor: actor.write(b"beside%d" % number, b"beside"))
        keeper.service.close(beside)
    return step


def run_of(keeper: Keeper, count: int, *, overlapping: bool) -> list[StepId]:
    steps: list[StepId] = []
    for number in range(count):
        steps.append(work(keeper, number, steps[-1] if overlapping and steps else None))
        if not overlapping:
            keeper.service.close(steps[-1])
    if overlapping:
        keeper.service.close(steps[-1])
    return steps


@pytest.mark.parametrize("overlapping", [False, True])
def test_what_is_done_for_a_step_does_not_grow_with_their_number(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, overlapping: bool
) -> None:
    done = 0

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def count(*arguments: object) -> object:
            nonlocal done
            done += 1
            return original(*arguments)

        return count

    for module, name in ((step_footprint, "_follow"), (_step_dependencies, "_is_in_the_way")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    (bench.tree / "all").mkdir()
    before = bench.photograph()
    spent: list[int] = []
    with opened(bench) as keeper:
        for count in (30, 90):
            steps = run_of(keeper, count, overlapping=overlapping)
            after = bench.photograph()
            done = 0
            keeper.service.undo(steps)
            bench.assert_as(before)
            keeper.service.redo(steps)
            bench.assert_as(after)
            keeper.service.undo(steps)
            spent.append(done)
            bench.assert_as(before)
    assert spent[1] < 4 * spent[0]
    assert os.listdir(bench.tree) == ["all"]


def test_a_rename_costs_no_more_where_a_step_has_changed_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0
    put = PathTree[object].__setitem__

    def counted(self: PathTree[object], path: bytes, value: object) -> None:
        nonlocal done
        done += 1
        put(self, path, value)

    monkeypatch.setattr(PathTree, "__setitem__", counted)
    spent: list[int] = []
    for count in (100, 300):
        records: list[Mutation] = []
        for at in range(0, 8 * count, 8):
            directory, there = b"d%d" % at, b"to/d%d" % at
            records += [
                Make(at, 1, directory, "d", 0),
                Made(at + 1, 1, at, Identity(directory)),
                Make(at + 2, 1, directory + b"/f", "f", 0),
                Made(at + 3, 1, at + 2, Identity(there)),
                Move(at + 4, 1, directory + b"/f", directory + b"/g", "f", Identity(there), None, False),
                Move(at + 5, 1, directory, there, "d", Identity(directory), None, False),
            ]
        done = 0
        assert objects_by_path(records)[b"to/d0/g"] == Identity(b"to/d0")
        assert len(path_changes(records)) == 2 * count
        spent.append(done)
    assert spent[1] == 3 * spent[0]


def test_small_contents_count_as_well_for_the_limit_of_bytes(bench: Bench) -> None:
    """They lie in the files of steps, as no preimages of their own."""
    limit, size = 40_000, 6_000
    with opened(bench, limits=LogLimits(max_bytes=limit)) as keeper:
        for number in range(30):
            step = keeper.service.open("command", run="run")
            keeper.act(step, lambda actor, path=b"f%d" % (number % 3): actor.write(path, os.urandom(size)))
            keeper.service.close(step)
        kept = keeper.service.steps()
        assert 1 <= len(kept) <= limit // size
        assert keeper.service.run_ending("run").forgotten == 30 - len(kept)
