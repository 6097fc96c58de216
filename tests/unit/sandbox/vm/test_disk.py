"""Disks of machines, without a machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.model.errors import LockedError, NotFoundError, StorageError, UnsupportedError, UsageError
from holdfast.sandbox.vm.disk import LEAST_BYTES, MOST_BYTES, create_disk, open_disk, remove_disk, size_of_disk

needs_programs = pytest.mark.skipif(
    shutil.which("qemu-img") is None or shutil.which("mke2fs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None,
    reason="needs qemu-img and mke2fs",
)
SIZE = 1 << 30


@needs_programs
def test_a_disk_is_a_small_file_with_a_file_system(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    create_disk(bytes(path), SIZE)
    assert [each.name for each in tmp_path.iterdir()] == ["disk"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < 32 << 20
    raw = tmp_path / "raw"
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, raw], check=True)
    assert raw.stat().st_size == size_of_disk(bytes(path)) == SIZE
    with raw.open("rb") as file:
        file.seek(1024 + 56)
        assert file.read(2) == b"\x53\xef"  # ext4's magic
    subprocess.run(["fsck.ext4", "-n", "-f", raw], check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin"})


@needs_programs
def test_a_disk_that_is_there_is_not_replaced_but_removed(tmp_path: Path) -> None:
    path = bytes(tmp_path / "disk")
    create_disk(path, SIZE)
    with open(path, "r+b") as file:
        file.write(b"written by a machine")
    written = Path(os.fsdecode(path)).read_bytes()
    with pytest.raises(StorageError, match="is there already"):
        create_disk(path, SIZE)
    assert Path(os.fsdecode(path)).read_bytes() == written
    assert written[:4] == b"writ"
    remove_disk(path)
    assert list(tmp_path.iterdir()) == []


@needs_programs
@pytest.mark.parametrize("size", [0, LEAST_BYTES - 1, MOST_BYTES + 1])
def test_sizes_that_no_disk_has(tmp_path: Path, size: int) -> None:
    with pytest.raises(UsageError):
        create_disk(bytes(tmp_path / "disk"), size)
    assert list(tmp_path.iterdir()) == []


def test_one_machine_has_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with pytest.raises(NotFoundError):
        open_disk(bytes(path))
    path.write_bytes(b"disk")
    first = open_disk(bytes(path))
    inherited = os.dup(first)
    os.close(first)
    for change in (open_disk, remove_disk):
        with pytest.raises(LockedError, match="another machine has the disk"):
            change(bytes(path))
    assert path.read_bytes() == b"disk"
    os.close(inherited)
    again = open_disk(bytes(path))
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(again)


def test_a_link_is_no_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "disk").symlink_to("file")
    with pytest.raises(StorageError):
        remove_disk(bytes(tmp_path / "disk"))
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("holdfast.sandbox.namespace.SYSTEM_PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="mke2fs") as error:
        create_disk(bytes(tmp_path / "disk"), SIZE)
    assert error.value.hint == "install e2fsprogs"
