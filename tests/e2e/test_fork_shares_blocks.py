"""A fork on a file system that can share blocks takes no room for large files (loop-mounted XFS and btrfs)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

from ..disks import mounted
from ..waiting import wait_until


@pytest.fixture(params=["btrfs", "xfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a fresh file system of the given kind."""
    with mounted(request.param, tmp_path) as found:
        yield found


def used(place: Path) -> int:
    os.sync()
    about = os.statvfs(place)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def test_large_files_share_their_blocks_and_changed_ones_come_from_the_store(place: Path, tmp_path: Path) -> None:
    tree, large = place / "tree", 24 << 20
    tree.mkdir()
    content = os.urandom(large)
    (tree / "large.bin").write_bytes(content)
    (tree / "edited.bin").write_bytes(b"a" * (2 << 20))
    (tree / "small").write_text("small\n")
    # (What was written a moment before it is saved counts as changed, and comes from the store.)
    wait_until(lambda: time.time_ns() - (tree / "large.bin").stat().st_ctime_ns > 10**9)
    with holdfast.init(tree, home=tmp_path / "home") as workspace:
        workspace.checkpoint()
        (tree / "edited.bin").write_bytes(b"b" * (2 << 20))
        before = used(place)
        workspace.fork("@", place / "fork")
        assert used(place) - before < large // 2
        assert (place / "fork/large.bin").read_bytes() == content
        assert (place / "fork/edited.bin").read_bytes() == b"a" * (2 << 20)
        (place / "fork/large.bin").write_bytes(b"its own now")
        assert (tree / "large.bin").read_bytes() == content
        assert workspace.verify(read_data=True).ok
