"""I7: whoever may rename the directories above a workspace cannot lead its owner's commands elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.engine.workspace.workspace import Workspace
from holdfast.files.local_tree import LocalTree
from holdfast.files.watch import open_watcher
from holdfast.model.errors import EscapeError, HoldfastError, NotFoundError


@pytest.fixture
def swapped(workspace: Workspace, tree: Path, tmp_path: Path) -> Workspace:
    """A saved workspace whose directory has been renamed, with a link to a private directory in its place."""
    (tree / "file").write_text("mine\n")
    workspace.checkpoint()
    (tree / "file").write_text("changed\n")
    private = tmp_path / "private"
    private.mkdir(0o700)
    (private / "file").write_text("secret\n")
    tree.rename(tmp_path / "aside")
    tree.symlink_to(private)
    return workspace


@pytest.fixture(autouse=True)
def _put_back(tmp_path: Path) -> object:
    """The store is verified through the workspace's own directory."""
    yield
    if (tmp_path / "tree").is_symlink():
        (tmp_path / "tree").unlink()
        (tmp_path / "aside").rename(tmp_path / "tree")


@pytest.mark.parametrize(
    "command", [Workspace.checkpoint, Workspace.status, Workspace.undo, Workspace.diff], ids=lambda call: call.__name__
)
def test_nothing_is_read_or_written_through_a_link_that_took_the_roots_place(
    swapped: Workspace, tmp_path: Path, command: Callable[[Workspace], object]
) -> None:
    with pytest.raises(EscapeError, match="symbolic link"):
        command(swapped)
    assert [path.name for path in (tmp_path / "private").iterdir()] == ["file"]
    assert (tmp_path / "private/file").read_text() == "secret\n"
    assert len(swapped.log().checkpoints) == 1


def test_a_swap_between_the_scan_and_the_writing_is_noticed(
    workspace: Workspace, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "file").write_text("mine\n")
    workspace.checkpoint()
    (tree / "file").write_text("changed\n")
    private = tmp_path / "private"
    private.mkdir()
    apply = LocalTree.apply

    def swapping(self: LocalTree, *arguments: object, **options: object) -> object:
        tree.rename(tmp_path / "aside")
        tree.symlink_to(private)
        return apply(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalTree, "apply", swapping)
    with pytest.raises(EscapeError):
        workspace.undo()
    assert not os.listdir(private)
    monkeypatch.undo()
    tree.unlink()
    (tmp_path / "aside").rename(tree)
    workspace.restore_continue()
    assert (tree / "file").read_text() == "mine\n"


@pytest.mark.parametrize("backend", ["inotify", "polling"])
def test_a_watcher_takes_a_link_for_no_root(swapped: Workspace, tree: Path, backend: str) -> None:
    assert swapped.path == os.fsencode(tree)
    with pytest.raises((NotFoundError, HoldfastError)):
        open_watcher(swapped.path, backend).close()  # type: ignore[arg-type]
