"""What ``@`` means in a restore."""

from __future__ import annotations

from pathlib import Path

from holdfast.engine.workspace.workspace import Workspace


def test_path_after_path_comes_back_as_it_was_saved(workspace: Workspace, tree: Path) -> None:
    for name in ("one", "two"):
        (tree / name).write_text("saved\n")
    saved = workspace.checkpoint().checkpoint
    for name in ("one", "two"):
        (tree / name).write_text("spoilt\n")
    first = workspace.restore("@", [b"one"])
    second = workspace.restore("@", [b"two"])
    assert (first.checkpoint, second.checkpoint) == (saved.id, saved.id)
    assert [(tree / name).read_text() for name in ("one", "two")] == ["saved\n", "saved\n"]
    assert workspace.log().head == second.rescue


def test_a_workspace_that_has_only_rescues_restores_its_newest(workspace: Workspace, tree: Path) -> None:
    (tree / "file").write_text("1")
    first = workspace.checkpoint().checkpoint
    (tree / "file").write_text("2")
    rescue = workspace.restore("@", [b"file"]).rescue
    assert rescue is not None
    workspace.checkpoint()
    workspace.forget([first.id])
    (tree / "file").write_text("3")
    assert workspace.restore(rescue).checkpoint == rescue
    assert (tree / "file").read_text() == "2"
