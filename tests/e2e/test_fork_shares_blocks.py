"""A fork on a file system that can share blocks takes no room for large files (loop-mounted XFS and btrfs)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

MAKE = {
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
    "btrfs": ["mkfs.btrfs", "-q"],
}


@pytest.fixture(params=sorted(MAKE))
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a fresh file system of the given kind."""
    make = MAKE[request.param]
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a loop device")
    if shutil.which(make[0]) is None:
        pytest.skip(f"needs {make[0]}")
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run([*make, str(image)], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def used(place: Path) -> int:
    os.sync()
    about = os.statvfs(place)
    return (about.f_blocks - about.f_bfree) * about.f_frsize


def test_large_files_share_their_blocks_and_changed_ones_come_from_the_store(mounted: Path, tmp_path: Path) -> None:
    tree, large = mounted / "tree", 24 << 20
    tree.mkdir()
    content = os.urandom(large)
    (tree / "large.bin").write_bytes(content)
    (tree / "edited.bin").write_bytes(b"a" * (2 << 20))
    (tree / "small").write_text("small\n")
    with holdfast.init(tree, home=tmp_path / "home") as workspace:
        workspace.checkpoint()
        (tree / "edited.bin").write_bytes(b"b" * (2 << 20))
        before = used(mounted)
        workspace.fork("@", mounted / "fork")
        assert used(mounted) - before < large // 2
        assert (mounted / "fork/large.bin").read_bytes() == content
        assert (mounted / "fork/edited.bin").read_bytes() == b"a" * (2 << 20)
        (mounted / "fork/large.bin").write_bytes(b"its own now")
        assert (tree / "large.bin").read_bytes() == content
        assert workspace.verify(read_data=True).ok
