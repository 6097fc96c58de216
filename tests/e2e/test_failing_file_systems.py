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
from collections.abc import Callable, Sequence
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


@pytest.fixture(params=["1", "0"], ids=["native", "python"], autouse=True)
def _home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, request.param)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


def _plant(tree: Path) -> dict[bytes, PathState]:
    subprocess.run((sys.executable, CALLS, "plant", "3"), cwd=tree, check=True)
    subprocess.run((*INSTALLED, "-q", "init"), cwd=tree, check=True)
    return _of_work(tree)


def _make_calls(tree: Path, rounds: Sequence[tuple[Callable[[], object], int]]) -> None:
    """Under one run, a round of calls after each of these functions: each gives that answer; carried out it is by 0."""
    words = (*INSTALLED, "-q", "run", "--", sys.executable, CALLS, "rounds", str(len(rounds)))
    with subprocess.Popen(words, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        for act, answer in rounds:
            act()
            run.stdin.write("\n")
            run.stdin.flush()
            answers, done = json.loads(run.stdout.readline())
            assert set(answers) == {answer}
            assert set(done) == {not answer}
        run.communicate(timeout=60)


@pytest.mark.parametrize(
    ("fail", "number"), [(_shut_down, errno.EIO), (_find_fault, errno.EROFS)], ids=["EIO", "EROFS"]
)
def test_a_file_system_that_fails_under_a_run_loses_nothing(
    tmp_path: Path, fail: Callable[[Path], None], number: int
) -> None:
    with mounted("ext4", tmp_path, "errors=remount-ro") as disk:
        tree = disk / "work"
        tree.mkdir()
        before = _plant(tree)
        _make_calls(tree, [(os.sync, 0), (lambda: fail(disk), -number)])
        unmount = ("umount", str(disk))
        wait_until(lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0, "its end")
        subprocess.run(("e2fsck", "-fy", str(tmp_path / "image")), capture_output=True, check=False)
        subprocess.run(("mount", "-o", "loop", str(tmp_path / "image"), str(disk)), check=True)
        subprocess.run((*INSTALLED, "status"), cwd=tree, check=True, capture_output=True)
        assert differences(before, _of_work(tree)) == []


def test_a_quota_that_is_reached_under_a_run_loses_nothing(tmp_path: Path) -> None:
    with mounted("btrfs", tmp_path) as disk:
        tree = disk / "work"

        def btrfs(*words: str) -> None:
            subprocess.run(("btrfs", *words), check=True, capture_output=True)

        def reach() -> None:
            os.sync()
            btrfs("quota", "rescan", "-w", str(disk))
            btrfs("qgroup", "limit", "1M", str(tree))

        btrfs("quota", "enable", str(disk))
        btrfs("subvolume", "create", str(tree))
        before = _plant(tree)
        (tree / "filled").write_bytes(os.urandom(2 << 20))
        _make_calls(tree, [(os.sync, 0), (reach, -errno.EDQUOT), (lambda: btrfs("quota", "disable", str(disk)), 0)])
        (tree / "filled").unlink()
        subprocess.run((*INSTALLED, "undo", "--run"), cwd=tree, check=True, capture_output=True)
        assert differences(before, _of_work(tree)) == []
