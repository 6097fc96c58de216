"""What is done with an undo log when the keeper that had it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover


@contextmanager
def service(log: Path, tree: Path, limit: float = 60) -> Generator[LocalUndoService]:
    """The undo log, opened by this process as soon as its keeper has given it up; what was left open is recovered."""
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        opened = _opened(log, root, time.monotonic() + limit)
        try:
            recover(opened)
            yield LocalUndoService(opened)
        finally:
            opened.close()
    finally:
        os.close(root)


def undo_each(log: Path, tree: Path) -> int:
    """Undo every step that was done, the newest first; how many there were."""
    with service(log, tree) as opened:
        steps = sorted((step for step in opened.steps() if step.state == "done"), key=lambda step: -step.acted)
        for step in steps:
            assert opened.undo([step.id]).conflicts == ()
        return len(steps)


def _opened(log: Path, root: int, end: float) -> UndoLog:
    """The keeper seals its steps after the command has ended."""
    while True:
        try:
            return UndoLog(os.fsencode(log), root, SystemClock())
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
