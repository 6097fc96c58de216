"""A provider's process is killed at any moment: whoever comes next finds, and removes, all that it had made (I3)."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge.mount import fuse_device, overlayfs
from holdfast.engine.forks import _checkpoint_provider as checkpoint_provider
from holdfast.snapshot.btrfs import btrfs_provider
from holdfast.snapshot.full_copy import copy_provider, reflink_provider
from holdfast.snapshot.git import _command as command
from holdfast.snapshot.git.provider import git_provider
from holdfast.snapshot.overlay import _holder as holder
from holdfast.snapshot.overlay import provider as overlay
from holdfast.snapshot.overlay.provider import overlay_provider
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.zfs import _command as zfs_command
from holdfast.testing.crash_points import run_killed
from holdfast.testing.provider_contract import LEDGER_WRITES, Ground, kill_everywhere, lay

from ..disks import mounted
from ..overlays import holders
from ..own_snapshots import own_ground
from ..sampling import some, spread
from ..zfs_ground import clean_up, simulated_pool, zfs_ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.port import Provider


def copying_ground(make: Callable[[ProviderContext], Provider], root: Path, state: Path) -> Ground:
    def left() -> list[str]:
        found = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        return found + [str(path) for path in (root / ".holdfast", state / "copies") if path.exists()]

    return Ground(root, lambda session: make(ProviderContext(os.fsencode(root), os.fsencode(state), session)), left, "")


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_copies_that_share_blocks(tmp_path: Path, beside: bool) -> None:
    with mounted("xfs", tmp_path) as disk:
        root = disk / "tree"
        (root / "d").mkdir(parents=True)
        (root / "d/file").write_text("content\n")
        state = (disk if beside else tmp_path) / "state"
        assert kill_everywhere(copying_ground(reflink_provider, root, state), every=spread(5)) > 50 // spread(5)


def test_copies_that_share_nothing(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "d").mkdir(parents=True)
    (root / "d/file").write_text("content\n")
    assert kill_everywhere(copying_ground(copy_provider, root, tmp_path / "state"), every=spread(4)) > 50 // spread(4)


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_snapshots_of_a_subvolume(tmp_path: Path, beside: bool) -> None:
    """With another subvolume in it, so that there is something to be done between any two commits."""
    with mounted("btrfs", tmp_path) as disk:
        root = disk / "tree"
        for path in (root, root / "inner"):
            subprocess.run(["btrfs", "subvolume", "create", path], check=True, capture_output=True)
            (path / "file").write_text("content\n")
        ground = copying_ground(btrfs_provider, root, (disk if beside else tmp_path) / "state")
        calls = (*LEDGER_WRITES, (fcntl, "ioctl"))
        assert kill_everywhere(ground, calls, every=3 * spread(4)) > 30 // spread(4)


@pytest.mark.parametrize("first", some([1, 2, 3, 4], 1))
def test_a_shadow_of_a_git_repository(tmp_path: Path, first: int) -> None:
    """Between any two of the commands that it runs, and at each of its own writes."""
    root, state = tmp_path / "tree", tmp_path / "state"
    root.mkdir()
    lay(root)
    run = ["git", "-C", root, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*run, *words], check=True)
    (root / "plain").write_text("not staged\n")

    def left() -> list[str]:
        refs = subprocess.run([*run, "for-each-ref", "refs/holdfast"], check=True, capture_output=True)
        found = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        return found + refs.stdout.decode().splitlines()

    ground = Ground(root, lambda session: git_provider(ProviderContext(bytes(root), bytes(state), session)), left, "")
    calls = (*LEDGER_WRITES, (command, "execute"))
    assert kill_everywhere(ground, calls, first=first, every=4) > 40


def test_what_forks_of_a_git_repository_borrow(tmp_path: Path) -> None:
    """Killed at any moment while it is gathered, it is made whole by the next fork, and gone with the last."""
    root, state = tmp_path / "tree", tmp_path / "state"
    root.mkdir()
    lay(root)
    run = ["git", "-C", root, "-c", "user.name=U", "-c", "user.email=u@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*run, *words], check=True)
    subprocess.run([*run, "repack", "-a", "-d", "--quiet"], check=True)
    subprocess.run([*run, "commit-graph", "write", "--reachable"], check=True)
    (root / "of nothing").write_text("of nothing\n")
    subprocess.run([*run, "hash-object", "-w", "of nothing"], check=True)
    calls = tuple((os, name) for name in ("utime", "rename", "fsync", "mkdir", "unlink"))
    total = 0
    while True:
        total += 1
        ended = run_killed(
            lambda: git_provider(ProviderContext(bytes(root), bytes(state), "one")).prepare("worktree"),
            total * 2,
            calls=calls,
        )
        provider = git_provider(ProviderContext(bytes(root), bytes(state), "two"))
        fork = provider.prepare("worktree")
        with open(os.path.join(fork.path, b"file"), "w") as file:
            file.write("of nothing\n")
        inner = ["git", "-C", fork.path, *run[3:]]
        subprocess.run([*inner, "add", "file"], check=True)
        subprocess.run([*inner, "commit", "--quiet", "-m", "there"], check=True)
        borrowed = subprocess.run([*inner, "count-objects", "-v"], check=True, capture_output=True).stdout
        assert b"count: 2\n" in borrowed, "the tree and the commit, and the file is borrowed"
        check = subprocess.run([*inner, "fsck", "--full", "--no-dangling"], check=True, capture_output=True)
        assert check.stderr == b""
        for session in ("one", "two"):
            provider = git_provider(ProviderContext(bytes(root), bytes(state), session))
            for allocation in provider.tokens():
                provider.cleanup(allocation.token)
        assert not [path for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        if not ended.killed:
            break
    assert total > 8


OWN = tuple(
    (checkpoint_provider, name)
    for name in ("create_checkpoint_locked", "fork_mounted", "fork", "discard", "remove_whole")
)


@pytest.mark.parametrize("first", some([1, 5], 1))
def test_checkpoints_that_are_written_out(tmp_path: Path, first: int) -> None:
    assert kill_everywhere(own_ground(tmp_path, mounts=False), (*LEDGER_WRITES, *OWN), first=first, every=8) > 30


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("first", some([1, 9], 1))
def test_checkpoints_that_are_mounted(tmp_path: Path, first: int) -> None:
    """Another process serves what is mounted, and is not killed: it ends by itself, whatever it was about to do."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse, to mount an overlay")
    calls = (*LEDGER_WRITES, *OWN, (fuse_device, "detach"), (overlayfs, "detach_overlays"))
    assert kill_everywhere(own_ground(tmp_path, mounts=True), calls, first=first, every=14) > 15


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("first", some([1, 8], 1))
def test_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Between any two of the commands, and at each of its own writes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    root = simulated_pool(tmp_path, monkeypatch)
    ground = zfs_ground(root, tmp_path / "state")
    try:
        assert kill_everywhere(ground, (*LEDGER_WRITES, (zfs_command, "execute")), first=first, every=14) > 8
    finally:
        clean_up(ground, root)


@pytest.mark.root
@pytest.mark.parametrize("first", some([1, 3], 1))
def test_overlays(tmp_path: Path, first: int) -> None:
    """What mounts them is a process apart, which is not killed: it ends by itself, or stays to be ended."""
    root, state = tmp_path / "tree", tmp_path / "state"
    (root / "d").mkdir(parents=True)
    (root / "d/file").write_text("content\n")
    ground = copying_ground(overlay_provider, root, state)

    def left() -> list[str]:
        with open("/proc/self/mountinfo") as file:
            mounts = [line for line in file if str(state) in line]
        return ground.left() + mounts + [str(path) for name in ("layers", "lower") for path in state.glob(name)]

    calls = (*LEDGER_WRITES, (overlay, "mount_overlay"), (overlay, "detach_overlays"), (overlay, "replicate"))
    assert kill_everywhere(ground._replace(left=left), calls, first=first, every=4) > 15


@pytest.mark.root
@pytest.mark.parametrize("fatal", some(range(1, 40, 3), 5))
def test_overlays_that_are_held(tmp_path: Path, fatal: int) -> None:
    """Nobody holds one when it was cleaned up, though who began it was killed at any moment."""
    root, state = tmp_path / "tree", tmp_path / "state"
    root.mkdir()
    (root / "file").write_text("content\n")

    def make() -> Provider:
        return overlay_provider(ProviderContext(bytes(root), bytes(state), "one"))

    def work() -> None:
        provider = make()
        prepared = provider.prepare("overlay")
        provider.cleanup(provider.branch(provider.snapshot(prepared, "s"), "b", "overlay").token)

    run_killed(work, fatal, calls=(*LEDGER_WRITES, (holder, "start"), (holder, "without_holder")))
    provider = make()
    for allocation in provider.tokens():
        provider.cleanup(allocation.token)
    assert not [path for name in ("layers", "lower") for path in state.glob(name)]
    assert list(provider.tokens()) == []
    assert holders(state) == []
