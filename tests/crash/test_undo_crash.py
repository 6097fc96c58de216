"""I3 for the undo log: killed inside a step, an undo or a recovery, the tree is the one before, whatever the moment."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.files import kernel
from holdfast.model.clock import SystemClock
from holdfast.testing import acting
from holdfast.testing.acting import Actor, act_at_random
from holdfast.testing.photograph import differences, photograph
from holdfast.undo import preimages, recorder, reversal
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery import recover
from holdfast.undo.sealing import seal
from holdfast.undo.undoing import undo

_CALLS = (
    *("write", "pwrite", "rename", "unlink", "mkdir", "rmdir", "symlink", "link", "mknod", "chmod", "chown", "utime"),
    *("setxattr", "removexattr", "ftruncate", "copy_file_range", "open"),
)


def killed(at: int, work: Callable[[], None]) -> bool:
    """Do ``work`` in another process that is killed before its call number ``at``; False if it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            _arm(at)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _arm(at: int) -> None:
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **named)

        return step

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))
    rename = counted(kernel.renameat2)
    for module in (acting, preimages, recorder, reversal):
        module.renameat2 = rename  # type: ignore[attr-defined]


class Bench:
    """A tree and its undo log."""

    def __init__(self, base: Path) -> None:
        self.tree = os.fsencode(base / "tree")
        self._log = os.fsencode(base / "log")
        os.mkdir(self.tree)

    def keep(self) -> UndoLog:
        return UndoLog(self._log, os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY), SystemClock())

    def recover(self) -> None:
        log = self.keep()
        recovered = recover(log)
        log.close()
        done = (*recovered.finished, *([recovered.rolled_back] if recovered.rolled_back else []))
        assert [conflict for one in done for conflict in one.conflicts] == []

    def step(self, seed: int, count: int) -> None:
        log = self.keep()
        recover(log)
        step = log.new_id()
        log.recorder.begin(step, "api")
        chance = random.Random(seed)
        with Actor(log.recorder, self.tree, step) as actor:
            for _ in range(count):
                act_at_random(actor, chance)
                log.beat()
        seal(log, log.recorder.end(step, 0), state="done", ended_at=0, exit_code=0)
        log.journal.restart()
        log.close()

    def undo_all(self) -> None:
        log = self.keep()
        recover(log)
        for step in sorted((head.id for head in log.heads.values() if head.state == "done"), reverse=True):
            undo(log, [step])
        log.close()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_that_is_killed_is_rolled_back(bench: Bench, seed: int) -> None:
    bench.step(seed, 25)
    before = photograph(bench.tree)
    chance = random.Random(seed)
    # (Late enough for the step to be open, early enough for it not to be finished.)
    assert killed(chance.randrange(20, 60), lambda: bench.step(seed + 1000, 25))
    while chance.random() < 0.7:
        killed(chance.randrange(1, 60), bench.recover)
    bench.recover()
    assert differences(before, photograph(bench.tree)) == []
    bench.recover()
    assert differences(before, photograph(bench.tree)) == []


@pytest.mark.parametrize("seed", range(12))
def test_an_undo_that_is_killed_is_finished(bench: Bench, seed: int) -> None:
    before = photograph(bench.tree)
    bench.step(seed, 25)
    bench.step(seed + 1000, 25)
    chance = random.Random(seed)
    killed(chance.randrange(1, 250), bench.undo_all)
    while chance.random() < 0.7:
        killed(chance.randrange(1, 60), bench.recover)
    bench.undo_all()
    assert differences(before, photograph(bench.tree)) == []
