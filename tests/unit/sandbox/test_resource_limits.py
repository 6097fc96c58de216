"""What a box may take: by a control group where one is delegated, else by limits on its processes."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from holdfast.model.errors import UnsupportedError, UsageError
from holdfast.sandbox import _resource_limits
from holdfast.sandbox._resource_limits import check_quota, enforce_quota
from holdfast.sandbox.policy import Quota


@pytest.fixture(name="groups")
def _groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups as the kernel shows them, of directories and plain files; this process is in ``user/app``."""
    top = tmp_path / "cgroup"
    (top / "user/app").mkdir(parents=True)
    for path in (top, top / "user", top / "user/app"):
        (path / "cgroup.procs").touch()
        (path / "cgroup.subtree_control").write_text("memory pids\n" if path.name == "user" else "")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"25 1 0:22 / /proc rw - proc proc rw\n30 1 0:26 / {top} rw - cgroup2 cgroup2 rw\n")
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/\n0::/user/app\n")
    monkeypatch.setattr(_resource_limits, "_MOUNTS", str(mounts))
    monkeypatch.setattr(_resource_limits, "_GROUP", str(own))
    # (In the kernel's, a group holds its files from the first on, and goes with them.)
    monkeypatch.setattr(os, "rmdir", lambda path: subprocess.run(["rm", "-r", path], check=True))
    return top


def made(groups: Path) -> list[Path]:
    return list(groups.glob("**/holdfast-*"))


def test_a_group_is_made_in_the_nearest_one_that_hands_the_controllers_down(groups: Path) -> None:
    with enforce_quota(Quota(memory=1 << 30, processes=10)) as (group, limits):
        assert limits == []
        assert [Path(group)] == made(groups)
        assert Path(group).parent == groups / "user"
        assert Path(group, "memory.max").read_text() == str(1 << 30)
        assert Path(group, "pids.max").read_text() == "12"  # two are the box's own
        assert not Path(group, "memory.swap.max").exists()  # as there is none here
    assert made(groups) == []


def test_what_killed_processes_have_left_is_removed_and_nobody_else_s(groups: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    stays = groups / f"user/holdfast-{os.getpid()}-1"
    for path in (stays, groups / f"user/holdfast-{ended.pid}-1", groups / "user/other-1"):
        path.mkdir()
    with enforce_quota(Quota(memory=1)):
        pass
    assert made(groups) == [stays]
    assert (groups / "user/other-1").exists()


def test_without_a_group_each_process_is_limited_and_what_cannot_be_is_refused(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (groups / "user/cgroup.subtree_control").write_text("cpu\n")
    with enforce_quota(Quota(memory=1 << 30, disk=1 << 20)) as (group, limits):
        assert (group, dict(limits)) == ("", {resource.RLIMIT_AS: 1 << 30, resource.RLIMIT_FSIZE: 1 << 20})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with enforce_quota(Quota(processes=10)) as (group, limits):
        assert (group, limits) == ("", [(resource.RLIMIT_NPROC, 12)])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UnsupportedError, match="does not limit root's processes"), enforce_quota(Quota(processes=10)):
        pass
    assert made(groups) == []


def test_no_limit_asks_for_nothing(groups: Path) -> None:
    with enforce_quota(Quota()) as (group, limits):
        assert (group, limits, made(groups)) == ("", [], [])


def test_a_shared_directory_cannot_be_limited() -> None:
    check_quota(Quota(disk=1), "own")
    check_quota(Quota(memory=1), "shared")
    with pytest.raises(UsageError, match="the host's"):
        check_quota(Quota(disk=1), "shared")
