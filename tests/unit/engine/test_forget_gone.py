"""Workspaces whose directories were deleted: they hold nothing back once they are let go."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.workspace import Workspace
from holdfast.model.errors import IntegrityError, RefusedError, UsageError


def test_a_deleted_fork_lets_its_source_go(workspace: Workspace, tree: Path, tmp_path: Path, home: Path) -> None:
    (tree / "file").write_text("first\n")
    first = workspace.checkpoint().checkpoint.id
    (tree / "file").write_text("second\n")
    workspace.checkpoint()
    fork = tmp_path / "fork"
    workspace.fork(first, fork)
    (fork / "own").write_text("only here\n" * 1000)
    with holdfast.open(fork, home=home) as forked:
        own = forked.checkpoint().checkpoint.id
    assert not workspace.forget_gone().removed, "it is still there"
    shutil.rmtree(fork)
    with pytest.raises(RefusedError) as caught:
        workspace.forget([first])
    assert "--gone" in (caught.value.hint or "")
    planned = workspace.forget_gone(dry_run=True)
    assert own in {checkpoint.id for checkpoint in planned.removed}
    assert workspace.log(everything=True).checkpoints[0].id == own, "a dry run changes nothing"
    removed = workspace.forget_gone().removed
    assert {checkpoint.id for checkpoint in removed} == {checkpoint.id for checkpoint in planned.removed}
    workspace.forget([first])
    before = workspace.stats().blobs
    workspace.gc(grace=0)
    assert workspace.stats().blobs == before - 2
    assert [checkpoint.workspace for checkpoint in workspace.log(everything=True).checkpoints] == [workspace.id]


def test_what_something_else_stands_on_stays(workspace: Workspace, tree: Path, tmp_path: Path, home: Path) -> None:
    (tree / "file").write_text("first\n")
    workspace.checkpoint()
    workspace.fork("@", tmp_path / "one")
    with holdfast.open(tmp_path / "one", home=home) as one:
        (tmp_path / "one/file").write_text("changed\n")
        base = one.checkpoint().checkpoint.id
        one.fork("@", tmp_path / "two")
    shutil.rmtree(tmp_path / "one")
    result = workspace.forget_gone()
    assert base in {checkpoint.id for checkpoint, _ in result.kept}
    assert base not in {checkpoint.id for checkpoint in result.removed}
    with holdfast.open(tmp_path / "two", home=home) as two:
        assert two.status().clean


def test_the_workspace_that_is_open_is_not_among_them(
    open_workspace: Callable[..., Workspace], tree: Path, home: Path
) -> None:
    (tree / "file").write_text("first\n")
    open_workspace().checkpoint()
    shutil.rmtree(tree)
    with holdfast.open(tree, home=home) as workspace:
        assert not workspace.forget_gone().removed
        workspace.restore("@")
    assert (tree / "file").read_text() == "first\n"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_objects_without_a_catalog_are_not_taken_for_a_new_home(
    tree: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    place = tmp_path / "elsewhere" if elsewhere else home / "objects"
    monkeypatch.setenv("HOLDFAST_STORE_URL", str(place))
    (tree / "file").write_text("kept\n")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    objects = sorted(path for path in place.rglob("*") if path.is_file())
    for path in home.glob("catalog.db*"):
        path.rename(path.with_name("aside-" + path.name))
    for attempt in (holdfast.open, holdfast.init):
        with pytest.raises(IntegrityError, match="is missing"):
            attempt(tree, home=home)
    assert sorted(path for path in place.rglob("*") if path.is_file()) == objects
    for path in home.glob("aside-*"):
        path.rename(path.with_name(path.name.removeprefix("aside-")))
    with holdfast.open(tree, home=home) as workspace:
        assert workspace.verify(read_data=True).ok


def test_an_unknown_kind_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="kind"):
        workspace.checkpoint(kind="zzz")  # type: ignore[arg-type]


def test_an_origin_and_its_fork_go_together(workspace: Workspace, tree: Path, tmp_path: Path, home: Path) -> None:
    (tree / "file").write_text("kept\n")
    workspace.checkpoint()
    for name in ("origin", "fork"):
        (tmp_path / name).mkdir()
    (tmp_path / "fork").rmdir()
    with holdfast.init(tmp_path / "origin", home=home) as origin:
        (tmp_path / "origin/file").write_text("gone\n")
        origin.checkpoint()
        origin.fork("@", tmp_path / "fork")
    for name in ("origin", "fork"):
        shutil.rmtree(tmp_path / name)
    planned = {checkpoint.id for checkpoint in workspace.forget_gone(dry_run=True).removed}
    assert {checkpoint.id for checkpoint in workspace.forget_gone().removed} == planned
    assert [checkpoint.workspace for checkpoint in workspace.log(everything=True).checkpoints] == [workspace.id]
    assert not workspace.forget_gone().removed
