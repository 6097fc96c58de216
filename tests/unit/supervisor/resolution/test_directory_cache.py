"""Directories that are recalled: what a caller names is always what is there now, however long ago it was looked at."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.supervisor.launch._caller_access_server import begin_serving
from holdfast.supervisor.operations import HANDLERS
from holdfast.supervisor.resolution import directory_cache
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD
from holdfast.supervisor.resolution.territory import ReadOnly
from holdfast.supervisor.syscalls.caller_access import CallerAccess, DirectAccess
from holdfast.supervisor.syscalls.pending_call import PendingCall
from holdfast.undo.journal.records import Make, StepId
from holdfast.undo.log import UndoLog
from holdfast.undo.recorder.recorder import Recorder

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class World:
    """What is supervised is this very process: it makes the calls, and carries them out."""

    forbidden: tuple[int, ...]

    def __init__(self, log: UndoLog, root_fd: int, forbidden: int) -> None:
        self.interceptor: Recorder = log.recorder
        self.reach = CallerAccess(begin_serving(), DirectAccess())
        self.root_fd = root_fd
        self.forbidden = (forbidden,)
        self.read_only: tuple[ReadOnly, ...] = ()
        self._step = log.new_id()
        log.recorder.begin(self._step, "api")

    def step(self, call: PendingCall) -> StepId:
        return self._step

    def holds(self, tgid: int) -> bool:
        return False

    def is_valid(self, call: PendingCall) -> bool:
        return True

    def note_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        pass

    def call(self, name: str, *arguments: int | bytes) -> None:
        kept = [ctypes.create_string_buffer(argument) for argument in arguments if isinstance(argument, bytes)]
        addresses = iter(map(ctypes.addressof, kept))
        values = [next(addresses) if isinstance(given, bytes) else given & (1 << 64) - 1 for given in arguments]
        args = (*values, *[0] * (6 - len(values)))
        reply = HANDLERS[name](PendingCall(1, os.getpid(), name, args, self.reach), self)  # type: ignore[arg-type]
        if reply.fd >= 0:
            os.close(reply.fd)

    def make(self, path: bytes, dirfd: int = AT_FDCWD) -> bytes:
        """Create a file as the call does, and return what the undo log calls it."""
        self.call("openat", dirfd, path, CREATE, 0o600)
        made = [record for record in self.interceptor.step(self._step).records if isinstance(record, Make)]
        return made[-1].path


@pytest.fixture(name="world")
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    monkeypatch.setattr(directory_cache, "_FRESH_NS", 1 << 60)
    for name in ("tree/a/d", "tree/b/d"):
        (tmp_path / name).mkdir(parents=True)
    root = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(tmp_path / "log"), root, SystemClock())
    hidden = os.open(tmp_path / "log", os.O_PATH)
    monkeypatch.chdir(tmp_path / "tree")
    world = World(log, root, hidden)
    yield world
    world.reach.close()
    directory_cache.DIRECTORIES.forget()
    for fd in (hidden, root):
        os.close(fd)
    log.close()


def test_a_directory_is_found_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.make(b"a/d/1") == b"a/d/1"
    resolved: list[object] = []
    monkeypatch.setattr("holdfast.supervisor.resolution.path_resolver.openat2", lambda *given: resolved.append(given))
    assert world.make(b"a/d/2") == b"a/d/2"
    world.call("rename", b"a/d/2", b"a/d/3")
    world.call("unlink", b"a/d/3")
    assert resolved == []


def test_the_same_words_mean_another_directory_from_another(world: World) -> None:
    os.chdir("a")
    assert world.make(b"d/1") == b"a/d/1"
    os.chdir("../b")
    assert world.make(b"d/1") == b"b/d/1"
    fd = os.open(".", os.O_RDONLY)
    assert world.make(b"2", fd) == b"b/2"
    other = os.open("../a", os.O_RDONLY)
    os.dup2(other, fd)
    assert world.make(b"2", fd) == b"a/2"
    for number in (fd, other):
        os.close(number)


def test_what_the_tree_itself_moves_is_known_at_once(world: World) -> None:
    os.chdir("b/d")
    assert world.make(b"1") == b"b/d/1"
    world.call("rename", b"../d", b"../e")
    assert world.make(b"2") == b"b/e/2"
    world.call("rename", b"../../b", b"../../c")
    assert world.make(b"3") == b"c/e/3"
    for name in (b"1", b"2", b"3"):
        world.call("unlink", name)
    world.call("rmdir", b"../e")
    with pytest.raises(FileNotFoundError):
        world.make(b"4")


def test_what_others_put_in_its_place_is_what_is_there(world: World) -> None:
    top = os.getcwdb()
    assert world.make(b"a/d/1") == b"a/d/1"
    assert world.make(top + b"/b/d/1") == b"b/d/1"
    os.rename("a/d", "a/e")
    os.symlink("../b/d", "a/d")
    assert world.make(b"a/d/2") == b"b/d/2"
    os.rename("b/d", "b/e")
    os.mkdir("b/d")
    assert world.make(top + b"/b/d/3") == b"b/d/3"
    assert os.listdir("b/d") == ["3"]


def test_few_are_kept_and_none_for_long(world: World) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for number in range(200):
        os.mkdir(b"a/%d" % number)
        world.make(b"a/%d/file" % number)
    assert open_files() < before + 100
    directory_cache.DIRECTORIES.forget()
    assert open_files() <= before + 1  # the caller's own directory
