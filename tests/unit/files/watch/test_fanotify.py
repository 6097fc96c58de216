"""What fanotify remembers of paths, and what may happen while handles are turned into them."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.tree import DirtyPaths
from holdfast.files.watch import event_syscalls
from holdfast.files.watch._fanotify import FanotifyWatcher
from holdfast.files.watch._fanotify_events import Event
from holdfast.files.watch._fanotify_mounts import Mounts
from holdfast.files.watch.event_masks import MOVED_FROM, MOVED_TO, Q_OVERFLOW
from holdfast.files.watch.watched_root import WatchedRoot
from holdfast.model.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/b/file").touch()
    return tmp_path / "root"


@pytest.fixture
def watcher(root: Path) -> Iterator[FanotifyWatcher]:
    watched = WatchedRoot(os.fsencode(root))
    try:
        watcher = FanotifyWatcher(watched, lambda _: False)
    except (OSError, UnsupportedError) as error:
        watched.close()
        pytest.skip(f"needs fanotify: {error}")
    watcher.drain()
    yield watcher
    watcher.close()


def mounts_of(watcher: FanotifyWatcher) -> Mounts:
    """What looks file handles up: tests have the tree change at that moment, as no event can tell when it comes."""
    return watcher._mounts


def seen(watcher: FanotifyWatcher, change: Callable[[], object]) -> frozenset[bytes]:
    """The paths that a drain tells after a change. What other tests delete in the very moment of a drain is a doubt,
    in which a drain names none: then it is changed once more.
    """
    for _ in range(20):
        change()
        told = watcher.drain()
        if not told.everything:
            return told.paths
    raise AssertionError("every drain was in doubt")


def test_the_root_moved_away_and_back_while_a_handle_is_looked_up(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It seems to be outside for a moment; neither this answer nor any later one may believe that."""
    real, take = mounts_of(watcher).where, watcher._took_directory
    away = root.with_name("away")

    def untold(event: Event, directory: bytes, batch: object) -> None:
        """The news of the renames is still to come; directories that others delete are told of."""
        if not event.mask & (MOVED_FROM | MOVED_TO):
            take(event, directory, batch)  # type: ignore[arg-type]

    def moving(handle: bytes) -> bytes:
        root.rename(away)
        try:
            return real(handle)
        finally:
            away.rename(root)

    (root / "a/b/file").write_text("1")
    with monkeypatch.context() as patch:
        patch.setattr(mounts_of(watcher), "where", moving)
        patch.setattr(watcher, "_took_directory", untold)
        assert watcher.drain() == DirtyPaths(everything=False, paths=frozenset())
    root.rename(away)
    away.rename(root)
    assert watcher.drain().everything
    assert seen(watcher, lambda: (root / "a/b/file").write_text("2")) == {b"a/b/file"}


def test_the_renames_of_such_a_move_are_read_in_the_same_drain(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, away, moves = mounts_of(watcher).where, root.with_name("away"), [1]

    def moving(handle: bytes) -> bytes:
        if not moves:
            return real(handle)
        moves.pop()
        root.rename(away)
        try:
            return real(handle)
        finally:
            away.rename(root)

    monkeypatch.setattr(mounts_of(watcher), "where", moving)
    (root / "a/b/file").write_text("1")
    assert watcher.drain().everything


def test_a_directory_that_is_just_being_deleted(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handle leads nowhere and its end is not yet told: a doubt, once."""

    real = mounts_of(watcher).where

    def gone(handle: bytes) -> bytes:
        path = real(handle)
        if path.startswith(os.fsencode(root)):
            raise OSError(errno.ESTALE, "stale")
        return path

    monkeypatch.setattr(mounts_of(watcher), "where", gone)
    (root / "a/b/file").write_text("1")
    assert watcher.drain().everything
    (root / "a/b/file").write_text("2")
    assert not watcher.drain().everything  # what happens in a directory that is gone happens in no tree


def test_a_handle_that_cannot_be_looked_up(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: bytes) -> bytes:
        raise OSError(errno.ENOMEM, "no memory")

    with monkeypatch.context() as patch:
        patch.setattr(mounts_of(watcher), "where", refused)
        (root / "a/b/file").write_text("1")
        assert watcher.drain().everything
    assert seen(watcher, lambda: (root / "a/b/file").write_text("2")) == {b"a/b/file"}


def test_what_is_deleted_elsewhere_is_no_doubt(root: Path, watcher: FanotifyWatcher) -> None:
    """Others make and delete directories on the same file system all the time."""
    other = root.with_name("other")

    def come_and_go() -> DirtyPaths:
        for _ in range(20):
            (other / "x/y").mkdir(parents=True)
            (other / "x/y/file").write_text("1")
            (other / "x/y/file").unlink()
            (other / "x/y").rmdir()
            (other / "over").mkdir()
            (other / "x").rename(other / "over")
            (other / "over").rmdir()
            other.rmdir()
        return watcher.drain()

    # (What other tests delete in the very moment of a drain is a doubt: it is gone, and not told of yet.)
    drains = (come_and_go() for _ in range(20))
    assert any(drained == DirtyPaths(everything=False, paths=frozenset()) for drained in drains)


def test_an_overflow_forgets_and_says_everything(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.files.watch import _fanotify as fanotify

    with monkeypatch.context() as patch:
        lost = Event(Q_OVERFLOW, None, b"", None)
        patch.setattr(fanotify, "decode", lambda *_: iter([lost]))
        (root / "a/b/file").write_text("1")
        assert watcher.drain().everything
    assert seen(watcher, lambda: (root / "a/b/file").write_text("2")) == {b"a/b/file"}


def test_a_name_that_looks_deleted(root: Path, watcher: FanotifyWatcher) -> None:
    (root / "x (deleted)").mkdir()
    (root / "x (deleted)/file").touch()
    watcher.drain()
    watcher.refresh()
    assert seen(watcher, lambda: (root / "x (deleted)/file").write_text("1")) == {b"x (deleted)/file"}


def test_a_mount_in_the_tree_can_be_taken_away_under_the_watcher(root: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    point = root / "a"
    if libc.mount(b"none", bytes(point), b"tmpfs", 0, None):
        pytest.skip(f"needs the right to mount: {os.strerror(ctypes.get_errno())}")
    mounted = True
    watched = WatchedRoot(os.fsencode(root))
    try:
        try:
            watcher = FanotifyWatcher(watched, lambda _: False)
        except (OSError, UnsupportedError) as error:
            watched.close()
            pytest.skip(f"needs fanotify: {error}")
        watcher.drain()
        for number in range(2):
            (point / f"d{number}").mkdir()
            (point / f"d{number}/file").touch()
            assert f"a/d{number}/file".encode() in watcher.drain().paths
        assert libc.umount2(bytes(point), 0) == 0, os.strerror(ctypes.get_errno())
        mounted = False
        assert watcher.drain().everything
        (point / "b/new").touch()
        assert watcher.drain() == DirtyPaths(False, frozenset((b"a/b/new",)))
        watcher.close()
    finally:
        if mounted:
            libc.umount2(bytes(point), 2)


def test_a_directory_that_is_renamed_elsewhere_makes_nothing_forgotten(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy file system somebody renames directories all the time; what is known of the others stays known."""
    elsewhere = root.with_name("elsewhere")
    (elsewhere / "one").mkdir(parents=True)
    (root / "a/b/file").write_text("1")
    (elsewhere / "file").touch()
    watcher.drain()
    (elsewhere / "one").rename(elsewhere / "two")
    watcher.drain()
    looked_up, where = [], mounts_of(watcher).where
    monkeypatch.setattr(mounts_of(watcher), "where", lambda handle: looked_up.append(where(handle)) or where(handle))
    (root / "a/b/file").write_text("2")
    (elsewhere / "other").touch()
    assert watcher.drain().paths == {b"a/b/file"}
    assert not {os.fsencode(root / "a/b"), os.fsencode(elsewhere)} & set(looked_up)


@pytest.mark.parametrize("way", [("elsewhere/one", "root/a/one"), ("root/a/b", "elsewhere/b")], ids=["in", "out"])
def test_a_directory_that_crosses_the_edge_of_the_tree_is_looked_up_anew(
    root: Path, watcher: FanotifyWatcher, way: tuple[str, str]
) -> None:
    base = root.parent
    (base / "elsewhere/one/deep").mkdir(parents=True)
    for name in ("elsewhere/one/deep/file", "root/a/b/file"):
        (base / name).write_text("1")
    watcher.drain()
    (base / way[0]).rename(base / way[1])
    watcher.drain()
    file = base / way[1] / ("deep/file" if way[0].startswith("elsewhere") else "file")
    told = seen(watcher, lambda: file.write_text("2"))
    assert told == ({b"a/one/deep/file"} if way[1].startswith("root") else set())


def test_a_directory_that_is_gone_is_looked_for_once(
    root: Path, watcher: FanotifyWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = root.with_name("gone")
    gone.mkdir()
    fd = os.open(gone, os.O_RDONLY)
    handle = event_syscalls.filesystem_id(fd) + event_syscalls.file_handle(fd)
    os.close(fd)
    watcher.drain()
    asked, where = [], mounts_of(watcher).where

    def counting(wanted: bytes) -> bytes:
        asked.append(wanted)
        return where(wanted)

    for number in range(20):
        (gone / str(number)).touch()
    for number in range(20):
        (gone / str(number)).unlink()
    gone.rmdir()
    monkeypatch.setattr(mounts_of(watcher), "where", counting)
    assert not watcher.drain().paths
    assert asked.count(handle) == 1


def test_what_is_skimmed_during_a_drain_is_in_its_answer(root: Path) -> None:
    told: list[bytes | None] = []

    def notice(path: bytes | None, *_others: object) -> None:
        told.append(path)
        watcher.skim()  # (as the other thread may at any moment)

    watched = WatchedRoot(os.fsencode(root))
    try:
        watcher = FanotifyWatcher(watched, lambda _: False, notice)
    except (OSError, UnsupportedError) as error:
        watched.close()
        pytest.skip(f"needs fanotify: {error}")
    watcher.drain()
    (root / "a/early").touch()
    watcher.skim()
    (root / "a/late").touch()
    watcher.drain()
    watcher.close()
    assert {b"a/early", b"a/late"} <= {*told}
