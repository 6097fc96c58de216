"""I1: steps that remove directories, make them again and move them, undone together and brought forward again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.testing.tree_actor import TreeOperations
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..feeders import BOTH, Feeder
from ..sampling import some
from ..waiting import wait_until_settled

NAMES = (b"d", b"e", b"d/f", b"e/f")


@contextmanager
def keeper(base: Path) -> Generator[tuple[UndoLog, LocalUndoService]]:
    root = os.open(base / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    try:
        recover(log)
        yield log, LocalUndoService(log)
        wait_until_settled(log)
    finally:
        log.close()
        os.close(root)


def act(actor: TreeOperations, chance: random.Random) -> None:
    path, other = chance.choice(NAMES), chance.choice(NAMES)
    operations: tuple[Callable[[], None], ...] = (
        lambda: actor.mkdir(path),
        lambda: actor.mkdir(path),
        lambda: actor.rmdir(path),
        lambda: actor.rmdir(path),
        lambda: actor.rename(path, other),
        lambda: actor.exchange(path, other),
        lambda: actor.write(path + b"/a", b"the same"),
        lambda: actor.unlink(path + b"/a"),
    )
    with suppress(OSError):
        chance.choice(operations)()


@pytest.mark.parametrize("feeder", BOTH)
@pytest.mark.parametrize("seed", some(range(30), 13))
def test_undone_together_and_redone_exactly(tmp_path: Path, seed: int, feeder: Feeder) -> None:
    chance = random.Random(seed)
    tree = tmp_path / "tree"
    (tree / "d/f").mkdir(parents=True)
    (tree / "d/a").write_bytes(b"the same")
    steps: list[int] = []
    photos = [photograph(tree)]
    with keeper(tmp_path) as (log, service):
        wanted = chance.randrange(2, 7)
        while len(steps) < wanted:
            step = service.open("command", run="run")
            with feeder(log, os.fsencode(tree), step, b"") as actor:
                for _ in range(chance.randrange(2, 6)):
                    act(actor, chance)
            if service.close(step, 0) is not None:
                steps.append(step)
    photos.append(photograph(tree))
    for at in (0, 1, 0, 1):
        with keeper(tmp_path) as (_, service):
            report = service.redo(steps) if at else service.undo(steps)
        assert report.conflicts == ()
        assert differences(photos[at], photograph(tree)) == []
