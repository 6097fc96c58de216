"""I3, case 4: a disk that is full or broken: the operation fails and the file is as it was, or undo works.

Every system call that writes to the log fails once, at every moment of every operation.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.files.linux import reflink
from holdfast.model.clock import SystemClock
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.journal import preimages
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

from ..sampling import is_thorough, spread

LARGE = b"large" * 10_000
CALLS = ("write", "pwrite", "copy_file_range", "ftruncate", "link", "rename")


class Disk:
    """Fails from the call with the number ``at`` on, as often as ``times`` says."""

    def __init__(self, at: int, number: int, times: int) -> None:
        self._at, self._number, self._times = at, number, times
        self.count = 0
        self.is_on = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            if self.is_on:
                self.count += 1
                if self._at <= self.count < self._at + self._times:
                    raise OSError(self._number, os.strerror(self._number))
            return call(*args, **named)

        return step

    @contextmanager
    def failing(self) -> Generator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


OPERATIONS: dict[str, Callable[[InterceptedActor], object]] = {
    "create": lambda actor: os.close(actor.open(b"new", os.O_WRONLY | os.O_CREAT)),
    "mkdir": lambda actor: actor.mkdir(b"new"),
    "open small": lambda actor: os.close(actor.open(b"small", os.O_WRONLY | os.O_TRUNC)),
    "open large": lambda actor: os.close(actor.open(b"large", os.O_WRONLY | os.O_TRUNC)),
    "unlink": lambda actor: actor.unlink(b"large"),
    "rmdir": lambda actor: actor.rmdir(b"empty"),
    "rename over": lambda actor: actor.rename(b"small", b"large"),
    "rename directories": lambda actor: actor.rename(b"full", b"empty"),
    "exchange": lambda actor: actor.exchange(b"small", b"full"),
    "chmod": lambda actor: actor.chmod(b"small", 0o600),
    "link": lambda actor: actor.link(b"small", b"new"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for directory in ("empty", "full"):
        (tree / directory).mkdir(parents=True)
    for name, content in (("small", b"small"), ("large", LARGE), ("full/file", b"content")):
        (tree / name).write_bytes(content)
    return tree


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("can_rename", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_happens_or_not(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    can_rename: bool,
    operation: str,
) -> None:
    before = photograph(tree)
    # (Half of the calls fail for want of room, the others by a disk that is broken.)
    first = 2 if number == errno.EIO and not is_thorough() else 1
    for at in range(first, 50, spread(2)):
        with monkeypatch.context() as patch:
            disk = Disk(at, number, 1)
            _arm(patch, disk, can_rename=can_rename)
            is_over = _attempt(tree, before, disk, OPERATIONS[operation], at)
        if is_over:
            assert at > 1
            return
    raise AssertionError("it never came to its end")


def _arm(patch: pytest.MonkeyPatch, disk: Disk, *, can_rename: bool) -> None:
    for name in CALLS:
        patch.setattr(os, name, disk.wrap(getattr(os, name)))
    patch.setattr(reflink, "share_blocks", lambda *_: False)
    if can_rename:
        patch.setattr(preimages, "rename_to_free", disk.wrap(preimages.rename_to_free))
    else:

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EACCES, "")

        patch.setattr(preimages.Preimages, "move_in", refuse)
        patch.setattr(preimages.Preimages, "link_in", refuse)


def _attempt(
    tree: Path, before: dict[bytes, PathState], disk: Disk, operation: Callable[[InterceptedActor], object], at: int
) -> bool:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(tree.parent / f"log-{at}"), root, SystemClock())
    recover(log)
    service = LocalUndoService(log)
    step = service.open("command")
    try:
        with InterceptedActor(log.recorder, os.fsencode(tree), step) as actor:
            failed = False
            with disk.failing():
                try:
                    operation(actor)
                except OSError:
                    failed = True
            if failed:
                assert differences(_timeless(before), _timeless(photograph(tree))) == []
                assert list(log.preimages.numbers()) == []
                operation(actor)
        service.close(step)
        assert differences(before, photograph(tree)) != []
        service.undo([step])
        assert differences(before, photograph(tree)) == []
        return disk.count < at
    finally:
        log.close()
        os.close(root)


@pytest.mark.parametrize("times", [1, 100])
def test_an_undo_that_stops_in_the_middle_is_gone_on_with(
    tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    before = photograph(tree)

    def work(actor: InterceptedActor) -> None:
        for operation in ("open large", "rename over", "mkdir", "rename directories", "chmod"):
            with suppress(FileNotFoundError):
                OPERATIONS[operation](actor)

    for at in range(1, 200, 7):
        with monkeypatch.context() as patch:
            disk = Disk(at, errno.ENOSPC, times)
            _arm(patch, disk, can_rename=True)
            is_over = _undo(tree, before, disk, work, at)
        if is_over:
            caplog.clear()
            return
    raise AssertionError("it never came to its end")


def _undo(
    tree: Path, before: dict[bytes, PathState], disk: Disk, work: Callable[[InterceptedActor], None], at: int
) -> bool:
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(tree.parent / f"log-{at}"), root, SystemClock())
    try:
        recover(log)
        service = LocalUndoService(log)
        step = service.open("command")
        with InterceptedActor(log.recorder, os.fsencode(tree), step) as actor:
            work(actor)
        after = photograph(tree)
        with disk.failing():
            service.close(step)
            for change in (service.undo, service.redo):
                with suppress(HoldfastError):
                    change([step])
        is_over = disk.count < at
        # With room again, whatever state it is in can be brought to either end.
        service.tick()
        for change, expected in ((service.undo, before), (service.redo, after), (service.undo, before)):
            with suppress(NotFoundError):  # in that state already
                change([step])
            assert differences(expected, photograph(tree)) == []
        return is_over
    finally:
        log.close()
        os.close(root)


def _timeless(photo: dict[bytes, PathState]) -> dict[bytes, PathState]:
    """Without the times of directories: what is given back by a second rename leaves its mark there."""
    return {path: seen._replace(mtime=0) if stat.S_ISDIR(seen.mode) else seen for path, seen in photo.items()}
