"""A provider's process is killed at any moment: whoever comes next finds, and removes, all that it had made (I3)."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.snapshot.btrfs import btrfs_provider
from holdfast.snapshot.git import command
from holdfast.snapshot.git.technique import git_provider
from holdfast.snapshot.place import Place
from holdfast.snapshot.reflink import reflink_provider
from holdfast.testing.provider_contract import LEDGER_WRITES, Ground, kill_everywhere, lay

from ..disks import mounted

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.snapshot.port import Provider


def copying_ground(make: Callable[[Place], Provider], root: Path, state: Path) -> Ground:
    def left() -> list[str]:
        found = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        return found + [str(path) for path in (root / ".holdfast", state / "copies") if path.exists()]

    return Ground(root, lambda session: make(Place(os.fsencode(root), os.fsencode(state), session)), left, "")


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_copies_that_share_blocks(tmp_path: Path, beside: bool) -> None:
    with mounted("xfs", tmp_path) as disk:
        root = disk / "tree"
        (root / "d").mkdir(parents=True)
        (root / "d/file").write_text("content\n")
        state = (disk if beside else tmp_path) / "state"
        assert kill_everywhere(copying_ground(reflink_provider, root, state)) > 50


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
        assert kill_everywhere(ground, (*LEDGER_WRITES, (fcntl, "ioctl")), every=3) > 30


@pytest.mark.parametrize("first", [1, 2, 3, 4])
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

    ground = Ground(root, lambda session: git_provider(Place(bytes(root), bytes(state), session)), left, "")
    calls = (*LEDGER_WRITES, (command, "execute"))
    assert kill_everywhere(ground, calls, first=first, every=4) > 40
