"""What lost a name in a step and lives on by others: an edit by one of those after the step's end is not lost (I8)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from holdfast.model.errors import RefusedError
from holdfast.testing.permissions import permissions_hold
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..conftest import Bench, redo, undo

WHERE = ["", "the log is elsewhere", "the log is elsewhere, without privileges"]


@pytest.fixture(name="bench", params=WHERE)
def _bench(tmp_path: Path, elsewhere: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    if request.param:
        bench.directory = elsewhere / "log"
    (bench.tree / "file").write_bytes(b"before")
    os.link(bench.tree / "file", bench.tree / "also")
    with permissions_hold() if request.param == WHERE[-1] else nullcontext():
        yield bench


def write_and_remove(actor: InterceptedActor) -> None:
    actor.write(b"file", b"step")
    actor.unlink(b"file")


def write_and_replace(actor: InterceptedActor) -> None:
    actor.write(b"file", b"step")
    actor.write(b"new", b"new")
    actor.rename(b"new", b"file")


def describe_and_remove(actor: InterceptedActor) -> None:
    actor.chmod(b"file", 0o640)
    actor.unlink(b"file")


WORK = [write_and_remove, write_and_replace, describe_and_remove]


def appends(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"HAND")


def describes(path: Path) -> None:
    path.chmod(0o604)


def refuses(log: UndoLog, change: Callable[..., object], step: int) -> None:
    with pytest.raises(RefusedError, match=f"another process has changed what step {step} left") as refused:
        change(log, [step])
    assert refused.value.code == "barrier"


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("edit", [appends, describes])
def test_an_edit_by_another_name_is_not_taken_back(
    bench: Bench, work: Callable[[InterceptedActor], None], edit: Callable[[Path], None]
) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        step = bench.step(log, work)
    after = bench.photograph()
    with bench.keeper() as log:
        undo(log, [step])
        bench.assert_as(before)
        redo(log, [step])
        bench.assert_as(after)
    edit(bench.tree / "also")
    edited = bench.photograph()
    with bench.keeper() as log:
        refuses(log, undo, step)
        bench.assert_as(edited)
        undo(log, [step], force=True)
        redo(log, [step])
        bench.assert_as(edited)
        refuses(log, undo, step)
        bench.assert_as(edited)


def test_an_edit_by_a_name_outside_of_the_tree_is_not_taken_back(bench: Bench) -> None:
    if bench.directory.parent != bench.tree.parent and os.getuid():
        pytest.skip("it is found there by its handle alone")
    outside = bench.tree.parent / "outside"
    (bench.tree / "also").rename(outside)
    with bench.keeper() as log:
        step = bench.step(log, write_and_remove)
    appends(outside)
    with bench.keeper() as log:
        try:
            conflicts = undo(log, [step]).conflicts
        except RefusedError:
            pass
        else:  # it was not found at all: what was kept is an object of its own
            assert conflicts
    assert outside.read_bytes() == b"stepHAND"


@pytest.mark.parametrize("work", WORK)
def test_names_that_come_and_go_are_no_edit(bench: Bench, work: Callable[[InterceptedActor], None]) -> None:
    with bench.keeper() as log:
        step = bench.step(log, work)
    os.link(bench.tree / "also", bench.tree / "third")
    (bench.tree / "also").rename(bench.tree / "fourth")
    (bench.tree / "third").unlink()
    with bench.keeper() as log:
        undo(log, [step])
    assert (bench.tree / "file").read_bytes() == b"before"
    assert (bench.tree / "file").samefile(bench.tree / "fourth")


def test_a_name_alone_is_given_back_and_the_edit_stays_theirs(bench: Bench) -> None:
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"step"))
        second = bench.step(log, lambda actor: actor.unlink(b"file"))
    appends(bench.tree / "also")
    with bench.keeper() as log:
        undo(log, [second])
        assert (bench.tree / "file").samefile(bench.tree / "also")
        refuses(log, undo, first)
    with bench.keeper() as log:
        refuses(log, undo, first)
        redo(log, [second])
        undo(log, [second])
        refuses(log, undo, first)
        redo(log, [second])
        with pytest.raises(RefusedError, match="another process has changed what steps 1 and 2 left"):
            undo(log, [first, second])
    assert (bench.tree / "also").read_bytes() == b"stepHAND"


def test_an_edit_before_a_step_is_brought_forward_again_is_not_overwritten(bench: Bench) -> None:
    def link_and_write(actor: InterceptedActor) -> None:
        actor.link(b"file", b"third")
        actor.write(b"third", b"step")

    with bench.keeper() as log:
        step = bench.step(log, link_and_write)
        undo(log, [step])
    appends(bench.tree / "also")
    with bench.keeper() as log:
        refuses(log, redo, step)
        redo(log, [step], force=True)
        undo(log, [step])
        assert (bench.tree / "also").read_bytes() == b"beforeHAND"
        refuses(log, redo, step)


def test_a_recovery_leaves_an_edit_by_another_name(bench: Bench) -> None:
    bench.abandon(write_and_remove)
    end = bench.end_life()
    while (bench.tree / "also").stat().st_ctime_ns <= end:  # (the file system's clock is coarser)
        (bench.tree / "also").write_bytes(b"HAND")
    with bench.keeper() as log:
        recovered = recover(log)
        assert recovered.rolled_back is not None
        assert [one.reason for one in recovered.rolled_back.conflicts] == ["another process has changed it since"]
    assert (bench.tree / "also").read_bytes() == b"HAND"
    assert (bench.tree / "file").samefile(bench.tree / "also")
