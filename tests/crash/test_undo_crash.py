"""I3 for the undo log: killed inside a step, an undo or a recovery, the tree is the one before, whatever the moment."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.testing.crash_points import MUTATIONS, run_killed
from holdfast.testing.tree_actor import InterceptedActor, act_at_random
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..sampling import some, spread

MOST = 2000


def killed(at: int, work: Callable[[], None]) -> bool:
    """Do ``work`` in another process that is killed before its call number ``at``; False if it came to its end."""
    return run_killed(work, at, calls=MUTATIONS).killed


class Bench:
    """A tree and its undo log."""

    def __init__(self, base: Path, home: Path) -> None:
        self.tree = os.fsencode(base / "tree")
        self._log = os.fsencode(home / "log")
        os.mkdir(self.tree)
        self.root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)

    def keep(self) -> UndoLog:
        return UndoLog(self._log, self.root, SystemClock())

    def recover(self) -> None:
        log = self.keep()
        recovered = recover(log)
        done = (*recovered.finished, *([recovered.rolled_back] if recovered.rolled_back else []))
        log.close()
        assert [conflict for one in done for conflict in one.conflicts] == []

    def step(self, seed: int, count: int) -> None:
        log = self.keep()
        recover(log)
        service = LocalUndoService(log)
        step = service.open("command")
        chance = random.Random(seed)
        with InterceptedActor(log.recorder, self.tree, step) as actor:
            for _ in range(count):
                act_at_random(actor, chance)
                log.beat()
        service.close(step, 0)
        log.close()

    def undo_all(self) -> None:
        self._change("done", lambda service, steps: service.undo(steps))

    def redo_all(self) -> None:
        self._change("undone", lambda service, steps: service.redo(steps))

    def undo_newest(self) -> None:
        """Undo the newest step, which had been finished."""
        log = self.keep()
        recover(log)
        LocalUndoService(log).undo([max(head.id for head in log.heads.values() if head.state == "done")])
        log.close()

    def _change(self, state: str, change: Callable[[LocalUndoService, list[int]], object]) -> None:
        log = self.keep()
        recover(log)
        steps = sorted(head.id for head in log.heads.values() if head.state == state)
        for step in steps if state == "undone" else reversed(steps):
            change(LocalUndoService(log), [step])
        log.close()

    def photograph(self) -> dict[bytes, PathState]:
        return photograph(self.tree)

    def assert_as(self, expected: dict[bytes, PathState]) -> None:
        assert differences(expected, self.photograph()) == []

    def assert_no_litter(self) -> None:
        log = self.keep()
        known = {preimage.number for head in log.heads.values() for preimage in head.preimages}
        assert set(log.preimages.numbers()) <= known
        log.close()


@pytest.fixture(params=[True, False], ids=["", "nothing can be renamed into the log"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Also one where everything has to be copied, and is brought back as another object."""
    bench = Bench(tmp_path, tmp_path if request.param else request.getfixturevalue("elsewhere"))
    yield bench
    os.close(bench.root)


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_a_step_that_is_killed_anywhere_is_rolled_back(bench: Bench, seed: int) -> None:
    bench.step(seed, 15)
    before = bench.photograph()
    for at in range(1, MOST, 3 * spread(5)):
        is_killed = killed(at + seed, lambda: bench.step(seed + 1000, 15))
        bench.recover()
        if is_killed and differences(before, bench.photograph()) == []:
            bench.assert_no_litter()
            continue
        bench.undo_newest()
        bench.assert_as(before)
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_an_undo_that_is_killed_anywhere_is_finished(bench: Bench, seed: int) -> None:
    before = bench.photograph()
    bench.step(seed, 15)
    bench.step(seed + 1000, 15)
    after = bench.photograph()
    for at in range(1, MOST, 5 * spread(5)):
        is_killed = killed(at + seed, bench.undo_all)
        bench.undo_all()
        bench.assert_as(before)
        is_killed |= killed(at + seed, bench.redo_all)
        bench.redo_all()
        bench.assert_as(after)
        bench.assert_no_litter()
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_a_recovery_that_is_killed_anywhere_and_again_is_recovered(bench: Bench, seed: int) -> None:
    """Case 3."""
    chance = random.Random(seed)
    bench.step(seed, 15)
    before = bench.photograph()
    for at in range(1, MOST, 7 * spread(3)):
        # (Late enough for the step to be open, early enough for it not to be finished.)
        assert killed(chance.randrange(20, 60), lambda: bench.step(seed + 1000, 40))
        is_killed = killed(at + seed, bench.recover)
        while chance.random() < 0.5:
            killed(chance.randrange(1, 60), bench.recover)
        bench.recover()
        bench.assert_as(before)
        bench.recover()
        bench.assert_as(before)
        if not is_killed:
            return
    raise AssertionError("it never came to its end")


def _replaced_and_denied(bench: Bench) -> None:
    """What one step has made, another one replaces; then the first is taken back."""
    log = bench.keep()
    recover(log)
    service = LocalUndoService(log)
    denied, other = service.open("command"), service.open("command")
    with InterceptedActor(log.recorder, bench.tree, denied) as actor:
        actor.write(b"made", MADE)
    with InterceptedActor(log.recorder, bench.tree, other) as actor:
        actor.write(b"made~", b"another's")
        actor.rename(b"made~", b"made")
    service.close(other, 0)
    finish = service.begin_close(denied, 0, take_back=True)
    assert finish is not None
    finish()
    log.close()


MADE = b"made by the denied step"


def _contents(*roots: bytes) -> set[bytes]:
    files = (os.path.join(above, name) for root in roots for above, _, names in os.walk(root) for name in names)
    return {Path(os.fsdecode(path)).read_bytes() for path in files if os.path.isfile(path)}


def test_what_a_denied_step_had_made_is_not_lost_whenever_it_is_killed(tmp_path: Path) -> None:
    for at in range(1, MOST):
        base = tmp_path / str(at)
        base.mkdir()
        bench = Bench(base, base)
        is_killed = killed(at, lambda bench=bench: _replaced_and_denied(bench))
        log = bench.keep()
        recover(log)
        states = {head.id: head.state for head in log.heads.values()}
        if len(states) == 2:
            assert MADE in _contents(os.fsencode(base))
        if sorted(states.values()) == ["done", "undone"]:
            undone = LocalUndoService(log).undo([step for step, state in states.items() if state == "done"])
            assert MADE in _contents(os.fsencode(base))
            assert is_killed or (undone.conflicts, os.listdir(bench.tree)) == ((), [])
        assert is_killed or len(states) == 2
        log.close()
        os.close(bench.root)
        if not is_killed:
            return
    raise AssertionError("it never came to its end")
