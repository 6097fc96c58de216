"""The ZFS provider: where it cannot be used it says so, and what is Holdfast's own is not carried (I14)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import StorageError, UnsupportedError
from holdfast.snapshot.provider_context import ProviderContext
from holdfast.snapshot.zfs import _command as command
from holdfast.snapshot.zfs.provider import zfs_provider

from ....zfs_ground import clean_up, simulated_pool, zfs_ground

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace on a dataset."""
    found = simulated_pool(tmp_path, monkeypatch)
    yield found
    clean_up(zfs_ground(found, tmp_path / "state"), found)


def test_without_the_program_it_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_zfs", lambda: None)
    monkeypatch.setattr("holdfast.snapshot.zfs.provider.find_zfs", lambda: None)
    provider = zfs_provider(ProviderContext(bytes(tmp_path), bytes(tmp_path / "state"), "s"))
    assert provider.detect().notes == ("there is no program zfs",)
    with pytest.raises(UnsupportedError):
        provider.prepare("worktree")
    assert provider.tokens() == []


@ROOT
def test_a_directory_within_a_dataset_is_left_to_others(root: Path, tmp_path: Path) -> None:
    provider = zfs_provider(ProviderContext(bytes(root / "deep"), bytes(tmp_path / "state"), "s"))
    found = provider.detect()
    assert not found.score
    assert "where a dataset" in found.notes[0]


@ROOT
def test_holdfasts_own_is_not_carried(root: Path, tmp_path: Path) -> None:
    for name in (".holdfast/undo", ".home/state"):
        (root / name).mkdir(parents=True)
    (root / ".gitignore").write_text("plain\n")
    provider = zfs_provider(ProviderContext(bytes(root), bytes(root / ".home/state"), "one"))
    prepared = provider.prepare("worktree")
    held = os.listdir(prepared.path)
    assert b"plain" in held, "ignored files are"
    assert b".holdfast" not in held
    assert not os.path.lexists(os.path.join(prepared.path, b".home/state"))
    provider.cleanup(prepared.token)


@ROOT
def test_somebody_who_still_works_in_a_clone_does_not_keep_the_path(root: Path, tmp_path: Path) -> None:
    provider = zfs_provider(ProviderContext(bytes(root), bytes(tmp_path / "state"), "one"))
    prepared = provider.prepare("worktree")
    worker = subprocess.Popen([sys.executable, "-c", "input()"], cwd=prepared.path, stdin=subprocess.PIPE)
    try:
        provider.cleanup(prepared.token)
        assert not os.path.lexists(prepared.path)
    finally:
        worker.communicate(b"\n", timeout=60)


@ROOT
def test_what_zfs_says_is_passed_on(root: Path, tmp_path: Path) -> None:
    provider = zfs_provider(ProviderContext(bytes(root), bytes(tmp_path / "state"), "one"))
    prepared = provider.prepare("worktree")
    zfs = command.Zfs(bytes(tmp_path))
    with pytest.raises(StorageError, match="dataset does not exist"):
        zfs("snapshot", "tank/none@x")
    assert not zfs.destroy("tank/tree"), "there are others below it"
    provider.cleanup(prepared.token)
