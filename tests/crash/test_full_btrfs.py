"""Case 4 where the file system never writes in place: a store into a mapped file may find no room, which kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..disks import mounted

_ON_A_FULL_DISK = """
import os, pathlib, sys
import holdfast
from holdfast.model.errors import StorageError

disk = pathlib.Path(sys.argv[1])
(disk / "tree").mkdir()
(disk / "home").mkdir(mode=0o700)
with holdfast.init(disk / "tree", home=disk / "home") as workspace:
    (disk / "tree" / "f").write_text("before")
    workspace.checkpoint()
    (disk / "home" / "ballast").unlink()
    with (disk / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                pass
    os.sync()  # what is mapped is on the disk, and the next store into it needs room
    for _ in range(3):
        try:
            workspace.log()
            workspace.checkpoint("after")
        except StorageError as error:
            print(error.hint is not None and "space" in error.hint)
(disk / "filler").unlink()
os.sync()
with holdfast.open(disk / "tree", home=disk / "home") as workspace:
    (disk / "tree" / "f").write_text("after")
    workspace.checkpoint("after")
    print(workspace.verify(read_data=True).ok)
"""


@pytest.mark.root
def test_a_full_btrfs_is_an_error_and_kills_nobody(tmp_path: Path) -> None:
    with mounted("btrfs", tmp_path) as disk:
        done = subprocess.run(
            [sys.executable, "-c", _ON_A_FULL_DISK, str(disk)], text=True, capture_output=True, timeout=100, check=False
        )
        assert done.returncode == 0, done
        assert done.stdout.split() == ["True"] * 4
