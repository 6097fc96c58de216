"""Cloning a file inside the kernel, and copying one so that it shares all of its blocks where it can."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from holdfast.files.directories.replication import replicate
from holdfast.files.linux.reflink import clone_file, copy_content
from holdfast.files.protected_directories import find_protected

from ....disks import mounted


def clone(source: Path, target: Path) -> bool:
    src, dst = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT)
    try:
        return clone_file(src, dst)
    finally:
        os.close(src)
        os.close(dst)


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_001])
def test_a_clone_holds_the_same(tmp_path: Path, size: int):
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    done = clone(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (content if done else b"")
    assert done, "the kernel copies between two files of one file system"


def test_what_the_kernel_cannot_clone_is_said_and_nothing_written(tmp_path: Path):
    assert clone(Path("/proc/self/status"), tmp_path / "b") is False
    assert (tmp_path / "b").read_bytes() == b""


def test_a_clone_is_tried_before_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr(fcntl, "ioctl", lambda fd, request, argument: asked.append(request))
    (tmp_path / "a").write_bytes(b"x")
    assert clone(tmp_path / "a", tmp_path / "b")
    assert asked == [0x40049409]


def test_a_full_disk_is_no_missing_ability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(OSError, match="No space"):
        clone(tmp_path / "a", tmp_path / "b")


def test_without_any_such_call_the_caller_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "ioctl", missing)
    monkeypatch.setattr(os, "copy_file_range", missing)
    (tmp_path / "a").write_bytes(b"x")
    assert clone(tmp_path / "a", tmp_path / "b") is False


@pytest.mark.root
def test_all_blocks_of_a_file_are_shared_the_last_one_too(tmp_path: Path) -> None:
    with mounted("xfs", tmp_path) as place:
        (place / "tree").mkdir()
        number, block = 500, os.statvfs(place).f_bsize
        for one in range(number):
            (place / "tree" / f"{one}").write_bytes(b"x" * (block + 1))

        def used() -> int:
            os.sync()
            about = os.statvfs(place)
            return about.f_blocks - about.f_bfree

        before = used()
        replicate(os.fsencode(place / "tree"), os.fsencode(place / "copy"), without=find_protected([]))
        # (Inodes and directories take some; one block for each file would be their last.)
        assert used() - before < number * 0.7
        assert {path.read_bytes() for path in (place / "copy").iterdir()} == {b"x" * (block + 1)}


@pytest.mark.root
@pytest.mark.parametrize("odd", [0, 1])
def test_a_longer_file_is_cut_to_what_it_is_given(tmp_path: Path, odd: int) -> None:
    with mounted("xfs", tmp_path) as place:
        size = os.statvfs(place).f_bsize + odd
        (place / "short").write_bytes(b"s" * size)
        (place / "long").write_bytes(b"long" * size)
        with open(place / "short", "rb") as source, open(place / "long", "r+b") as target:
            # (Within a block nothing can be shared in the place of something longer.)
            assert copy_content(source.fileno(), target.fileno()) == (size if odd else 0)
        assert (place / "long").read_bytes() == b"s" * size
