"""What the undo log forgets at its limit is said, and never half of a step: whenever steps end, are undone and redone,
each answer is exact or refused, and a refusal changes nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import LogLimits

NAMES = (b"a", b"b", b"c", b"d/e", b"d/f")
KIB = 1024


class Did(NamedTuple):
    """A step, as whoever asks for its undo remembers it."""

    step: StepId
    run: str
    before: dict[bytes, PathState]
    after: dict[bytes, PathState]


class History:
    """One thread does it all, as the keeper's second thread does: what races is the order of its jobs."""

    def __init__(self, base: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = base / "tree"
        (self.tree / "d").mkdir(parents=True)
        for name in NAMES[:4]:
            (self.tree / os.fsdecode(name)).write_bytes(b"orig " + name)
        self._root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        safeguards = Safeguards(SystemClock())
        self.log = UndoLog(os.fsencode(base / "log"), self._root, SystemClock(), safeguards)
        self.service = LocalUndoService(self.log, safeguards, intercepts=True)
        self.service.configure(LogLimits(max_bytes=48 * KIB))
        self.done: list[Did] = []
        self.undone: list[Did] = []
        self.pending: list[Callable[[], object]] = []
        self.exact = self.refused = 0

    def close(self) -> None:
        self.service.discard()
        self.log.close()
        os.close(self._root)

    def act(self) -> None:
        """A step, which ends and is finished at once or later."""
        run, before = f"run{self.random.randrange(3)}", photograph(self.tree)
        step = self.service.open("command", run=run)
        with InterceptedActor(self.log.recorder, os.fsencode(self.tree), step) as actor:
            actor.write(b"always", self.random.randbytes(16))
            for _ in range(self.random.randrange(3)):
                self._change(actor)
        if (finish := self.service.begin_close(step, 0)) is not None:
            self.pending.append(finish)
        self.done.append(Did(step, run, before, photograph(self.tree)))
        self.undone.clear()

    def _change(self, actor: InterceptedActor) -> None:
        one, other = self.random.sample(NAMES, 2)
        try:
            match self.random.randrange(4):
                case 0 | 1:
                    actor.write(one, self.random.randbytes(self.random.randrange(16 * KIB)))
                case 2:
                    actor.unlink(one)
                case _:
                    actor.rename(one, other)
        except FileNotFoundError:
            pass

    def finish(self) -> None:
        if self.pending:
            self.pending.pop(0)()

    def limit(self) -> None:
        self.service.configure(LogLimits(max_bytes=self.random.choice([8, 48, 200]) * KIB, max_steps=2))

    def tick(self) -> None:
        self.service.tick()

    def undo(self) -> None:
        count = min(len(self.done), self.random.choice([1, 1, 1, 2, 5]))
        if count:
            chosen = self.done[-count:]
            if self._is_exact(self.service.undo, chosen, chosen[0].before):
                del self.done[-count:]
                self.undone += reversed(chosen)

    def redo(self) -> None:
        if self.undone and self._is_exact(self.service.redo, self.undone[-1:], self.undone[-1].after):
            self.done.append(self.undone.pop())

    def _is_exact(
        self, reverse: Callable[[list[StepId]], object], chosen: list[Did], wanted: dict[bytes, PathState]
    ) -> bool:
        before, steps = photograph(self.tree), [did.step for did in chosen]
        try:
            reverse(steps)
        except (NotFoundError, RefusedError) as refused:
            assert differences(before, photograph(self.tree)) == []
            known = {info.id for info in self.service.steps()}
            assert not known.issuperset(steps), f"{steps} are refused, and none is forgotten: {refused}"
            self.refused += 1
            return False
        assert differences(wanted, photograph(self.tree)) == [], steps
        self.exact += 1
        return True

    def check(self) -> None:
        known, said = {info.id for info in self.service.steps()}, self.service.forgotten()
        for did in (*self.done, *self.undone):
            assert did.step in known or did.run in said, f"step {did.step} is lost, and nothing says so"


@pytest.mark.parametrize("chunk", range(2))
def test_what_the_limit_takes_is_said_and_the_rest_is_exact(tmp_path: Path, chunk: int) -> None:
    exact = refused = 0
    for seed in range(chunk * 10, chunk * 10 + 10):
        history = History(tmp_path / str(seed), seed)
        moves = [history.act] * 5 + [history.finish] * 4 + [history.undo] * 3 + [history.redo] * 2
        moves += [history.limit, history.tick]
        try:
            for _ in range(60):
                history.random.choice(moves)()
                history.check()
        except Exception as error:
            error.add_note(f"the history is number {seed}")
            raise
        finally:
            history.close()
        exact, refused = exact + history.exact, refused + history.refused
    assert exact
    assert refused
