"""Scanning a directory: what is captured, what is not and why, and that nothing outside is ever read."""

from __future__ import annotations

import mmap
import os
import resource
import socket
import stat
import subprocess
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.files.index.stat_index import Signature
from holdfast.files.linux import syscalls
from holdfast.files.local_tree import LocalTree
from holdfast.files.scan import _write_quiescence as write_quiescence
from holdfast.files.scan import file_capture
from holdfast.files.tree import DirtyPaths
from holdfast.files.write.rooted_access import Root
from holdfast.model.config.settings import Capture
from holdfast.model.content import SMALL_BLOB_BYTES, HashSink
from holdfast.model.errors import NotFoundError, StorageError
from holdfast.model.ids import Hash, hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    MapFile = Callable[[Path], AbstractContextManager[Callable[[bytes], object]]]

BASE = Hash(b"0123456789abcdef")
_TMPFS = 0x01021994


class Keeping:
    """Keeps all content, with the version before that it was told."""

    def __init__(self) -> None:
        self.contents: dict[Hash, bytes] = {}
        self.previous: dict[Hash, Hash | None] = {}

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        value = hash_bytes(data)
        self.contents[value] = data
        self.previous[value] = previous
        return value

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        data = b"".join(pieces)
        return self.add(data), len(data)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A root for trees that are too deep for pytest to remove."""
    path = tmp_path / "tree"
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def tree_of(root: Path, **options: object) -> LocalTree:
    return LocalTree(bytes(root), **options)  # type: ignore[arg-type]


def reasons(tree: LocalTree) -> dict[bytes, str]:
    return dict(tree.scan(HashSink()).not_captured)


def test_what_is_no_file_is_listed_and_never_opened(root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "service"))
        (root / "file").write_bytes(b"x")
        tree = tree_of(root)
        assert reasons(tree) == {b"fifo": "fifo", b"service": "socket"}
        assert reasons(tree) == {b"fifo": "fifo", b"service": "socket"}, (
            "an unchanged directory is reported in full, too"
        )


def test_too_large_files_are_said_and_not_read(root: Path) -> None:
    (root / "large").write_bytes(b"x" * 101)
    (root / "just").write_bytes(b"x" * 100)
    tree = tree_of(root, capture=Capture(max_file_bytes=100))
    scan = tree.scan(HashSink())
    assert list(scan.changes) == [b"just"]
    assert reasons(tree) == {b"large": "too large: 101 bytes, the limit is 100 (max_file_bytes)"}


def test_large_content_is_streamed(root: Path) -> None:
    content = os.urandom(3 * SMALL_BLOB_BYTES + 5)
    (root / "large").write_bytes(content)
    sink = Keeping()
    entry = tree_of(root).scan(sink).changes[b"large"]
    assert entry is not None
    assert sink.contents[entry.hash] == content
    assert entry.size == len(content)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user who may not read")
def test_what_cannot_be_read_is_said_and_the_scan_goes_on() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        for name in ("fine", "secret"):
            with open(f"{place}/{name}", "wb") as file:
                file.write(b"x")
        os.mkdir(f"{place}/locked")
        with open(f"{place}/locked/inside", "wb") as file:
            file.write(b"x")
        os.chmod(f"{place}/secret", 0)
        tree = LocalTree(os.fsencode(place))
        assert len(tree.scan(HashSink(), base=BASE).changes) == 3
        tree.settle(BASE)
        os.chmod(f"{place}/locked", 0)
        os.chmod(f"{place}/secret", 0o200)
        os.seteuid(65534)
        try:
            scan = tree.scan(HashSink(), base=BASE)
        finally:
            os.seteuid(0)
        assert [tuple(item) for item in scan.not_captured] == [
            (b"locked", "unreadable: Permission denied"),
            (b"secret", "unreadable: Permission denied"),
        ]
        assert scan.changes == {b"locked/inside": None, b"secret": None}
        assert not tree.scan(HashSink()).not_captured


def test_a_file_that_does_not_hold_still_is_unstable(root: Path) -> None:
    path = root / "busy"
    path.write_bytes(b"x" * (SMALL_BLOB_BYTES + 1))

    class Disturbing(HashSink):
        def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
            with path.open("ab") as file:
                file.write(b"y")
            return super().add_stream(pieces)

    tree = tree_of(root)
    scan = tree.scan(Disturbing())
    assert scan.changes == {}
    assert [tuple(item) for item in scan.not_captured] == [(b"busy", file_capture.UNSTABLE)]
    assert list(tree.scan(HashSink()).changes) == [b"busy"]


def test_a_file_that_vanishes_is_absent(root: Path) -> None:
    for name in ("a", "b"):
        (root / name).write_bytes(name.encode())

    class Removing(HashSink):
        def add(self, data: bytes, previous: Hash | None = None) -> Hash:
            for name in {b"a", b"b"} - {data}:
                (root / name.decode()).unlink(missing_ok=True)
            return super().add(data, previous)

    scan = tree_of(root).scan(Removing())
    assert len(scan.changes) == 1
    assert not scan.not_captured


def test_content_changed_right_after_a_scan_is_found(root: Path) -> None:
    """Same size, and the clock may not have ticked: the entry is racy, and hashed again."""
    tree = tree_of(root)
    for number in range(200):
        (root / "file").write_bytes(b"%04d" % number)
        entry = tree.scan(HashSink()).changes[b"file"]
        assert entry is not None
        assert entry.hash == hash_bytes(b"%04d" % number)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root to look at somebody else's files as a third")
def test_files_whose_writers_are_not_ours_to_know_are_read_again_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() + 10**10  # long after they were written: the clock is no reason to look again
    monkeypatch.setattr(time, "time_ns", lambda: now)
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        for name, owner in (("own", 1234), ("theirs", 0)):
            with open(os.path.join(base, name), "wb") as file:
                file.write(b"content")
            os.chown(os.path.join(base, name), owner, owner)
            os.chmod(os.path.join(base, name), 0o644)
        tree = LocalTree(os.fsencode(base))
        os.seteuid(1234)
        try:
            assert tree.scan(HashSink()).files_read == 2
            assert tree.scan(HashSink()).files_read == 1
        finally:
            os.seteuid(0)
        assert tree.index.get(b"own") is not None
        assert tree.index.get(b"theirs") is None


def test_racy_is_what_the_clock_cannot_tell_apart() -> None:
    moment = 1_700_000_000_500_000_000

    def racy(mtime: int, ctime: int) -> bool:
        return file_capture.is_racy(Signature(moment + mtime, moment + ctime, 0, 0, 0), moment)

    assert racy(-(10**10), 0)
    assert racy(-(10**10), -1_000_000)
    assert racy(-(10**10), 10**12), "a clock that is ahead of ours"
    assert racy(-1_000_000, -(10**10))
    assert not racy(-(10**9), -(10**9) + 1)
    assert not racy(10**12, -(10**9)), "a time in the future that somebody has set"
    whole = moment - 500_000_000
    assert file_capture.is_racy(Signature(whole - 10**9, whole - 10**9, 0, 0, 0), moment), (
        "a file system of whole seconds"
    )
    assert not file_capture.is_racy(Signature(whole - 3 * 10**9, whole - 3 * 10**9, 0, 0, 0), moment)


def test_what_a_mapping_writes_later_is_found(root: Path) -> None:
    path = root / "mapped"
    path.write_bytes(b"a" * 4096)
    os.utime(path, (1, 1))
    tree = tree_of(root)
    with path.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as mapping:
        for letter in b"bcdef":
            mapping[:4096] = bytes((letter,)) * 4096
            entry = tree.scan(HashSink()).changes[b"mapped"]
            assert entry is not None
            assert entry.hash == hash_bytes(bytes((letter,)) * 4096)


@pytest.mark.parametrize("seen", [True, False], ids=["seen in proc", "of another container"])
def test_what_a_mapping_writes_later_is_found_on_an_overlay(
    overlay: Path, map_file: MapFile, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """The kernel does not tell of the mapping, and a store to a page that waits to be written back leaves no time."""
    if not seen:
        with Root(bytes(overlay.parent)) as upper:
            if syscalls.file_system(upper.fd) == _TMPFS:
                pytest.skip("needs an upper layer that is written back")
        monkeypatch.setattr(write_quiescence, "files_being_written", set)
    path = overlay / "mapped"
    path.write_bytes(b"a" * 4096)
    os.utime(path, (1, 1))
    tree = tree_of(overlay)
    with map_file(path) as store:
        for letter in b"bcdef":
            store(bytes((letter,)) * 4096)
            before = path.stat().st_ctime_ns
            while time.time_ns() < before + 2 * file_capture._TICK_NS:
                pass  # so that what is found is no luck of the clock
            entry = tree.scan(HashSink()).changes[b"mapped"]
            assert entry is not None
            assert entry.hash == hash_bytes(bytes((letter,)) * 4096)


def test_an_overlay_is_not_hashed_over_and_over(overlay: Path) -> None:
    for number in range(10):
        (overlay / str(number)).write_bytes(b"x")
    tree = tree_of(overlay)
    while time.time_ns() < (overlay / "9").stat().st_ctime_ns + 2 * file_capture._TICK_NS:
        pass
    assert tree.scan(HashSink()).files_read == 10
    assert tree.scan(HashSink()).files_read == 0
    (overlay / "3").write_bytes(b"y")
    assert tree.scan(HashSink()).files_read == 1


def test_what_was_only_hashed_is_stored_by_the_next_scan_that_stores(root: Path) -> None:
    (root / "old").write_bytes(b"old")
    tree = tree_of(root)
    tree.scan(Keeping())
    tree.settle(BASE)
    (root / "old").write_bytes(b"newer")
    (root / "new").write_bytes(b"new")
    assert len(tree.scan(HashSink(), base=BASE).changes) == 2
    sink = Keeping()
    assert len(tree.scan(sink, base=BASE).changes) == 2
    assert set(sink.contents.values()) == {b"newer", b"new"}
    assert sink.previous == {hash_bytes(b"newer"): hash_bytes(b"old"), hash_bytes(b"new"): None}


def test_a_settled_index_serves_the_next_process(root: Path, tmp_path: Path) -> None:
    index = bytes(tmp_path / "index")
    for number in range(20):
        path = root / f"d{number % 4}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d" % number)
    tree = tree_of(root, index=index)
    # Racy entries are read again until the clock has gone on.
    while tree.scan(Keeping(), base=BASE).files_read or not tree.index.root:
        tree.settle(BASE)
    tree.settle(BASE)
    scan = tree_of(root, index=index).scan(Keeping(), base=BASE)
    assert (scan.base, scan.changes, scan.files_read) == (BASE, {}, 0)


def test_an_index_that_cannot_be_saved_is_only_logged(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "a").write_bytes(b"a")
    tree = tree_of(root, index=bytes(tmp_path / "none" / "index"))
    tree.scan(HashSink())
    tree.settle(BASE)
    assert "cannot write the index" in caplog.text
    caplog.clear()
    assert tree.scan(HashSink(), base=BASE).changes == {}


def test_i14_directories_of_ours_are_never_walked(root: Path) -> None:
    for name in ("home", "inner/home", "kept"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_bytes(b"x")
    os.symlink(root / "inner" / "home", root / "alias")
    never = (bytes(root / "home"), bytes(root / "alias"), bytes(root / "not there"))
    assert set(tree_of(root, never=never).scan(HashSink()).changes) == {b"kept/file", b"inner/home/file", b"alias"}
    elsewhere = root.parent / "elsewhere"
    os.symlink(root / "inner" / "home", elsewhere)
    found = set(tree_of(root, never=(bytes(elsewhere),)).scan(HashSink()).changes)
    assert found == {b"home/file", b"kept/file", b"alias"}, "told by device and inode"


def test_deep_trees_exhaust_neither_descriptors_nor_the_stack(deep: Path) -> None:
    depth = 1900
    fd = os.open(deep, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d", dir_fd=fd)
        if number % 50 == 0:
            os.mkdir("e", dir_fd=fd)
            os.close(os.open("e/side", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        tree = tree_of(deep)
        scan = tree.scan(HashSink())
        again = tree.scan(HashSink())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(scan.changes) == depth // 50 + 1
    assert b"d/" * depth + b"leaf" in scan.changes
    assert scan.changes == again.changes


def test_paths_that_are_too_long_are_said(deep: Path) -> None:
    fd = os.open(deep, os.O_RDONLY)
    long = "n" * 250
    for _ in range(17):
        os.mkdir(long, dir_fd=fd)
        os.close(os.open("short", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        inner = os.open(long, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("m" * 255, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    tree = tree_of(deep)
    for _ in range(2):
        scan = tree.scan(HashSink())
        assert len(scan.changes) == 17
        assert [reason for _, reason in scan.not_captured] == ["path too long: 4266 bytes"]


def test_i7_nothing_behind_a_link_is_read_whatever_races(root: Path, tmp_path: Path) -> None:
    """Directories and files are swapped for links to a secret while scans run."""
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = b"secret of somebody else"
    (outside / "file").write_bytes(secret)
    (root / "dir").mkdir()
    (root / "dir" / "file").write_bytes(b"harmless")
    os.symlink(outside, root / "link")
    stop = threading.Event()

    def attack() -> None:
        while not stop.is_set():
            os.rename(root / "dir", root / "aside")
            os.rename(root / "link", root / "dir")
            os.rename(root / "dir", root / "link")
            os.rename(root / "aside", root / "dir")
            os.rename(root / "dir" / "file", root / "dir" / "aside")
            os.symlink(outside / "file", root / "dir" / "file")
            os.unlink(root / "dir" / "file")
            os.rename(root / "dir" / "aside", root / "dir" / "file")

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        for _ in range(600):
            sink = Keeping()
            tree_of(root).scan(sink)
            assert secret not in sink.contents.values()
    finally:
        stop.set()
        attacker.join()


def test_a_root_that_is_gone_is_said(root: Path) -> None:
    root.rmdir()
    with pytest.raises(NotFoundError, match="is gone"):
        tree_of(root).scan(HashSink())


def test_a_lack_of_descriptors_is_no_reason_to_leave_files_out(root: Path) -> None:
    """A tree that cannot be read for want of resources is not taken for a smaller tree."""
    (root / "sub").mkdir()
    (root / "sub" / "file").write_bytes(b"x")
    tree = tree_of(root)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    held = [os.open(root, os.O_RDONLY) for _ in range(used - len(os.listdir("/proc/self/fd")) + 1)]
    try:
        failures = 0
        for spare in range(1, 8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                changes = tree.scan(HashSink()).changes
            except StorageError:
                failures += 1
            else:
                assert list(changes) == [b"sub/file"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert failures


def test_names_and_modes_survive(root: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", "é".encode(), b" "):
        with open(bytes(root) + b"/" + name, "wb") as file:
            file.write(name)
        os.chmod(bytes(root) + b"/" + name, 0o4751)
    os.symlink(b"\xff nowhere", bytes(root) + b"/link")
    changes = tree_of(root).scan(HashSink()).changes
    assert {path: entry and (entry.hash, entry.size, entry.mode) for path, entry in changes.items()} == {
        **{
            name: (hash_bytes(name), len(name), stat.S_IFREG | 0o751)
            for name in (b"\xff\xfe", b"new\nline", "é".encode(), b" ")
        },
        b"link": (hash_bytes(b"\xff nowhere"), 9, stat.S_IFLNK),
    }


def test_an_estimate_names_the_biggest(root: Path) -> None:
    def fill(name: str, files: int, content: Callable[[int], bytes]) -> None:
        (root / name / "deep").mkdir(parents=True)
        for number in range(files):
            (root / name / "deep" / str(number)).write_bytes(content(number))

    fill("many", 30, lambda _: b"")
    fill("big", 2, lambda _: b"x" * 5000)
    fill("ignored", 50, lambda _: b"x" * 5000)
    (root / ".gitignore").write_bytes(b"ignored/\n")
    found = tree_of(root).estimate(max_files=1000, max_bytes=100_000)
    assert (found.files, found.bytes, found.complete) == (33, 10_009, True)
    assert found.biggest == [(b"big", 2, 10_000), (b"many", 30, 0)]
    assert not tree_of(root).estimate(max_files=1, max_bytes=100_000).complete


def test_of_a_directory_in_which_known_files_changed_no_other_file_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("changed", "removed", "left alone"):
        (root / name).write_text("before")
    told: list[DirtyPaths] = [DirtyPaths(everything=True, paths=frozenset())]

    class Told:
        def drain(self) -> DirtyPaths:
            return told.pop()

    tree = tree_of(root)
    tree.dirty = Told()
    first = tree.scan(HashSink()).changes
    # So long after the last change that nothing is looked at for being fresh.
    now = time.time_ns() + 10**10
    monkeypatch.setattr(time, "time_ns", lambda: now)
    told.append(DirtyPaths(everything=True, paths=frozenset()))
    assert tree.scan(HashSink()).changes == first
    for name in ("changed", "left alone"):
        (root / name).write_text("after!")
    told.append(DirtyPaths(everything=False, paths=frozenset([b"changed"])))
    second = tree.scan(HashSink()).changes
    assert second[b"changed"] != first[b"changed"]
    assert second[b"left alone"] == first[b"left alone"]
    # A name that is gone, or new, is what a listing of the directory is for, and that finds everything in it.
    (root / "removed").unlink()
    told.append(DirtyPaths(everything=False, paths=frozenset([b"removed"])))
    third = tree.scan(HashSink()).changes
    assert third.keys() == {b"changed", b"left alone"}
    assert third[b"left alone"] == third[b"changed"]
