"""A provider's process is killed at any moment: whoever comes next finds, and removes, all that it had made (I3)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.bridge import device, overlay
from holdfast.engine import own_checkpoints
from holdfast.snapshot import zfs_command
from holdfast.snapshot.git import command
from holdfast.snapshot.git.technique import git_provider
from holdfast.snapshot.place import Place
from holdfast.snapshot.reflink import reflink_provider
from holdfast.testing.provider_contract import LEDGER_WRITES, Ground, kill_everywhere, lay

from ..own_snapshots import own_ground
from ..zfs_ground import clean_up, simulated_pool, zfs_ground

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a loop device")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    try:
        subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs mkfs.xfs")
    done = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def reflink_ground(root: Path, state: Path) -> Ground:
    def left() -> list[str]:
        found = [str(path) for path in state.rglob("*") if path.is_file() and path.suffix not in (".lock", ".new")]
        return found + [str(path) for path in (root / ".holdfast", state / "copies") if path.exists()]

    return Ground(
        root, lambda session: reflink_provider(Place(os.fsencode(root), os.fsencode(state), session)), left, ""
    )


@pytest.mark.root
@pytest.mark.parametrize("beside", [True, False])
def test_copies_that_share_blocks(disk: Path, tmp_path: Path, beside: bool) -> None:
    root = disk / "tree"
    (root / "d").mkdir(parents=True)
    (root / "d/file").write_text("content\n")
    assert kill_everywhere(reflink_ground(root, (disk if beside else tmp_path) / "state")) > 50


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


OWN = tuple((own_checkpoints, name) for name in ("take_locked", "fork_mounted", "fork", "discard", "remove_whole"))


@pytest.mark.parametrize("first", [1, 5])
def test_checkpoints_that_are_written_out(tmp_path: Path, first: int) -> None:
    assert kill_everywhere(own_ground(tmp_path, mounts=False), (*LEDGER_WRITES, *OWN), first=first, every=8) > 30


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 9])
def test_checkpoints_that_are_mounted(tmp_path: Path, first: int) -> None:
    """Another process serves what is mounted, and is not killed: it ends by itself, whatever it was about to do."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse, to mount an overlay")
    calls = (*LEDGER_WRITES, *OWN, (device, "detach"), (overlay, "detach_overlays"))
    assert kill_everywhere(own_ground(tmp_path, mounts=True), calls, first=first, every=16) > 15


@pytest.mark.root
@pytest.mark.parametrize("first", [1, 4])
def test_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Between any two of the commands, and at each of its own writes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount")
    root = simulated_pool(tmp_path, monkeypatch)
    ground = zfs_ground(root, tmp_path / "state")
    try:
        assert kill_everywhere(ground, (*LEDGER_WRITES, (zfs_command, "execute")), first=first, every=7) > 15
    finally:
        clean_up(ground, root)
