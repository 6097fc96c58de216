"""Whole copies that share no blocks: exact, no larger than is allowed and there is room for, gone when cut short."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.files.directories.directory_size import DirectorySize, size_of
from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux import syscalls
from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import RefusedError, StorageError
from holdfast.snapshot.full_copy import copy_provider, refuse_huge
from holdfast.snapshot.overlay.provider import overlay_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.testing.tree_state import PathState, differences, photograph

from ...disks import mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.snapshot.port import Provider

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with what copies like to lose: 3 MiB and a little in it, in 6 files, one of them with two names."""
    root = tmp_path / "tree"
    (root / "node_modules/.bin").mkdir(parents=True)
    (root / "node_modules/big").write_bytes(os.urandom(3 * MIB))
    os.link(root / "node_modules/big", root / "same")
    (root / "node_modules/.bin/tool").symlink_to("../big")
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (root / os.fsdecode(b"n\xe9\n")).write_bytes(b"odd")
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o400)
    os.setxattr(root / "same", "user.holdfast", b"\0value")
    os.mkfifo(root / "fifo")
    (root / "node_modules").chmod(0o2750)
    for path in (root / "same", root / "node_modules/.bin/tool", root / "node_modules", root):
        os.utime(path, ns=(1_000_000_007, 1_234_567_891), follow_symlinks=False)
    return root


def place(root: Path, most: int = 0) -> ProviderContext:
    return ProviderContext(bytes(root), bytes(root.with_name("state")), "one", most_bytes=most)


def nothing_is_left(root: Path) -> bool:
    state = root.with_name("state")
    return not (state / "copies").exists() and list(copy_provider(place(root)).tokens()) == []


def test_a_copy_is_the_same_in_everything(root: Path) -> None:
    before = photograph_of(root)
    provider = copy_provider(place(root))
    prepared = provider.prepare("worktree")
    taken = provider.snapshot(prepared, "s")
    branch = provider.branch(taken, "b", "worktree")
    for path in (prepared.path, branch.path):
        assert differences(before, photograph_of(path)) == []
        assert os.stat(os.path.join(path, b"sparse")).st_size == 1 << 40
    assert differences(before, photograph_of(root)) == []
    for allocation in provider.tokens():
        provider.cleanup(allocation.token)
    assert nothing_is_left(root)


def photograph_of(root: Path | bytes) -> dict[bytes, PathState]:
    """Without reading through a file of a tebibyte."""
    hole = os.path.join(os.fsencode(root), b"sparse")
    os.truncate(hole, 0)
    os.utime(hole, ns=(7, 7))
    try:
        return photograph(root)
    finally:
        os.truncate(hole, 1 << 40)
        os.utime(hole, ns=(7, 7))


def test_what_a_copy_takes_is_counted_as_it_lies_there(root: Path) -> None:
    (root / "home").mkdir()
    (root / "home/much").write_bytes(bytes(MIB))
    found = size_of(bytes(root), without=find_protected([bytes(root / "home")]))
    assert found.files == 6
    assert 3 * MIB <= found.bytes < 3 * MIB + (1 << 18), "a hole takes nothing, and a file of two names its room once"
    assert size_of(bytes(root), without=find_protected([])) == DirectorySize(7, found.bytes + MIB)
    with pytest.raises(FileNotFoundError):
        size_of(bytes(root / "gone"), without=find_protected([]))


def test_no_more_is_copied_than_is_allowed(root: Path) -> None:
    provider = copy_provider(place(root, 3 * MIB))
    line = provider.prepare("in-place")
    for call in (lambda: provider.prepare("worktree"), lambda: provider.snapshot(line, "s")):
        with pytest.raises(RefusedError) as refused:
            call()
        assert refused.value.code == "copy_too_large"
        assert "6 files of 3.2 MB, more than the 3.1 MB of snapshot.max_copy_bytes" in refused.value.message
        assert refused.value.hint
    assert [one.token for one in provider.tokens()] == [line.token]
    provider.cleanup(line.token)
    assert nothing_is_left(root)
    enough = copy_provider(place(root, 4 * MIB))
    enough.cleanup(enough.prepare("worktree").token)


@pytest.mark.root
def test_an_overlay_copies_no_more_than_is_allowed_either(root: Path) -> None:
    provider = overlay_provider(place(root, MIB))
    if "worktree" not in provider.detect().modes:
        pytest.skip(f"no overlay can be mounted at a path of its own: {provider.detect().notes}")
    if any("share no blocks" in note for note in provider.detect().notes):
        with pytest.raises(RefusedError) as refused:
            provider.prepare("worktree")
        assert refused.value.code == "copy_too_large"
        assert list(provider.tokens()) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "holdfast", directory], check=True)
    yield directory
    subprocess.run(["umount", directory], check=True)


@pytest.mark.root
def test_nothing_is_begun_that_there_is_no_room_for(root: Path, small: Path) -> None:
    provider = copy_provider(place(root)._replace(state=bytes(small / "state")))
    with pytest.raises(RefusedError) as refused:
        provider.prepare("worktree")
    assert refused.value.code == "no_room"
    assert f"{small}/state has 2.1 MB left" in refused.value.message
    assert list(provider.tokens()) == []
    assert not (small / "state/copies").exists()


@pytest.mark.root
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(root: Path, small: Path, monkeypatch) -> None:
    monkeypatch.setattr("holdfast.snapshot.full_copy.refuse_huge", lambda *_: None)  # there was room a moment ago
    provider = copy_provider(place(root)._replace(state=bytes(small / "state")))
    with pytest.raises(StorageError) as failed:
        provider.prepare("worktree")
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.__cause__.errno == errno.ENOSPC
    assert list(provider.tokens()) == []
    assert not (small / "state/copies").exists()


def test_a_copy_that_is_interrupted_leaves_nothing(root: Path, monkeypatch) -> None:
    """Ctrl-C, when all is copied but what is not yet on the disk."""

    def interrupted(descriptor: int) -> None:
        assert (root.with_name("state") / "copies").exists()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(syscalls, "syncfs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy_provider(place(root)).prepare("worktree")
    assert nothing_is_left(root)


@pytest.mark.root
def test_where_blocks_are_shared_a_copy_by_that_name_shares_them_too(tmp_path: Path) -> None:
    with mounted("btrfs", tmp_path) as disk:
        root = disk / "tree"
        root.mkdir()
        (root / "big").write_bytes(os.urandom(8 * MIB))
        os.sync()
        before = os.statvfs(disk).f_bfree
        provider = copy_provider(place(root))
        provider.prepare("worktree")
        assert (before - os.statvfs(disk).f_bfree) * os.statvfs(disk).f_frsize < 4 * MIB
        refuse_huge(place(root), bytes(root))


def dig(top: Path, depth: int) -> None:
    """A chain of directories in ``top`` deeper than any path is long, with a file of two names at its end."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    end = os.open("file", os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=fd)
    os.write(end, b"deep")
    os.close(end)
    os.link("file", "same", src_dir_fd=fd, dst_dir_fd=fd)
    os.close(fd)


def dug(top: Path, depth: int) -> tuple[bytes, int]:
    """What the file at the end of such a chain holds, and how many names it has."""
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    end = os.open("same", os.O_RDONLY, dir_fd=fd)
    try:
        return os.read(end, 100), os.fstat(end).st_nlink
    finally:
        os.close(end)
        os.close(fd)


@pytest.mark.parametrize("make", [copy_provider, pytest.param(overlay_provider, marks=pytest.mark.root)])
def test_directories_deeper_than_a_path_is_long_are_copied_and_removed(
    root: Path, make: Callable[[ProviderContext], Provider]
) -> None:
    dig(root / "node_modules", 50)
    assert size_of(bytes(root), without=find_protected([])).files == 7
    provider = make(place(root))
    assert provider.detect().score > 0
    made = provider.prepare("worktree")
    there = Path(os.fsdecode(made.path))
    assert dug(there / "node_modules", 50) == (b"deep", 2)
    provider.cleanup(made.token)
    assert not there.exists()
    remove_whole(bytes(root / "node_modules"))


def test_a_repository_that_lies_too_deep_to_be_looked_at_is_named(root: Path) -> None:
    top = root / "node_modules"
    fd = os.open(top, os.O_RDONLY)
    for _ in range(50):
        os.mkdir("d" * 200, dir_fd=fd)
        fd, before = os.open("d" * 200, os.O_RDONLY, dir_fd=fd), fd
        os.close(before)
    assert copy_provider(place(root)).detect().score > 0
    os.mkdir(".git", dir_fd=fd)
    os.close(fd)
    said = " ".join(copy_provider(place(root)).detect().notes)
    assert "node_modules/ddd" in said
    assert "too deep" in said
    with pytest.raises(RefusedError, match="too deep") as caught:
        copy_provider(place(root)).prepare("worktree")
    assert caught.value.code == "git_leads_out"
    remove_whole(bytes(top))
