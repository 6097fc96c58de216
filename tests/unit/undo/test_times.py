"""The mtimes of directories whose names several steps changed (I1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.testing.acting import Actor
from holdfast.undo.undoing import redo, undo

from .conftest import Bench


def come_and_go(actor: Actor) -> None:
    actor.write(b"new", b"new")
    actor.unlink(b"new")


def come(actor: Actor) -> None:
    actor.write(b"new", b"new")


@pytest.mark.parametrize("later", [come_and_go, come])
def test_steps_that_are_undone_out_of_order_leave_the_mtime_of_before_them_all(
    bench: Bench, later: Callable[[Actor], None]
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
