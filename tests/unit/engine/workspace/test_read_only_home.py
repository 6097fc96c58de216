"""A home on a read-only file system: what was saved can be looked at, and whoever comes to change something is told."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace

MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2


@pytest.fixture
def read_only(tree: Path, home: Path, open_workspace: Callable[..., Workspace]) -> Iterator[Callable[[], None]]:
    """A home with two checkpoints; the call mounts it so that nobody can write into it."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted: list[bytes] = []
    workspace = open_workspace()
    for content in (b"one\n", b"two\n"):
        (tree / "file").write_bytes(content)
        workspace.checkpoint(content.decode().strip())
    workspace.close()

    def mount() -> None:
        path = bytes(home)
        for flags in (MS_BIND, MS_REMOUNT | MS_BIND | MS_RDONLY):
            if libc.mount(path, path, b"none", flags, None):
                pytest.skip(f"needs the right to mount: {os.strerror(ctypes.get_errno())}")
        mounted.append(path)

    yield mount
    for path in mounted:
        assert not libc.umount2(path, MNT_DETACH)


@pytest.mark.parametrize("log", [False, True], ids=["closed", "with-a-log"])
def test_what_was_saved_can_be_looked_at(
    read_only: Callable[[], None], tree: Path, home: Path, tmp_path: Path, log: bool
) -> None:
    # Somebody who has it open keeps SQLite from emptying its log.
    other = sqlite3.connect(home / "catalog.db")
    labels = ["two", "one"]
    if log:
        other.execute("SELECT * FROM checkpoints").fetchone()
        with holdfast.open(tree, home=home) as workspace:
            (tree / "new").touch()
            workspace.checkpoint("three")
            labels.insert(0, "three")
    assert (home / "catalog.db-wal").exists() == log
    read_only()
    with holdfast.open(tree, home=home) as workspace:
        assert [checkpoint.label for checkpoint in workspace.log().checkpoints] == labels
        assert b"".join(workspace.cat("one", "file")) == b"one\n"
        assert [change.path for change in workspace.diff("one", "two").changes] == [b"file"]
        assert not workspace.status().changes
        assert b"file" in [change.path for change in workspace.diff("one").changes]
        assert workspace.verify(read_data=True).ok
        assert workspace.stats().checkpoints == len(labels)
        workspace.export(["@"], tmp_path / "bundle")
        assert (tmp_path / "bundle").stat().st_size
    other.close()


def test_whoever_comes_to_change_something_is_told(read_only: Callable[[], None], tree: Path, home: Path) -> None:
    read_only()
    with holdfast.open(tree, home=home) as workspace:
        for act in (lambda: workspace.restore("one"), workspace.undo, workspace.gc):
            with pytest.raises(StorageError, match=r"(?i)read-only file system"):
                act()
        (tree / "file").write_bytes(b"three\n")
        with pytest.raises(StorageError, match=r"(?i)read-only file system"):
            workspace.checkpoint()
    assert (tree / "file").read_bytes() == b"three\n"
