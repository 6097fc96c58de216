"""What the home notes of where workspaces are, for a command that has not opened the catalog yet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.files.scan import parallel_scan
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace


@pytest.fixture
def folder(workspace: Workspace, tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The folder of a workspace at ``tree`` that the home has noted."""
    monkeypatch.setattr(parallel_scan, "MIN_FILES", 2)
    (tree / "inner").mkdir()
    for name in ("one", "inner/two"):
        (tree / name).write_text(name)
    workspace.checkpoint()
    return bytes(home / "workspaces" / workspace.id)


def link(home: Path, root: Path) -> Path:
    return home / "places" / hash_bytes(bytes(root)).hex()


def test_a_small_tree_is_not_noted(workspace: Workspace, tree: Path, home: Path) -> None:
    (tree / "one").write_text("one")
    workspace.checkpoint()
    assert not (home / "places").exists()


def test_a_note_is_left_as_it_is_while_it_is_right(folder: bytes, tree: Path, home: Path, workspace: Workspace) -> None:
    before = link(home, tree).lstat()
    (tree / "one").write_text("edited")
    workspace.checkpoint()
    assert link(home, tree).lstat().st_ino == before.st_ino


def test_what_a_killed_process_left_of_a_note_is_in_nobodys_way(
    folder: bytes, tree: Path, home: Path, workspace: Workspace
) -> None:
    link(home, tree).unlink()
    left = link(home, tree).with_name(f"{link(home, tree).name}.new-{workspace.id}")
    left.symlink_to("else")
    (tree / "one").write_text("edited")
    workspace.checkpoint()
    assert [path.name for path in (home / "places").iterdir()] == [link(home, tree).name]
    assert os.readlink(link(home, tree)) == workspace.id


def test_a_home_that_cannot_be_written_to_has_no_notes(workspace: Workspace, tree: Path, home: Path) -> None:
    (home / "places").write_text("in the way")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_scan, "MIN_FILES", 1)
        (tree / "one").write_text("one")
        assert workspace.checkpoint().created
