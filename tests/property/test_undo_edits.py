"""I1, I8: steps with hard links, moved and exchanged directories; alone, and with edits by hand that are told of.

Alone, no barrier is ever set, and all goes back and forth exactly. With edits, an undo either is refused and touches
nothing, or goes through whole, and what was edited by hand is still somewhere.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.model.clock import SystemClock
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import TreeOperations
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..feeders import BOTH, Feeder
from ..sampling import some
from ..waiting import wait_until_settled

DIRECTORIES = (b"d", b"e", b"d/g")
FILES = (b"f", b"x", b"d/y", b"e/y", b"d/g/z", b"d/x", b"e/x", b"g", b"h")
MARK = re.compile(rb"<\d+>")


@contextmanager
def keeper(base: Path) -> Generator[tuple[UndoLog, LocalUndoService]]:
    root = os.open(base / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    try:
        recover(log)
        yield log, LocalUndoService(log, intercepts=True)
        wait_until_settled(log)
    finally:
        log.close()
        os.close(root)


def prepare(base: Path) -> Path:
    tree = base / "tree"
    for name in DIRECTORIES:
        (tree / os.fsdecode(name)).mkdir(parents=True)
    for name in ("f", "x", "d/y", "e/y", "d/g/z"):
        (tree / name).write_bytes(b"orig " + os.fsencode(name))
    os.link(tree / "f", tree / "d/x")
    os.link(tree / "e/y", tree / "h")
    return tree


def act(actor: TreeOperations, chance: random.Random) -> None:
    path, other = chance.choice(FILES), chance.choice(FILES)
    one, two = chance.choice(DIRECTORIES), chance.choice(DIRECTORIES)
    operations: tuple[Callable[[], None], ...] = (
        lambda: actor.write(path, b"step"),
        lambda: actor.write(path, b"step", at=chance.randrange(4, 9)),
        lambda: actor.link(path, other),
        lambda: actor.link(path, other),
        lambda: actor.unlink(path),
        lambda: actor.unlink(path),
        lambda: actor.rename(path, other),
        lambda: actor.exchange(path, other),
        lambda: actor.chmod(path, chance.choice((0o600, 0o644))),
        lambda: actor.rename(one, two),
        lambda: actor.exchange(one, two),
        lambda: actor.mkdir(one),
        lambda: actor.rmdir(one),
    )
    with suppress(OSError):
        chance.choice(operations)()


def steps_of(
    feeder: Feeder,
    log: UndoLog,
    service: LocalUndoService,
    tree: Path,
    chance: random.Random,
    edit: Callable[[], object],
) -> list[int]:
    """A few steps, one after the other, with ``edit`` called in the midst of them and between."""
    steps: list[int] = []
    for _ in range(chance.randrange(2, 5)):
        step = service.open("command", run="run")
        with feeder(log, os.fsencode(tree), step, b"") as actor:
            for _ in range(chance.randrange(1, 6)):
                act(actor, chance)
                edit()
        if service.close(step, 0) is not None:
            steps.append(step)
        edit()
    return steps


@pytest.mark.parametrize("feeder", BOTH)
@pytest.mark.parametrize("seed", some(range(30), 13))
def test_what_steps_do_alone_is_nobody_elses(tmp_path: Path, seed: int, feeder: Feeder) -> None:
    chance = random.Random(seed)
    tree = prepare(tmp_path)
    before = photograph(tree)
    with keeper(tmp_path) as (log, service):
        steps = steps_of(feeder, log, service, tree, chance, lambda: None)
        assert [barrier.paths for barrier in service.barriers()] == []
    after = photograph(tree)
    orders: Sequence[Sequence[Sequence[int]]] = ([steps], [[step] for step in reversed(steps)])
    for order in orders if steps else ():
        for chosen in order:
            with keeper(tmp_path) as (_, service):
                assert service.undo(chosen).conflicts == ()
        assert differences(before, photograph(tree)) == []
        for chosen in reversed(order):
            with keeper(tmp_path) as (_, service):
                assert service.redo(chosen).conflicts == ()
        assert differences(after, photograph(tree)) == []


class Hand:
    """Somebody who edits by hand now and then, and is seen."""

    def __init__(self, service: LocalUndoService, tree: Path, chance: random.Random) -> None:
        self._desk, self._tree, self._chance = service, tree, chance
        self._count = 0

    def edit(self) -> None:
        if self._chance.random() > 0.2:
            return
        if self._chance.random() > 0.3:
            self._append()
        else:
            self._move()

    def _append(self) -> None:
        path = self._chance.choice(FILES)
        with suppress(OSError):
            fd = os.open(os.path.join(os.fsencode(self._tree), path), os.O_WRONLY | os.O_APPEND)
            self._count += 1
            os.write(fd, b"<%d>" % self._count)
            os.close(fd)
            self._desk.record_foreign_edit([path], "vim (12)", objects=[whose(self._tree, path)])

    def _move(self) -> None:
        path, other = self._chance.choice(DIRECTORIES), self._chance.choice((*DIRECTORIES, b"away"))
        if (self._tree / os.fsdecode(other)).exists():
            return
        with suppress(OSError):
            os.rename(self._tree / os.fsdecode(path), self._tree / os.fsdecode(other))
            self._desk.record_foreign_edit([path, other], "mv (13)")


def whose(tree: Path, path: bytes) -> Identity:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return identity(root, path)
    finally:
        os.close(root)


def marks(tree: Path) -> set[bytes]:
    return {mark for path in tree.rglob("*") if path.is_file() for mark in MARK.findall(path.read_bytes())}


@pytest.mark.parametrize("feeder", BOTH)
@pytest.mark.parametrize("seed", some(range(45), 15))
def test_an_edit_by_hand_is_never_lost(tmp_path: Path, seed: int, feeder: Feeder) -> None:
    chance = random.Random(seed)
    tree = prepare(tmp_path)
    with keeper(tmp_path) as (log, service):
        steps = steps_of(feeder, log, service, tree, chance, Hand(service, tree, chance).edit)
    tries = [steps, steps[-1:], steps[:1], steps[1:], *([step] for step in reversed(steps))]
    for chosen in tries if steps else ():
        try_to_undo(tmp_path, tree, chosen)


def try_to_undo(base: Path, tree: Path, chosen: Sequence[int]) -> None:
    there, edited = photograph(tree), marks(tree)
    with keeper(base) as (_, service):
        if not chosen or any(step.state != "done" for step in service.steps() if step.id in chosen):
            return
        try:
            report = service.undo(chosen)
        except RefusedError:
            assert differences(there, photograph(tree)) == []
            return
        assert report.conflicts == ()
        assert edited <= marks(tree)
        service.redo(chosen)
        assert_alike(there, photograph(tree))


def assert_alike(there: dict[bytes, PathState], now: dict[bytes, PathState]) -> None:
    assert differences(there, now) == []
