"""Order in the history comes from sequence numbers: a clock that goes back, stands still or jumps changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from holdfast.engine.forks.checkpoint_mount import newest_checkpoint_at
from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.history.retention import Policy, Thinning, decide
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory, open_service
from holdfast.engine.running.run import begin_run, end_run
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import RefusedError
from holdfast.testing.clocks import ManualClock
from holdfast.undo.journal.heartbeat import BEAT, decode_beat, encode_beat

from ..conftest import Bench

DAY = 86_400
SETS = {
    "back": (-3600, -3600, -3600),
    "still": (0, 0, 0),
    "a day back": (-DAY, 0, 1),
    "forth and back": (3600, -3600, -1),
}


class ClockBench(Bench):
    """A bench with a clock that is set, in ways of its own."""

    def __init__(self, workspace, tree, clock, sets):
        super().__init__(workspace, tree)
        self.clock = clock
        self._sets = iter(sets)

    def set_clock(self):
        self.clock.advance(next(self._sets))


@pytest.fixture(params=SETS.values(), ids=list(SETS))
def bench(request, home, tree):
    opener = Opener(home=os.fsencode(home), clock=(clock := ManualClock()))
    with closing(Workspace(opener, opener.init(os.fsencode(tree))[0])) as workspace:
        yield ClockBench(workspace, tree, clock, request.param)
        assert workspace.verify(read_data=True).ok


def test_a_step_after_a_checkpoint_is_taken_back_whole(bench):
    bench.set_clock()
    step = bench.step(
        lambda actor: (actor.write(b"f", b"1"), actor.unlink(b"cache/old"), actor.write(b"cache/n", b"1"))
    )
    bench.set_clock()
    assert bench.workspace.undo().steps == (step,)
    bench.check(0)
    bench.set_clock()
    assert bench.workspace.redo().steps == (step,)
    bench.check(1)


def test_a_whole_run_is_taken_back_and_what_was_done_by_hand_after_it_before(bench):
    bench.set_clock()
    run = begin_run(bench.context, "do things")
    bench.step(lambda actor: (actor.write(b"f", b"1"), actor.unlink(b"cache/old")), run=run)
    bench.set_clock()
    second = bench.step(lambda actor: actor.write(b"cache/n", b"1"), run=run)
    end_run(bench.context, run, "do things")
    bench.set_clock()
    (bench.tree / "g").write_text("by hand")
    assert bench.workspace.undo().steps == ()
    assert not (bench.tree / "g").exists()
    assert bench.workspace.undo().steps == (second,)
    bench.check_files(1)
    bench.workspace.undo(run=run)
    bench.check_files(0)


def test_a_run_whose_steps_are_forgotten_goes_back_unless_others_came_after_it(bench):
    bench.step(lambda actor: actor.write(b"before", b"0"))
    bench.set_clock()
    run = begin_run(bench.context, "do things")
    bench.step(lambda actor: actor.write(b"f", b"1"), run=run)
    end_run(bench.context, run, "do things")
    with open_service(bench.context) as found:
        service: Any = found
        kept = service.steps()[0].id
        service._undo_log.forget(service.steps()[1].id)
    bench.set_clock()
    bench.workspace.undo(run=run, force=True)
    assert (bench.tree / "f").read_text() == "0"
    assert [step.id for step in bench.workspace.steps()] == [kept]
    bench.workspace.undo()
    bench.set_clock()
    bench.step(lambda actor: actor.write(b"after", b"0"))
    with pytest.raises(RefusedError) as refused:
        bench.workspace.undo(run=run)
    assert refused.value.code == "others_since"


def test_an_undo_in_a_run_leaves_the_way_forward_open(bench):
    bench.set_clock()
    run = begin_run(bench.context, "do things")
    step = bench.step(lambda actor: actor.write(b"f", b"1"), run=run)
    bench.set_clock()
    bench.workspace.undo()
    bench.set_clock()
    end_run(bench.context, run, "do things")
    assert bench.workspace.redo().steps == (step,)


def test_a_log_that_was_lost_is_made_anew_with_larger_numbers(bench):
    for _ in range(3):
        bench.step(lambda actor: (actor.write(b"f", b"1"), actor.write(b"f", b"2")))
    bench.workspace.checkpoint()
    shutil.rmtree(log_directory(bench.context))
    bench.set_clock()
    bench.seen = [bench.look()]
    step = bench.step(lambda actor: (actor.write(b"f", b"3"), actor.unlink(b"cache/old")))
    assert bench.workspace.undo().steps == (step,)
    bench.check(0)


def test_what_is_listed_and_kept_goes_by_the_order_of_recording(bench):
    for number in range(3):
        bench.set_clock()
        (bench.tree / "f").write_text(str(number + 1))
        create_checkpoint(bench.context, CheckpointRequest(kind="auto", label=f"n{number}"))
    found = bench.workspace.log().checkpoints
    assert [one.label for one in found[:3]] == ["n2", "n1", "n0"]
    last = [one.checkpoint.label for one in decide(found, Policy(keep_last=2), bench.clock.now(), {}) if one.keep]
    assert last == ["n2", "n1"]
    daily = [one.checkpoint.label for one in decide(found, Policy(keep_daily=1), bench.clock.now(), {}) if one.keep]
    assert daily == ["n2"]
    assert decide(found, Thinning(), bench.clock.now(), {})[0].checkpoint.label == "n2"
    assert newest_checkpoint_at(bench.context, bench.clock.now()) == found[0].id


def test_the_log_shows_moves_where_they_happened(bench):
    (bench.tree / "f").write_text("1")
    first = bench.workspace.checkpoint("first").checkpoint
    bench.set_clock()
    (bench.tree / "f").write_text("2")
    bench.workspace.checkpoint("second")
    bench.set_clock()
    bench.workspace.restore("first")
    bench.set_clock()
    (bench.tree / "f").write_text("3")
    bench.workspace.checkpoint("third")
    command = [sys.executable, "-m", "holdfast", "--home", bench.workspace.home, "-w", bench.tree, "log"]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    assert ["third" in line for line in lines[:1]] == [True]
    assert f"to {first.id[:12]} first" in lines[1]
    assert "second" in lines[2]
    limited = bench.workspace.log(2)
    assert [event.operation for event in limited.events] == ["checkpoint", "restore", "checkpoint"]


def test_steps_of_a_version_that_did_not_note_their_end_come_before_what_is_done_now(home, tree):
    """Its sign of life has the number of the last record alone, and a time."""
    with closing(Workspace(opener := Opener(home=os.fsencode(home)), opener.init(os.fsencode(tree))[0])) as workspace:
        bench = Bench(workspace, tree)
        bench.step(lambda actor: actor.write(b"f", b"1"))
        (step,) = workspace.steps()
        assert step.ended is not None
        beat = os.path.join(log_directory(bench.context), BEAT)
        with open(beat, "rb") as file:
            was = decode_beat(file.read())
        assert was is not None
        assert was.seq >= step.ended
        with open(beat, "wb") as file:
            file.write(encode_beat(was._replace(at=1, seq=step.acted)))
        for content in "12":
            (tree / "g").write_text(content)
            workspace.checkpoint()
        assert workspace.undo().steps == ()
        assert ((tree / "f").read_text(), (tree / "g").read_text()) == ("1", "1")
