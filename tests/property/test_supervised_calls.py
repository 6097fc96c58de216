"""I1: random system calls carried out by the supervisor come out as the kernel's own, and can be taken back."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from platform import machine

import pytest
from hypothesis import given, settings

from holdfast.model.clock import SystemClock
from holdfast.supervisor.syscalls.pending_call import SlowError
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import Outcome, ScriptedProcess, StepSupervision
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

from ..sampling import examples
from ..some_calls import CALLS, Call, plant, programs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)


def without_times(photo: dict[bytes, PathState]) -> dict[bytes, PathState]:
    """Two trees that are changed one after the other have other times."""
    return {path: seen._replace(mtime=0) for path, seen in photo.items()}


@contextmanager
def recording(base: Path) -> Generator[StepSupervision]:
    """A step of the workspace in ``base``, which is undone at the end; then everything must be as it was."""
    before = photograph(base / "tree" / "ws")
    root = os.open(base / "tree" / "ws", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    home = os.open(base / "log", os.O_PATH)
    try:
        step = log.new_id()
        log.recorder.begin(step, "api")
        yield StepSupervision(log.recorder, root, step, (home,))
        log.beat()
        seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
        log.journal.restart()
        assert LocalUndoService(log).undo([step]).conflicts == ()
        assert differences(before, photograph(base / "tree" / "ws")) == []
    finally:
        log.close()
        os.close(root)
        os.close(home)


def carried_out(
    puppet: ScriptedProcess, world: StepSupervision, name: str, arguments: tuple[int | bytes, ...]
) -> Outcome:
    try:
        outcome = puppet.supervised(world, name, *arguments)
    except SlowError:
        outcome = puppet.supervised(world, name, *arguments, patient=True)
    return puppet.do(ARCHITECTURES[machine()].numbers[name], *arguments) if outcome.native else outcome


@given(programs(CALLS, 80))
@settings(max_examples=examples(200))
def test_calls_come_out_as_the_kernels_own_and_are_taken_back(program: list[Call]) -> None:
    with ExitStack() as opened:
        base = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        trees = base / "tree", base / "twin"
        for tree in trees:
            plant(tree)
        world = opened.enter_context(recording(base))
        supervised = opened.enter_context(ScriptedProcess(os.fsencode(trees[0] / "ws")))
        native = opened.enter_context(ScriptedProcess(os.fsencode(trees[1] / "ws")))
        for name, arguments in program:
            expected = native.do(ARCHITECTURES[machine()].numbers[name], *arguments)
            got = carried_out(supervised, world, name, arguments)
            if got.error == errno.EXDEV != expected.error:
                # For links and renames the workspace is a file system of its own.
                if not expected.error:
                    break
                continue
            assert (got.error, got.value < 0) == (expected.error, expected.value < 0), (name, arguments)
            if "open" in name and expected.value >= 0:
                for puppet, fd in ((supervised, got.value), (native, expected.value)):
                    if stat.S_ISREG(puppet.run("fstat", fd).st_mode):
                        puppet.run("write", fd, b"written")
                    puppet.run("close", fd)
            for part in ("ws", "out"):
                here, there = (without_times(photograph(tree / part)) for tree in trees)
                assert differences(there, here) == [], (name, arguments)
