"""I3 for the undo log where the changes come by a mount: whenever the server is killed, the tree is the one before.

Whoever changes the tree is another process, as with any mount.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import Bridged
from holdfast.testing.crash_points import MUTATIONS, run_killed
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..fuse import ONLY_WITH_FUSE
from ..sampling import some

pytestmark = ONLY_WITH_FUSE

_ACT = """
import os, random, sys
from holdfast.testing.tree_actor import SystemActor, act_at_random
chance = random.Random(int(sys.argv[2]))
with SystemActor(os.fsencode(sys.argv[1]), 1) as actor:
    for _ in range(int(sys.argv[3])):
        act_at_random(actor, chance)
print("done")
"""
CALLS = [call for call in MUTATIONS if call != (os, "mkdir")]
"""(Hundreds of which open a log.)"""


class Bench:
    """A tree, its undo log, and where it is mounted for a step."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self._mount = base / "mount"
        self._log = os.fsencode(base / "log")
        for path in (self.tree, self._mount):
            path.mkdir()
        self.root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)

    def keep(self) -> UndoLog:
        return UndoLog(self._log, self.root, SystemClock())

    def step(self, seed: int, count: int) -> None:
        with closing(self.keep()) as log:
            recover(log)
            service = LocalUndoService(log)
            step = service.open("command")
            words = [sys.executable, "-c", _ACT, str(self._mount), str(seed), str(count)]
            with Bridged(log, self.root, step, os.fsencode(self._mount)):
                done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.stdout == "done\n", done
            service.close(step, 0)

    def unmount(self) -> None:
        """What a killed server has left."""
        subprocess.run(["umount", "--lazy", self._mount], capture_output=True, check=False)

    def recover(self) -> None:
        with closing(self.keep()) as log:
            recovered = recover(log)
        done = (*recovered.finished, *([recovered.rolled_back] if recovered.rolled_back else []))
        assert [conflict for one in done for conflict in one.conflicts] == []

    def undo_newest(self) -> None:
        self._change("done")

    def redo_newest(self) -> None:
        self._change("undone")

    def _change(self, state: str) -> None:
        with closing(self.keep()) as log:
            recover(log)
            service = LocalUndoService(log)
            newest = max(log.heads)
            if log.heads[newest].state == state:
                (service.undo if state == "done" else service.redo)([newest])

    def photograph(self) -> dict[bytes, PathState]:
        return photograph(self.tree)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    os.close(bench.root)


@pytest.mark.parametrize("part", some(range(8), 2))
def test_i3_a_step_of_a_server_that_is_killed_anywhere_is_rolled_back(bench: Bench, part: int) -> None:
    bench.step(part, 15)
    before = bench.photograph()
    changes = len(run_killed(lambda: bench.step(part + 1000, 15), 0, told=True, calls=CALLS).steps)
    bench.undo_newest()
    rolled_back = 0
    for fatal in range(5 + part, changes, max(changes // 6, 1)):
        is_killed = run_killed(lambda: bench.step(part + 1000, 15), fatal, calls=CALLS).killed
        bench.unmount()
        bench.recover()
        if is_killed and differences(before, bench.photograph()) == []:
            rolled_back += 1
        else:
            bench.undo_newest()
        assert differences(before, bench.photograph()) == [], fatal
        bench.recover()
        assert differences(before, bench.photograph()) == [], fatal
    assert rolled_back > 1


@pytest.mark.parametrize("part", some(range(8), 1))
def test_i3_an_undo_of_what_came_by_a_mount_that_is_killed_anywhere_is_finished(bench: Bench, part: int) -> None:
    before = bench.photograph()
    bench.step(part, 40)
    after = bench.photograph()
    for fatal in range(5 + part, 200, 9):
        is_killed = False
        for change, expected in ((bench.undo_newest, before), (bench.redo_newest, after)):
            is_killed |= run_killed(change, fatal, calls=CALLS).killed
            change()
            assert differences(expected, bench.photograph()) == [], fatal
        if not is_killed:
            return
