"""A file system that fails, or becomes read-only, under a run: a program is told why, nothing of a call has happened,
and all is taken back once the file system is there again. Natively and in Python.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.files.linux.native import SWITCH
from holdfast.testing.tree_state import PathState, differences, photograph

from ..disks import mounted
from ..waiting import wait_until
from . import checked_calls
from .conftest import INSTALLED

CALLS = str(Path(checked_calls.__file__))
_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, after all was written: from then on everything fails."""


def _shut_down(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", 0))
    finally:
        os.close(fd)


def _find_fault(place: Path) -> None:
    """As ext4 does when it finds its own data damaged: then nothing can be written any more."""
    os.sync()
    number = os.stat(place).st_dev
    device = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


def _of_work(tree: Path) -> dict[bytes, PathState]:
    """What is at every path but those of the undo log, which is in the tree as the home is elsewhere."""
    return {path: state for path, state in photograph(tree).items() if path and not path.startswith(b".holdfast")}


@pytest.mark.parametrize("switch", ["1", "0"], ids=["native", "python"])
@pytest.mark.parametrize(
    ("fail", "number"), [(_shut_down, errno.EIO), (_find_fault, errno.EROFS)], ids=["EIO", "EROFS"]
)
def test_a_file_system_that_fails_under_a_run_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Path], None], number: int, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    with mounted("ext4", tmp_path, "errors=remount-ro") as disk:
        tree = disk / "work"
        tree.mkdir()
        subprocess.run((sys.executable, CALLS, "plant", "2"), cwd=tree, check=True)
        before = _of_work(tree)
        subprocess.run((*INSTALLED, "-q", "init"), cwd=tree, check=True)
        with subprocess.Popen(
            (*INSTALLED, "-q", "run", "--", sys.executable, CALLS, "rounds", "2"),
            cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as run:  # fmt: skip
            assert run.stdin is not None
            assert run.stdout is not None
            for answer, is_done in ((0, True), (-number, False)):
                run.stdin.write("\n")
                run.stdin.flush()
                answers, done = json.loads(run.stdout.readline())
                assert set(answers) == {answer}
                assert set(done) == {is_done}
                if is_done:
                    fail(disk)
            run.communicate(timeout=60)
        unmount = ("umount", str(disk))
        wait_until(lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0, "its end")
        subprocess.run(("e2fsck", "-fy", str(tmp_path / "image")), capture_output=True, check=False)
        subprocess.run(("mount", "-o", "loop", str(tmp_path / "image"), str(disk)), check=True)
        subprocess.run((*INSTALLED, "status"), cwd=tree, check=True, capture_output=True)
        assert differences(before, _of_work(tree)) == []
