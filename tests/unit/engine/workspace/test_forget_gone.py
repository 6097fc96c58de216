"""Workspaces whose directories were deleted: they hold nothing back once they are let go."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.opening.missing_workspaces import find_moved
from holdfast.engine.opening.opener import Opener
from holdfast.engine.workspace.workspace import Workspace
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
    assert caught.value.hint == f"if you have deleted {fork}, `holdfast forget --gone` lets go of it"
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


def test_no_fork_takes_the_place_of_a_deleted_one_until_that_is_let_go(
    workspace: Workspace, tree: Path, tmp_path: Path
) -> None:
    (tree / "file").write_text("first\n")
    workspace.checkpoint()
    fork = tmp_path / "fork"
    workspace.fork("@", fork)
    shutil.rmtree(fork)
    with pytest.raises(RefusedError, match="is a workspace whose directory is gone") as caught:
        workspace.fork("@", fork)
    assert "holdfast forget --gone" in (caught.value.hint or "")
    assert not fork.exists()
    workspace.forget_gone()
    workspace.fork("@", fork)
    assert (fork / "file").read_text() == "first\n"


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
        result = workspace.forget_gone()
        assert not result.removed
        assert [reasons for _, reasons in result.kept] == [("its workspace is open",)]
        workspace.restore("@")
    assert (tree / "file").read_text() == "first\n"


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a log without its file", "a database without a schema"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_objects_without_a_catalog_are_not_taken_for_a_new_home(
    tree: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool, left: str
) -> None:
    place = tmp_path / "elsewhere" if elsewhere else home / "objects"
    monkeypatch.setenv("HOLDFAST_STORE_URL", str(place))
    (tree / "file").write_text("kept\n")
    with holdfast.init(tree, home=home) as workspace:
        workspace.checkpoint()
    objects = sorted(path for path in place.rglob("*") if path.is_file())
    for path in home.glob("catalog.db*"):
        path.rename(path.with_name("aside-" + path.name))
    if left == "a database without a schema":
        with closing(sqlite3.connect(home / "catalog.db")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    elif left != "nothing":
        (home / "catalog.db").touch()
        if left == "a log without its file":
            (home / "catalog.db-wal").write_bytes(b"what can still be saved")
    for attempt in (holdfast.open, holdfast.init):
        with pytest.raises(IntegrityError, match="is missing or empty"):
            attempt(tree, home=home)
    assert sorted(path for path in place.rglob("*") if path.is_file()) == objects
    if left == "a log without its file":
        assert (home / "catalog.db-wal").read_bytes() == b"what can still be saved"
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


@pytest.mark.parametrize("to", ["renamed", "deep/down/here", "../beside"])
def test_a_workspace_that_was_moved_and_not_used_since_is_not_gone(
    workspace: Workspace, tree: Path, tmp_path: Path, home: Path, to: str
) -> None:
    (tree / "file").write_text("kept\n")
    workspace.checkpoint()
    old, new = tmp_path / "places/old", tmp_path / "places" / to
    old.mkdir(parents=True)
    with holdfast.init(old, home=home) as other:
        (old / "own").write_text("its own\n")
        own = other.checkpoint().checkpoint.id
    new.parent.mkdir(parents=True, exist_ok=True)
    old.rename(new)
    for dry_run in (True, False):
        result = workspace.forget_gone(dry_run=dry_run)
        assert not result.removed
        assert [(checkpoint.id, str(new.resolve()) in reasons[0]) for checkpoint, reasons in result.kept] == [
            (own, True)
        ]
    with holdfast.open(new, home=home) as other:
        assert other.status().clean
    shutil.rmtree(new)
    assert [checkpoint.id for checkpoint in workspace.forget_gone().removed] == [own]


def test_the_search_for_moved_ones_has_an_end(workspace: Workspace, tmp_path: Path, home: Path) -> None:
    (tmp_path / "old").mkdir()
    with closing(Opener(home=bytes(home))) as opener:
        context, _ = opener.init(bytes(tmp_path / "old"))
    record, folder = context.workspace, context.folder
    (tmp_path / "old").rename(tmp_path / "new")
    assert find_moved([record], lambda _: folder) == {record.id: bytes(tmp_path / "new")}
    assert find_moved([record], lambda _: folder, most=0) == {}


def test_one_that_another_took_the_place_of_is_gone_and_does_not_speak_for_that(
    workspace: Workspace, tree: Path, tmp_path: Path, home: Path
) -> None:
    (tree / "file").write_text("kept\n")
    workspace.checkpoint()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with holdfast.init(first, home=home) as origin:
        (first / "file").write_text("origin\n")
        base = origin.checkpoint().checkpoint.id
        (first / "file").write_text("more\n")
        more = origin.checkpoint().checkpoint.id
        origin.fork(base, second)
    shutil.rmtree(first)
    second.rename(first)
    with holdfast.open(first, home=home) as fork:
        assert fork.status().clean
    planned = workspace.forget_gone(dry_run=True)
    assert [checkpoint.id for checkpoint in planned.removed] == [more]
    assert [checkpoint.id for checkpoint, _ in planned.kept] == [base]
    assert [checkpoint.id for checkpoint in workspace.forget_gone().removed] == [more]
