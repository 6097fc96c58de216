"""The mtimes of directories whose names several steps changed (I1)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from holdfast.testing.tree_actor import InterceptedActor
from holdfast.undo.local_service.undo_service import LocalUndoService

from ..conftest import Bench, redo, undo


def come_and_go(actor: InterceptedActor) -> None:
    actor.write(b"new", b"new")
    actor.unlink(b"new")


def come(actor: InterceptedActor) -> None:
    actor.write(b"new", b"new")


@pytest.mark.parametrize("later", [come_and_go, come])
def test_steps_that_are_undone_out_of_order_leave_the_mtime_of_before_them_all(
    bench: Bench, later: Callable[[InterceptedActor], None]
) -> None:
    before = bench.photograph()
    with bench.keeper() as log:
        first = bench.step(log, lambda actor: actor.write(b"file", b"content"))
        second = bench.step(log, later)
        undo(log, [first])
        undo(log, [second])
        bench.assert_as(before)
    with bench.keeper() as log:
        redo(log, [first])
        assert (bench.tree / "file").read_bytes() == b"content"


def test_a_directory_gets_the_oldest_time_that_steps_beside_each_other_found(bench: Bench) -> None:
    """I1: also where one of them was undone and redone meanwhile."""
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), first) as actor:
            actor.write(b"one", b"")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), second) as actor:
            actor.write(b"two", b"")
        for step in (second, first):
            service.close(step, 0)
        service.undo([first])
        service.redo([first])
        service.undo([first, second])
        bench.assert_as(before)


def test_what_describes_a_directory_does_not_bring_back_the_time_that_another_step_gave_it(bench: Bench) -> None:
    (bench.tree / "d").mkdir()
    before = bench.photograph()
    with bench.keeper() as log:
        service = LocalUndoService(log)
        first, second = service.open("command"), service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), first) as actor:
            actor.write(b"d/f", b"")
        with InterceptedActor(log.recorder, os.fsencode(bench.tree), second) as actor:
            actor.chmod(b"d", 0o700)
        for step in (first, second):
            service.close(step, 0)
        service.undo([first])
        service.undo([second])
        bench.assert_as(before)
