"""I3: a fork by mount loses nothing, wherever what mounts it again, or makes it a plain directory, is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.bridge.mount import overlayfs
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.paths import TEMPORARY_PREFIX
from holdfast.testing.crash_points import CALLS, count_steps, run_killed
from holdfast.testing.tree_state import differences, photograph

from ..waiting import wait_until
from .conftest import chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse, to mount an overlay"
)
STEPS = (*CALLS, (overlayfs, "mount_overlay"), (overlayfs, "unmount_overlay"))
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A home with a fork by mount in which something of everything was changed, and which is not mounted."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, base / "w"
        self.home, self.tree, self.fork = self.root / "home", self.root / "tree", self.root / "fork"
        for path in ("a", "d/b", "d/e/c", "gone/x", "large"):
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_text(path * (200_000 if path == "large" else 20))
        with holdfast.init(self.tree, home=self.home) as workspace:
            workspace.checkpoint()
            workspace.fork("@", self.fork, mount=True)
        (self.fork / "d").rename(self.fork / "moved")
        (self.fork / "a").write_text("changed")
        (self.fork / "also").hardlink_to(self.fork / "a")
        shutil.rmtree(self.fork / "gone")
        (self.fork / "ignored.log").write_text("of no checkpoint")
        self.unmount()
        self.mount()  # (the kernel shows two names of one file as two files while it remembers them)
        self.before = photograph(self.fork)
        self.unmount()
        subprocess.run(["cp", "-a", self.root, base / "kept"], check=True)

    def mount(self) -> None:
        with holdfast.open_home(self.home) as home:
            home.mount_fork(self.fork)

    def unmount(self) -> None:
        with holdfast.open_home(self.home) as home:
            home.unmount(self.fork)

    def materialise(self) -> None:
        with holdfast.open_home(self.home) as home:
            home.materialise(self.fork)

    def clear(self) -> None:
        """Unmount whatever is mounted, and wait until whoever serves it has ended."""
        servers = [int(lock.read_text() or 0) for lock in self.home.glob("workspaces/*/fork.lock")]
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            if line.split()[4].startswith(str(self.root)):
                _libc.umount2(os.fsencode(line.split()[4]), 2)
        wait_until(lambda: all(is_over(pid) for pid in servers if pid))

    def put_back(self) -> None:
        self.clear()
        shutil.rmtree(self.root)
        subprocess.run(["cp", "-a", self.base / "kept", self.root], check=True)

    def deaths(self, work: Callable[[], None], most: int) -> Iterator[str]:
        """Kill ``work`` at its changes, each time from the beginning; yields after each death."""
        steps = count_steps(work, calls=STEPS)
        for step in chosen(len(steps), most):
            self.put_back()
            if run_killed(work, step, calls=STEPS).killed:
                yield f"{step}, {steps[step - 1]}"

    def sound(self) -> None:
        with holdfast.open(self.tree, home=self.home) as workspace:
            assert workspace.verify(read_data=True).problems == []


def is_over(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text() or pid == os.getpid()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(name="forked")
def _forked(tmp_path: Path) -> Iterator[Forked]:
    forked = Forked(tmp_path)
    yield forked
    forked.clear()


@pytest.mark.parametrize("way", ["mounted again", "tried again"])
def test_i3_one_that_is_made_a_plain_directory_is_a_fork_or_that(forked: Forked, way: str) -> None:
    became = 0
    for death in forked.deaths(forked.materialise, most=12):
        if way == "mounted again":
            try:
                forked.mount()
            except RefusedError as error:
                assert "plain directory now" in error.message, death
                became += 1
            except NotFoundError as error:
                assert error.code == "no_fork", death
                became += 1
            assert differences(forked.before, photograph(forked.fork)) == [], death
        with_it_done(forked, death)
        forked.sound()
    assert became or way == "tried again"


def with_it_done(forked: Forked, death: str) -> None:
    """Whatever was left, it becomes a plain directory, and nothing of the fork is left beside it."""
    try:
        forked.materialise()
    except NotFoundError as error:
        assert error.code == "no_fork", death
    assert differences(forked.before, photograph(forked.fork)) == [], death
    assert list(forked.home.glob("workspaces/*/overlay")) == [], death
    assert list(forked.home.glob("workspaces/*/fork")) == [], death
    assert not [name for name in os.listdir(forked.root) if os.fsencode(name).startswith(TEMPORARY_PREFIX)], death
    assert str(forked.root) not in Path("/proc/self/mountinfo").read_text(), death
    with holdfast.open(forked.fork, home=forked.home) as workspace:
        assert {change.path for change in workspace.status().changes} >= {b"a", b"also", b"d/b", b"moved/b"}, death
        (pinned,) = workspace._context.catalog.database.reading().__enter__().all("SELECT count(*) FROM pins")
        assert pinned == (0,), death


def test_i3_one_that_is_mounted_again_is_there_or_can_be(forked: Forked) -> None:
    for death in forked.deaths(forked.mount, most=8):
        try:
            forked.mount()
        except RefusedError as error:
            assert error.code == "is_mounted", death
        assert differences(forked.before, photograph(forked.fork)) == [], death
        forked.sound()
