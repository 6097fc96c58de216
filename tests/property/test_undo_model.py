"""I1, I2: random mutations through the interceptor, undone and brought forward again; whole trees are compared."""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import RefusedError
from holdfast.testing.acting import Actor, act_at_random
from holdfast.testing.photograph import differences, photograph
from holdfast.undo.log import UndoLog
from holdfast.undo.records import StepId
from holdfast.undo.recovery import recover
from holdfast.undo.sealing import seal
from holdfast.undo.undoing import redo, undo


@contextmanager
def keeper(base: Path) -> Generator[UndoLog]:
    """The undo log of the tree in ``base``, recovered."""
    root = os.open(base / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    try:
        recovered = recover(log)
        assert recovered.rolled_back is None
        yield log
    finally:
        log.close()
        os.close(root)


def finish(log: UndoLog, step: StepId) -> None:
    log.beat()
    seal(log, log.recorder.end(step, 0), state="done", ended_at=0, exit_code=0)
    log.journal.restart()


def do(base: Path, seed: int, count: int) -> StepId:
    """One finished step of random operations."""
    with keeper(base) as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        chance = random.Random(seed)
        with Actor(log.recorder, os.fsencode(base / "tree"), step) as actor:
            for _ in range(count):
                act_at_random(actor, chance)
        finish(log, step)
        return step


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "log").mkdir()
    return tmp_path


@pytest.mark.parametrize("seed", range(25))
def test_steps_are_undone_and_brought_forward_exactly(base: Path, seed: int) -> None:
    photos = [photograph(base / "tree")]
    steps: list[StepId] = []
    for at in range(3):
        steps.append(do(base, seed * 10 + at, 30))
        photos.append(photograph(base / "tree"))
    for direction, order in ((undo, (2, 1, 0)), (redo, (0, 1, 2)), (undo, (2, 1, 0))):
        for at in order:
            with keeper(base) as log:
                done = direction(log, [steps[at]])
            assert done.conflicts == ()
            expected = photos[at if direction is undo else at + 1]
            assert differences(expected, photograph(base / "tree")) == []


@pytest.mark.parametrize("seed", range(10))
def test_several_steps_are_undone_together(base: Path, seed: int) -> None:
    before = photograph(base / "tree")
    steps = [do(base, seed * 10 + at, 20) for at in range(3)]
    after = photograph(base / "tree")
    with keeper(base) as log:
        assert undo(log, steps).conflicts == ()
        assert differences(before, photograph(base / "tree")) == []
        assert redo(log, steps).conflicts == ()
        assert differences(after, photograph(base / "tree")) == []


def test_an_earlier_step_is_refused_while_a_later_one_stands_on_it(base: Path) -> None:
    path = base / "tree" / "file"
    steps: list[StepId] = []
    for content in (b"one", b"two"):
        with keeper(base) as log:
            steps.append(step := log.new_id())
            log.recorder.begin(step, "api")
            with Actor(log.recorder, os.fsencode(base / "tree"), step) as actor:
                actor.write(b"file", content)
            finish(log, step)
    with keeper(base) as log:
        with pytest.raises(RefusedError, match=f"step {steps[1]} has to do with file too"):
            undo(log, steps[:1])
        assert path.read_bytes() == b"two"
        undo(log, steps[1:])
        assert path.read_bytes() == b"one"
        undo(log, steps[:1])
        assert not path.exists()


def test_an_edit_by_somebody_else_is_not_overwritten(base: Path) -> None:
    """I8."""
    path = base / "tree" / "file"
    path.write_bytes(b"before")
    with keeper(base) as log:
        step = log.new_id()
        log.recorder.begin(step, "api")
        with Actor(log.recorder, os.fsencode(base / "tree"), step) as actor:
            actor.write(b"file", b"the step's")
        finish(log, step)
        path.write_bytes(b"somebody else's")
        with pytest.raises(RefusedError, match="somebody else has changed"):
            undo(log, [step])
        assert path.read_bytes() == b"somebody else's"
        undo(log, [step], force=True)
        assert path.read_bytes() == b"before"
        redo(log, [step], force=True)
        assert path.read_bytes() == b"somebody else's"
