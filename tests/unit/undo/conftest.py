"""A tree, its undo log, and steps done in it through the interceptor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.journal.heartbeat import encode_beat, read_beat
from holdfast.undo.journal.records import StepId
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import BEAT_SECONDS, recover
from holdfast.undo.service import LogLimits, UndoReport


class Bench:
    """See the module."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self.directory = base / "log"
        self.tree.mkdir(parents=True)
        self.limits = LogLimits()

    @contextmanager
    def keeper(self) -> Generator[UndoLog]:
        """The log, as one process that keeps it has it."""
        root = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        log = UndoLog(os.fsencode(self.directory), root, SystemClock(), limits=self.limits)
        try:
            yield log
        finally:
            log.close()
            os.close(root)

    def open_step(self, log: UndoLog, work: Callable[[InterceptedActor], object]) -> StepId:
        """Begin a step, do ``work`` in it, and leave it open."""
        step = log.new_id()
        log.recorder.begin(step, "api")
        with InterceptedActor(log.recorder, os.fsencode(self.tree), step) as actor:
            work(actor)
        return step

    def step(self, log: UndoLog, work: Callable[[InterceptedActor], object]) -> StepId:
        """A finished step that does ``work``."""
        step = self.open_step(log, work)
        self.finish(log, step)
        return step

    def finish(self, log: UndoLog, step: StepId) -> None:
        """End a step that is open."""
        seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
        log.restart()

    def abandon(self, work: Callable[[InterceptedActor], object]) -> None:
        """A keeper that is gone in the middle of a step."""
        with self.keeper() as log:
            recover(log)
            self.open_step(log, work)
            log.beat()

    def end_life(self) -> int:
        """Let the keeper that is gone have been killed now: what is changed after the returned time is not its own."""
        found = read_beat(os.fsencode(self.directory))
        assert found is not None
        now, slack = time.time_ns(), int(2 * BEAT_SECONDS * 1e9)
        (self.directory / "beat").write_bytes(encode_beat(found._replace(at=now - slack)))
        (journal,) = self.directory.glob("journal-*")
        os.utime(journal, ns=(now, now - slack))
        return now

    def photograph(self) -> dict[bytes, PathState]:
        return photograph(self.tree)

    def assert_as(self, before: dict[bytes, PathState]) -> None:
        assert differences(before, self.photograph()) == []


def undo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> UndoReport:
    """Undo finished steps, as the process that keeps the log does."""
    return LocalUndoService(log).undo(list(steps), force=force)


def redo(log: UndoLog, steps: Iterable[StepId], *, force: bool = False) -> UndoReport:
    """Bring undone steps forward again, likewise."""
    return LocalUndoService(log).redo(list(steps), force=force)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
