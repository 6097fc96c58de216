"""Files that something is mounted over, which no rename replaces: they are written in place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.write.atomic_replacement import MOUNT_POINT
from holdfast.files.write.displaced_file import CHANGED, IN_USE
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import StorageError

from ...disks import bound, mounted
from .applying import Noted, Workspace, file, link, put, signature_of, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def outside(space: Workspace, tmp_path: Path) -> Iterator[Path]:
    """A file that is mounted at ``config`` in the tree, of which all is known."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"what was there before")
    put(space, "config", b"")
    put(space, "other")
    with bound(outside, space.path / "config"):
        space.scan()
        yield outside


@pytest.mark.parametrize("content", [b"", b"short", b"longer than all that was there before"])
@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755])
def test_it_is_written_in_place_and_told_of_before(space: Workspace, outside: Path, content: bytes, mode: int) -> None:
    number = outside.stat().st_ino
    told: list[tuple[bytes, bytes]] = []
    target = {**wanted(other=b"new"), b"config": (file(content, mode), content)}
    applied = space.go(target, notes=Noted(lambda path: told.append((path, outside.read_bytes()))))
    assert (sorted(applied.written), applied.skipped) == ([b"config", b"other"], [])
    assert told == [(b"config", b"what was there before")]
    assert (outside.read_bytes(), outside.stat().st_mode & 0o777, outside.stat().st_ino) == (content, mode, number)
    assert space.temporaries() == []
    assert space.seen.known[b"config"].signature == signature_of(space.at(b"config"))
    assert space.seen.known[b"config"].entry == file(content, mode)


def test_all_of_its_names_are_written_over(space: Workspace, outside: Path) -> None:
    os.link(outside, outside.with_name("again"))
    assert space.go(wanted(config=b"new", other=b"old"), notes=Noted()).skipped == []
    assert outside.read_bytes() == b"new"


def test_who_cannot_keep_a_note_of_it_leaves_it_alone(space: Workspace, outside: Path) -> None:
    applied = space.go(wanted(config=b"new", other=b"new"))
    assert (applied.written, applied.skipped) == ([b"other"], [NotCaptured(b"config", MOUNT_POINT)])
    assert outside.read_bytes() == b"what was there before"
    assert space.temporaries() == []


def test_it_is_neither_removed_nor_made_a_link(space: Workspace, outside: Path) -> None:
    assert space.go(wanted(other=b"old")).skipped == [NotCaptured(b"config", MOUNT_POINT)]
    target = {**wanted(other=b"old"), b"config": (link(b"other"), b"other")}
    assert space.go(target, notes=Noted()).skipped == [NotCaptured(b"config", MOUNT_POINT)]
    assert outside.read_bytes() == b"what was there before"
    assert space.temporaries() == []


def test_what_changes_meanwhile_or_is_being_written_stays(space: Workspace, outside: Path) -> None:
    target = wanted(config=b"new", other=b"old")
    with outside.open("r+b"):
        assert space.go(target, notes=Noted()).skipped == [NotCaptured(b"config", IN_USE)]
    space.scan()

    def edit(path: bytes) -> None:
        outside.write_bytes(b"somebody else's")

    changed = space.go(target, notes=Noted(edit))
    assert changed.skipped == [NotCaptured(b"config", CHANGED)]
    assert outside.read_bytes() == b"somebody else's"


def test_one_that_is_read_only_is_named_and_the_rest_goes_on(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"before")
    put(space, "config", b"")
    put(space, "other")
    with bound(tmp_path / "outside", space.path / "config", read_only=True):
        space.scan()
        applied = space.go(wanted(config=b"new", other=b"new"), notes=Noted())
        assert applied.written == [b"other"]
        ((path, reason),) = applied.skipped
    assert path == b"config"
    assert "mount point" in reason
    assert "Read-only" in reason


@pytest.mark.parametrize(("kind", "left"), [("ext4", 12 << 20), ("ext4", 32 << 20), ("tmpfs", 1 << 20)])
def test_without_room_for_all_of_it_nothing_is_written(space: Workspace, tmp_path: Path, kind: str, left: int) -> None:
    """(Ext4 keeps a few megabytes for itself that it calls free.)"""
    size = left + (1 << 20) if left != 12 << 20 else left - (1 << 20)
    (tmp_path / "folder").mkdir()
    with mounted(kind, tmp_path / "folder") as disk:
        outside = disk / "outside"
        outside.write_bytes(b"what was there before")
        put(space, "config", b"")
        with bound(outside, space.path / "config"):
            space.scan()
            free = os.statvfs(disk)
            fill_up(disk / "full", free.f_bfree * free.f_frsize - left)
            free = os.statvfs(disk)
            applied = space.go(wanted(config=os.urandom(size), other=b"new"), notes=Noted())
            assert applied.written == [b"other"]
            ((path, reason),) = applied.skipped
            assert path == b"config"
            assert f"mount point, and there is no room for all of its {size} bytes" in reason
            assert outside.read_bytes() == b"what was there before"
            assert os.statvfs(disk).f_bfree >= free.f_bfree - 16, "what was free still is"
            space.scan()
            assert space.go(wanted(config=b"x" * (256 << 10), other=b"new"), notes=Noted()).skipped == []
            assert outside.read_bytes() == b"x" * (256 << 10)
    assert space.temporaries() == []


def fill_up(path: Path, size: int) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def test_nothing_is_written_without_the_note(space: Workspace, outside: Path) -> None:
    def fail(path: bytes) -> None:
        raise StorageError("the note cannot be written")

    applied = space.go(wanted(config=b"new", other=b"old"), notes=Noted(fail))
    assert applied.skipped == [NotCaptured(b"config", "the note cannot be written")]
    assert outside.read_bytes() == b"what was there before"
    assert space.temporaries() == []
