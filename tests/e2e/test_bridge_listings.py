"""What a mount lists is what is there, though the kernel keeps what it was told."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.fuse import _listing_cache as listing_cache
from holdfast.bridge.fuse.change_watcher import ChangeWatcher
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.model.clock import SystemClock
from holdfast.testing import bridged as serving
from holdfast.testing.bridged import Bridged, SingleStep
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.wire.fuse.negotiation import Terms
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.fuse.request_bodies import Header

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .bridge import bridged

if TYPE_CHECKING:
    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply

pytestmark = [
    ONLY_WITH_FUSE,
    pytest.mark.skipif(os.geteuid() != 0, reason="the kernel keeps listings where fanotify tells of edits: needs root"),
]
ASKED: Counter[int] = Counter()
"""So many requests of each opcode."""


class _Counting(ServedFileSystem):
    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        def counted(operation: Operation) -> Operation:
            def answer(header: Header, body: object) -> Reply:
                ASKED[header.opcode] += 1
                return operation(header, body)

            return answer

        return {opcode: counted(operation) for opcode, operation in super().operations(terms).items()}


@contextmanager
def mounted(place: Path, *names: str) -> Generator[list[Bridged]]:
    """``tree``, mounted on each of ``names``, in this process."""
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock())
    step = LocalUndoService(log, intercepts=True).open("command")
    try:
        with ExitStack() as stack:
            for name in names:
                (place / name).mkdir()
            yield [
                stack.enter_context(Bridged(log, root_fd, step, bytes(place / name), watches=True)) for name in names
            ]
    finally:
        log.close()
        os.close(root_fd)


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(serving, "ServedFileSystem", _Counting)
    (tmp_path / "tree" / "d").mkdir(parents=True)
    for name in "abc":
        (tmp_path / "tree" / "d" / name).touch()
    return tmp_path


@pytest.fixture(name="untold")
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel hears of no edit beside the mount."""
    monkeypatch.setattr(ChangeWatcher, "_notice", lambda *_: None)


def settle(directory: Path) -> None:
    """Wait until what is listed of it can be kept."""
    wait_until(lambda: listing_cache.is_settled(listing_cache.stamp(directory.stat()), time.time_ns()))


def kept(place: Path, mount: str = "mnt", name: str = "d") -> Path:
    """``name`` in the mount, whose listing the kernel keeps from here on."""
    settle(place / "tree" / name)
    directory = place / mount / name
    os.listdir(directory)
    ASKED.clear()
    assert same(place, mount, name)
    assert not ASKED[Opcode.READDIRPLUS] + ASKED[Opcode.READDIR]
    return directory


def same(place: Path, mount: str = "mnt", name: str = "d") -> bool:
    """Whether each name is listed, once."""
    return sorted(os.listdir(place / mount / name)) == sorted(os.listdir(place / "tree" / name))


@pytest.mark.usefixtures("untold")
def test_a_second_walk_only_opens_the_directories(place: Path) -> None:
    for number in range(20):
        (place / "tree" / "d" / f"{number}").mkdir()
        (place / "tree" / "d" / f"{number}" / "file").write_text("x")
    settle(place / "tree" / "d" / "19")
    with mounted(place, "mnt"):
        for _ in range(2):
            ASKED.clear()
            assert len([path.stat() for path in (place / "mnt" / "d").rglob("*")]) == 43
        wait_until(lambda: ASKED[Opcode.RELEASEDIR] >= ASKED[Opcode.OPENDIR])
        assert set(ASKED) <= {Opcode.OPENDIR, Opcode.RELEASEDIR, Opcode.GETATTR}, ASKED
        assert ASKED[Opcode.GETATTR] <= 21, "the directories themselves: they were read"


@pytest.mark.usefixtures("untold")
def test_what_others_change_is_listed_though_nobody_has_told(place: Path) -> None:
    tree = place / "tree" / "d"
    with mounted(place, "mnt"):
        for change in (
            (tree / "new").touch,
            lambda: (tree / "new").rename(tree / "renamed"),
            (tree / "renamed").unlink,
            (tree / "inner").mkdir,
            (tree / "inner").rmdir,
        ):
            kept(place)
            change()
            assert same(place)
            assert same(place)


@pytest.mark.usefixtures("untold")
def test_a_time_of_modification_that_was_set_back_hides_nothing(place: Path) -> None:
    tree = place / "tree" / "d"
    with mounted(place, "mnt"):
        kept(place)
        before = tree.stat()
        (tree / "new").touch()
        os.utime(tree, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert same(place)
        settle(tree)
        assert same(place)


def test_what_was_changed_by_the_mount_is_listed_by_those_who_have_the_directory_open(place: Path) -> None:
    with mounted(place, "mnt"):
        directory = kept(place)
        fd = os.open(directory, os.O_RDONLY)
        for change in (
            (directory / "new").touch,
            lambda: (directory / "new").rename(directory / "renamed"),
            lambda: os.link(directory / "renamed", directory / "linked"),
            (directory / "renamed").unlink,
            (directory / "inner").mkdir,
            (directory / "inner").rmdir,
            lambda: (directory / "linked").rename(directory.parent / "away"),
        ):
            change()
            assert sorted(os.listdir(fd)) == sorted(os.listdir(place / "tree" / "d"))
            assert same(place)
        os.close(fd)


def test_those_who_have_it_open_are_told_of_what_others_change(place: Path) -> None:
    """Though the directory's time of modification is what it was."""
    tree = place / "tree" / "d"
    with mounted(place, "mnt"):
        fd = os.open(kept(place), os.O_RDONLY)
        assert sorted(os.listdir(fd)) == ["a", "b", "c"]
        before = tree.stat()
        (tree / "new").touch()
        os.utime(tree, ns=(before.st_atime_ns, before.st_mtime_ns))
        wait_until(lambda: "new" in os.listdir(fd))
        os.close(fd)


@pytest.mark.usefixtures("untold")
def test_who_changes_one_mount_is_seen_in_the_other(place: Path) -> None:
    with mounted(place, "mnt", "other"):
        for mount, other in (("mnt", "other"), ("other", "mnt")):
            kept(place, "mnt")
            kept(place, "other")
            (place / mount / "d" / f"by {mount}").touch()
            assert same(place, other)
            (place / mount / "d" / "a").rename(place / mount / "d" / "z")
            assert same(place, other)
            (place / mount / "d" / "z").rename(place / mount / "d" / "a")
            assert same(place, other)


def partly(directory: Path, count: int) -> tuple[Iterator[os.DirEntry[str]], list[str]]:
    """A reader of it, and what it has read so far."""
    reader = iter(os.scandir(directory))
    return reader, [next(reader).name for _ in range(count)]


@pytest.mark.usefixtures("untold")
def test_a_directory_that_changes_while_it_is_listed(place: Path) -> None:
    """What is kept is never partly of one state, and partly of another."""
    tree = place / "tree" / "d"
    for number in range(1500):
        (tree / f"{number}".rjust(100, "x")).touch()
    with mounted(place, "mnt"):
        settle(tree)
        others = [os.open(place / "mnt" / "d", os.O_RDONLY) for _ in range(2)]
        reader, read = partly(place / "mnt" / "d", 10)
        for name in sorted(os.listdir(tree))[::7]:
            (tree / name).rename(tree / f"new {name}")
        assert sorted(os.listdir(others[0])) == sorted(os.listdir(tree))
        read += [entry.name for entry in reader]
        assert {name for name in os.listdir(tree) if not name.startswith("new")} <= set(read)
        settle(tree)
        for fd in others:
            assert sorted(os.listdir(fd)) == sorted(os.listdir(tree))
        for fd in others:
            os.close(fd)
        del reader
        for _ in range(3):
            assert same(place)


@pytest.mark.parametrize("removes", [False, True], ids=["dropped", "dropped and changed"])
def test_the_rest_of_what_was_kept_and_dropped_is_listed(place: Path, removes: bool) -> None:
    """Of which this reader's handle was asked nothing yet."""
    tree = place / "tree" / "d"
    for number in range(2500):
        (tree / f"{number}".rjust(60, "x")).touch()
    with mounted(place, "mnt") as mounts:
        reader, read = partly(kept(place), 500)
        stay = set(os.listdir(tree))
        if removes:
            for name in read[::2]:
                (tree / name).unlink()
        mounts[0].caches.invalidator.invalidate_all()
        assert mounts[0].caches.invalidator.settle(20)
        read += [entry.name for entry in reader]
        assert ASKED[Opcode.READDIR] + ASKED[Opcode.READDIRPLUS]
        assert len(read) == len(set(read))
        assert set(read) == stay
        assert same(place)


def test_a_directory_with_many_entries(place: Path) -> None:
    tree = place / "tree" / "d"
    for number in range(4000):
        os.close(os.open(tree / f"{number}".rjust(30, "x"), os.O_CREAT | os.O_WRONLY))
    with mounted(place, "mnt"):
        directory = kept(place)
        with os.scandir(directory) as found:
            assert {entry.name: entry.inode() for entry in found} == {
                entry.name: entry.inode() for entry in os.scandir(tree)
            }
        for name in os.listdir(directory):  # as `rm` does
            os.unlink(directory / name)
        assert os.listdir(directory) == []


def test_what_is_hidden_is_not_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = place / "tree" / "d" / "hidden"
    hidden.mkdir()
    for number in range(2000):
        (place / "tree" / "d" / f"{number}".rjust(60, "x")).touch()
    shown = sorted(set(os.listdir(place / "tree" / "d")) - {"hidden"})
    fd = os.open(hidden, os.O_RDONLY)

    def world(log: UndoLog, root_fd: int, step: int) -> SingleStep:
        made = SingleStep(log, root_fd, step)
        made.hidden = (fd,)
        return made

    monkeypatch.setattr(serving, "SingleStep", world)
    with mounted(place, "mnt"):
        settle(place / "tree" / "d")
        for _ in range(2):
            assert sorted(os.listdir(place / "mnt" / "d")) == shown
        assert ASKED[Opcode.READDIR], "in part without attributes"
    os.close(fd)


@pytest.mark.usefixtures("untold")
def test_many_who_list_while_others_change(place: Path) -> None:
    tree, over = place / "tree" / "d", threading.Event()
    for number in range(500):
        (tree / f"{number}".rjust(60, "x")).touch()
    wrong: list[str] = []

    def look() -> None:
        while not over.is_set():
            found = os.listdir(place / "mnt" / "d")
            if len(found) != len(set(found)) or not {"a", "b", "c"} <= set(found):
                wrong.append("a name that was there all the time is missing, or comes twice")

    with mounted(place, "mnt"):
        readers = [threading.Thread(target=look) for _ in range(3)]
        for reader in readers:
            reader.start()
        chance = random.Random(1)
        for number in range(60):
            by = place / chance.choice(("tree", "mnt")) / "d"
            name = f"{chance.randrange(500)}".rjust(60, "x")
            if chance.random() < 0.5 and (by / name).exists():
                (by / name).unlink()
            else:
                (by / name).touch()
            assert same(place)
            if not number % 20:
                settle(tree)
        over.set()
        for reader in readers:
            reader.join()
        assert not wrong
        settle(tree)
        for _ in range(3):
            assert same(place)


@pytest.mark.parametrize("passes", [True, False], ids=["passthrough", "served"])
def test_what_a_new_file_is_like_is_never_out_of_date(place: Path, passes: bool) -> None:
    """The kernel may remember it when the file is made: it is empty, so that nothing can be mapped and written to."""
    (place / "mnt").mkdir()
    grown: tuple[Callable[[int, Path], object], ...] = (
        lambda fd, _: os.ftruncate(fd, 8192),
        lambda fd, _: os.write(fd, b"x" * 8192),
        lambda fd, _: os.posix_fallocate(fd, 0, 8192),
        lambda _, path: os.truncate(path, 8192),
    )
    # (By another process: whoever writes to a mapping in this one would keep the server from the interpreter.)
    with bridged(place / "tree", place / "log", place / "mnt", passthrough=passes):
        for number, grow in enumerate(grown):
            path, behind = (place / name / f"{number}" for name in ("mnt", "tree"))
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            assert os.fstat(fd).st_size == 0
            grow(fd, path)
            with mmap.mmap(fd, 8192) as memory:
                for at in (0, 4096):
                    memory[at : at + 1] = b"y"
                    memory.flush()
                    seen, is_now = os.fstat(fd), behind.stat()
                    assert (seen.st_size, seen.st_mtime_ns) == (is_now.st_size, is_now.st_mtime_ns)
            os.close(fd)
            seen, is_now = path.stat(), behind.stat()
            assert (seen.st_size, seen.st_mtime_ns) == (is_now.st_size, is_now.st_mtime_ns)
