"""What was closed to its owner, and is opened while what was done there is reversed."""

from __future__ import annotations

import os
import stat

import pytest

from holdfast.undo.records import Mutation
from holdfast.undo.recovery import recover
from holdfast.undo.reversal import Reversal
from holdfast.undo.undoing import undo

from .conftest import Bench


def test_a_directory_that_was_open_when_the_keeper_was_killed_is_closed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = bench.tree / "d" / "s"
    closed.mkdir(parents=True)
    (closed / "f").write_bytes(b"before")
    with bench.keeper() as log:
        step = bench.step(log, lambda actor: actor.unlink(b"d/s/f"))
    closed.chmod(0)
    tried: list[Mutation] = []

    def refused_then_killed(_self: Reversal, record: Mutation) -> None:
        if tried:
            os._exit(9)
        tried.append(record)
        raise PermissionError  # as for everybody but root

    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(Reversal, "_reverse", refused_then_killed)
            with bench.keeper() as log:
                undo(log, [step], force=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    with bench.keeper() as log:
        assert [done.steps for done in recover(log).finished] == [(step,)]
    assert stat.S_IMODE(closed.stat().st_mode) == 0
    closed.chmod(0o700)
    assert (closed / "f").read_bytes() == b"before"
