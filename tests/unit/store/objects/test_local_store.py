"""The local object store: private, synced, atomic, and sound when the disk is not."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import IntegrityError, NotFoundError, StorageError, UsageError
from holdfast.store.objects._local_store import LocalObjects
from holdfast.testing.faulty_disk import FaultyDisk
from holdfast.testing.powerloss import RecordingDisk

if TYPE_CHECKING:
    from pathlib import Path


class Killed(BaseException):
    """The process ends here."""


def test_files_and_directories_are_private(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        LocalObjects(str(tmp_path / "s")).put("packs/t/a", [b"x"])
    finally:
        os.umask(previous)
    for path in (tmp_path / "s").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o1700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_opening_and_reading_create_nothing(tmp_path: Path) -> None:
    objects = LocalObjects(str(tmp_path / "s"))
    assert list(objects.list("")) == []
    assert objects.clean(1 << 62) == 0
    objects.delete("a")
    assert list(tmp_path.iterdir()) == []


def test_a_path_of_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/\xff"
    LocalObjects(root).put("a", [b"x"])
    assert sorted(os.listdir(root)) == [b"a", b"tmp"]


def test_links_and_special_files_are_no_objects(tmp_path: Path) -> None:
    """I7: what somebody put into the store's directory is not followed."""
    objects = LocalObjects(str(tmp_path / "s"))
    objects.put("a", [b"x"])
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "s" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "s" / "dir").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "s" / "fifo")
    assert [info.key for info in objects.list("")] == ["a"]
    assert objects.size("link") is None
    with pytest.raises(StorageError):
        objects.get("link")
    with pytest.raises(NotFoundError):
        objects.get("fifo")


def test_clean_takes_only_what_is_old_enough(tmp_path: Path) -> None:
    objects = LocalObjects(str(tmp_path))
    uploads = [objects.upload() for _ in range(2)]
    old, young = sorted((tmp_path / "tmp").iterdir())
    os.utime(old, ns=(5_000_000, 5_000_000))
    os.utime(young, ns=(9_000_000, 9_000_000))
    assert objects.clean(5_000) == 0
    assert objects.clean(9_000) == 1
    assert list((tmp_path / "tmp").iterdir()) == [young]
    failed = 0
    for at, upload in enumerate(uploads):
        upload.write(b"x")
        try:
            upload.commit(f"a{at}")
        except StorageError:
            failed += 1
    assert failed == 1, "the upload that was cleaned away says so"
    assert len(list(objects.list(""))) == 1


def test_directories_that_somebody_removed_come_back(tmp_path: Path) -> None:
    objects = LocalObjects(str(tmp_path / "s"))
    objects.put("packs/t/a", [b"x"])
    objects.delete("packs/t/a")
    for directory in ("packs/t", "packs", "tmp"):
        (tmp_path / "s" / directory).rmdir()
    objects.put("packs/t/b", [b"y"])
    assert objects.get("packs/t/b") == b"y"


def _count_steps(tmp_path: Path) -> list[str]:
    disk = FaultyDisk(lambda name, number: None)
    LocalObjects(str(tmp_path / "count"), disk=disk).put("packs/t/new", [b"new", b"er"])
    return disk.steps


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_refuses_at_any_step_leaves_a_sound_store(tmp_path: Path, code: int) -> None:
    """Case 4: nothing is called durable after a failed sync."""
    steps = _count_steps(tmp_path)
    for fail_at, step in enumerate(steps):
        if step == "mark_durable":
            continue  # see the next test
        root = tmp_path / f"{code}-{fail_at}"
        objects = LocalObjects(
            str(root),
            disk=FaultyDisk(
                lambda name, number, at=fail_at: OSError(code, os.strerror(code)) if number == at else None
            ),
        )
        with pytest.raises(StorageError) as caught:
            objects.put("packs/t/new", [b"new", b"er"])
        assert os.strerror(code) in caught.value.message
        assert (caught.value.hint is not None) == (code != errno.EIO)
        last = fail_at == len(steps) - 1 and step == "sync_directory"
        assert [info.key for info in objects.list("")] == (["packs/t/new"] if last else [])
        assert not (root / "tmp").exists() or list((root / "tmp").iterdir()) == []
        objects.put("packs/t/new", [b"again"])
        assert objects.get("packs/t/new") == b"again"


def test_where_directories_cannot_be_marked_they_are_synced_each_time(tmp_path: Path) -> None:
    def unable(name: str, number: int) -> OSError | None:
        return OSError(errno.EPERM, "no modes here") if name == "mark_durable" else None

    root, disks = str(tmp_path / "s"), [FaultyDisk(unable) for _ in range(3)]
    for number, disk in enumerate(disks):
        objects = LocalObjects(root, disk=disk)
        objects.put(f"packs/t/{number}", [b"x"])
        objects.put(f"packs/t/{number}-again", [b"x"])
    assert [disk.steps.count("sync_directory") for disk in disks][1:] == [4, 4]
    assert not [path for path in (tmp_path / "s").rglob("*") if path.stat().st_mode & stat.S_ISVTX]


def test_directories_that_are_durable_already_are_not_synced_again(tmp_path: Path) -> None:
    root = str(tmp_path / "s")
    for key in ("packs/t/a", "blobs/t/aa/bb/aabb"):
        LocalObjects(root).put(key, [b"x"])
    disk = FaultyDisk(lambda name, number: None)
    for key in ("packs/t/b", "blobs/t/aa/bb/aabc"):
        objects = LocalObjects(root, disk=disk)
        objects.put(key, [b"x"])
    assert disk.steps == ["create", "write", "sync", "rename", "sync_directory"] * 2


def test_an_upload_whose_sync_failed_stays_failed(tmp_path: Path) -> None:
    disk = FaultyDisk(lambda name, number: OSError(errno.EIO, "bad") if name == "sync" else None)
    upload = LocalObjects(str(tmp_path), disk=disk).upload()
    upload.write(b"x")
    with pytest.raises(StorageError):
        upload.commit("a")
    for _ in range(2):
        with pytest.raises(StorageError):
            upload.commit("a")
    assert disk.steps.count("sync") == 1


def test_a_process_killed_at_any_step_leaves_nothing_or_all(tmp_path: Path) -> None:
    """I3."""
    steps = _count_steps(tmp_path)
    for fail_at in range(len(steps)):
        root = str(tmp_path / f"k{fail_at}")
        # From the kill on nothing more happens, not even the tidying of a `finally`.
        disk = FaultyDisk(lambda name, number, at=fail_at: Killed() if number >= at else None)
        with pytest.raises(Killed):
            LocalObjects(root, disk=disk).put("packs/t/new", [b"new", b"er"])
        after = LocalObjects(root)
        assert [(info.key, info.size) for info in after.list("")] in ([], [("packs/t/new", 5)])
        after.put("packs/t/new", [b"new", b"er"])
        after.clean(1 << 62)
        assert list(after.list("tmp")) == []
        assert after.get("packs/t/new") == b"newer"


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    class Short(FaultyDisk):
        def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
            return super().write(fd, memoryview(data)[:7])

    objects = LocalObjects(str(tmp_path), disk=Short(lambda name, number: None))
    objects.put("a", [bytes(range(100))])
    assert objects.get("a") == bytes(range(100))


def test_a_committed_object_survives_every_power_loss(tmp_path: Path) -> None:
    """I4: whatever of the unsynced is lost, a commit that returned is there, whole."""
    root = tmp_path / "real"
    root.mkdir()
    disk = RecordingDisk(str(root))
    contents = {
        "packs/t/one": b"first " * 3,
        "packs/t/two": b"second " * 3,
        "blobs/t/aa/bb/aabb": b"large " * 3,
        "packs/u/one": b"other",
    }
    objects = LocalObjects(str(root), disk=disk)
    for key, content in contents.items():
        objects.put(key, [content[:4], content[4:]])
        disk.mark(key)
    objects.put("packs/t/one", [contents["packs/t/one"]])
    disk.mark("packs/t/one")
    states = 0
    for at in range(len(disk) + 1):
        promised = {key for steps, key in disk.marks if steps <= at}
        for state in disk.states(at, limit=64):
            states += 1
            for key in promised:
                assert state.files.get(str(key)) == contents[str(key)], (at, key)
            for path, content in state.files.items():
                assert path.startswith("tmp/") or content == contents[path], "what is visible is whole"
    assert states > len(disk)


def test_a_second_process_makes_the_directories_of_a_killed_one_durable(tmp_path: Path) -> None:
    """I4: the first was killed between making a directory and syncing what holds it."""
    (tmp_path / "count").mkdir()
    for fail_at in range(len(_count_steps(tmp_path))):
        root = tmp_path / f"real{fail_at}"
        root.mkdir()
        disk = RecordingDisk(str(root))
        faulty = FaultyDisk(lambda name, number, at=fail_at: Killed() if number >= at else None, disk)
        with pytest.raises(Killed):
            LocalObjects(str(root), disk=faulty).put("packs/t/a", [b"x", b"z"])
        LocalObjects(str(root), disk=disk).put("packs/t/b", [b"y"])
        assert all(state.files.get("packs/t/b") == b"y" for state in disk.states(len(disk))), fail_at


def test_a_directory_that_is_marked_survives_every_power_loss(tmp_path: Path) -> None:
    """I4: a later process takes the mark's word for it, and syncs the directory no more."""
    root = tmp_path / "real"
    root.mkdir()
    disk = RecordingDisk(str(root))
    for key in ("packs/t/one", "blobs/t/aa/bb/aabb", "blobs/t/aa/cc/aacc"):
        LocalObjects(str(root), disk=disk).put(key, [b"x"])
    marked: frozenset[str] = frozenset()
    for at in range(len(disk) + 1):
        states = list(disk.states(at))
        marked = frozenset[str]().union(*(state.marked for state in states))
        assert all(marked <= state.directories for state in states), at
    assert marked == {"tmp", "packs", "packs/t", "blobs", "blobs/t", "blobs/t/aa", "blobs/t/aa/bb", "blobs/t/aa/cc"}


def test_several_ranges_of_an_object_open_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = LocalObjects(str(tmp_path / "s"))
    objects.put("a", [b"0123456789"])
    opened: list[object] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda *args, **named: opened.append(args) or really(*args, **named))
    assert objects.get_ranges("a", [(0, 3), (5, None), (2, 0)]) == [b"012", b"56789", b""]
    assert len(opened) == 1
    with pytest.raises(IntegrityError, match="too short"):
        objects.get_ranges("a", [(0, 3), (8, 3)])
    with pytest.raises(UsageError):
        objects.get_ranges("a", [(0, 3), (-1, 3)])
    with pytest.raises(NotFoundError):
        objects.get_ranges("b", [(0, 3)])
