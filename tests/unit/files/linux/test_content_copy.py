"""A copied file shares its blocks where the file system can share any: all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.files.directories.replication import replicate
from holdfast.files.linux.reflink import copy_content
from holdfast.files.protected_directories import find_protected

from ....disks import mounted


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
