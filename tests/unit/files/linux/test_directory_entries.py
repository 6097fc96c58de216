"""What is in a directory, entry by entry."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.files.linux.directory_entries import Dirent, dirents


def read(fd: int) -> list[Dirent]:
    found: list[Dirent] = []
    while some := dirents(fd):
        found += some
    return found


def test_every_entry_is_told_once_with_the_place_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for number in range(3000):
        (tmp_path / f"{number}".rjust(100, "x")).touch()
    os.close(os.open(bytes(tmp_path) + b"/\xff\n", os.O_CREAT))
    fd = os.open(tmp_path, os.O_RDONLY)
    found = read(fd)
    assert sorted(entry.name for entry in found) == sorted([b".", b"..", *os.listdir(bytes(tmp_path))])
    types = {entry.name: entry.type for entry in found}
    assert (types[b"directory"], types[b"link"], types[b"\xff\n"]) == (4, 10, 8)
    assert {entry.name: entry.inode for entry in found}[b"link"] == (tmp_path / "link").lstat().st_ino
    for at in (0, 1, 1500, len(found) - 1):
        os.lseek(fd, found[at].offset, os.SEEK_SET)
        assert read(fd) == found[at + 1 :]
    os.close(fd)
