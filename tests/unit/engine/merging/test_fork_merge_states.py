"""Merging a fork into what it came from: what comes of both, that it can be undone (I6), and what stops it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.history.derived_state import create_derived_checkpoint
from holdfast.engine.merging import fork_merge
from holdfast.engine.merging.deltas import find_bases
from holdfast.engine.merging.fork_merge import ForkMerge, OverlapPolicy
from holdfast.engine.merging.reapply.resolver import ladder_of
from holdfast.engine.merging.three_way import Prefer
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.checkpoint import Provenance
from holdfast.model.errors import RefusedError

from ....contexts import context_of

WHY = Provenance("somebody", "why", "what")


@pytest.fixture
def forked(workspace: Workspace, tree: Path, home: Path, tmp_path: Path):
    """The workspace with a few files, and a fork of it."""
    (tree / "sub").mkdir()
    for name in ("a", "b", "c", "sub/d"):
        (tree / name).write_text(f"{name}\n" * 9)
    workspace.checkpoint()
    workspace.fork("@", tmp_path / "fork")
    with holdfast.open(tmp_path / "fork", home=home) as other:
        yield other


def files(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(root)): (
            os.readlink(path) if path.is_symlink() else path.read_text(),
            path.lstat().st_mode & 0o777,
        )
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def merge(workspace: Workspace, other: Workspace, *, prefer: Prefer | None = None, dry_run: bool = False) -> ForkMerge:
    theirs = other.checkpoint().checkpoint.id
    with context_of(workspace) as context:
        policy = OverlapPolicy(lambda: ladder_of(context, prefer=prefer), dry_run=dry_run)
        return fork_merge.merge(context, theirs, WHY, policy)


def test_both_sides_work_comes_together_and_can_be_taken_apart_again_i6(
    workspace: Workspace, forked: Workspace, tree: Path
) -> None:
    there = Path(os.fsdecode(forked.path))
    (tree / "a").write_text("ours\n")
    (tree / "new here").write_text("x")
    (tree / "b").rename(tree / "moved")
    (there / "b").write_text("theirs\n")
    (there / "c").unlink()
    (there / "sub" / "d").chmod(0o755)
    (there / "link").symlink_to("a")
    before = files(tree)
    found = merge(workspace, forked)
    assert not found.waiting
    after = before | {
        "moved": ("theirs\n", before["moved"][1]),
        "sub/d": (before["sub/d"][0], 0o755),
        "link": ("a", 0o777),
    }
    del after["c"]
    assert files(tree) == after
    head = workspace.show().checkpoint
    assert (head.kind, head.provenance, head.parent) == ("merge", WHY, found.plan.production)
    assert workspace.status().clean
    workspace.undo()
    assert files(tree) == before
    workspace.redo()
    assert files(tree) == after


def test_a_conflict_stops_all_of_it_and_is_told(workspace: Workspace, forked: Workspace, tree: Path) -> None:
    there = Path(os.fsdecode(forked.path))
    (tree / "a").write_text("ours\n")
    (there / "a").write_text("theirs\n")
    (there / "b").write_text("theirs\n")
    before = files(tree)
    found = merge(workspace, forked)
    assert [(one.path, one.why) for one in found.waiting] == [(b"a", "content")]
    assert files(tree) == before
    assert found.restored is None
    assert not merge(workspace, forked, prefer="theirs").waiting
    assert (tree / "a").read_text() == (tree / "b").read_text() == "theirs\n"


def test_a_side_is_preferred_only_where_nothing_can_be_put_together(
    workspace: Workspace, forked: Workspace, tree: Path
) -> None:
    there = Path(os.fsdecode(forked.path))
    (tree / "a").write_text("ours\n" + "a\n" * 8)
    (there / "a").write_text("a\n" * 8 + "theirs\n")
    (tree / "b").write_text("ours\n")
    (there / "b").unlink()
    foreseen = merge(workspace, forked, prefer="theirs", dry_run=True)
    assert [change.path for change in foreseen.plan.stacked.plan.changes] == [b"a", b"b"]
    found = merge(workspace, forked, prefer="theirs")
    assert (tree / "a").read_text() == "ours\n" + "a\n" * 7 + "theirs\n"
    assert not (tree / "b").exists()
    assert [(one.path, one.outcome) for one in found.prepared.records] == [(b"a", "reapplied"), (b"b", "decided")]


def test_a_dry_run_changes_nothing(workspace: Workspace, forked: Workspace, tree: Path) -> None:
    (Path(os.fsdecode(forked.path)) / "b").write_text("theirs\n")
    before, head = files(tree), workspace.resolve("@")
    found = merge(workspace, forked, dry_run=True)
    assert [change.path for change in found.plan.stacked.plan.changes] == [b"b"]
    assert (files(tree), workspace.resolve("@")) == (before, head)


def test_nothing_to_merge(workspace: Workspace, forked: Workspace) -> None:
    found = merge(workspace, forked)
    assert not found.waiting
    assert found.restored is None


def test_what_changes_while_it_is_planned_is_not_overwritten(
    workspace: Workspace, forked: Workspace, tree: Path
) -> None:
    (Path(os.fsdecode(forked.path)) / "b").write_text("theirs\n")
    theirs = forked.checkpoint().checkpoint.id
    ours = workspace.checkpoint().checkpoint.id
    (tree / "b").write_text("in the last moment\n")
    with pytest.raises(RefusedError, match="changed meanwhile") as caught:
        workspace.restore(theirs, expected=ours)
    assert caught.value.code == "changed_meanwhile"
    assert (tree / "b").read_text() == "in the last moment\n"


def test_two_strangers_cannot_be_merged(workspace: Workspace, tree: Path, home: Path, tmp_path: Path) -> None:
    (tree / "a").write_text("a")
    ours = workspace.checkpoint().checkpoint.id
    (tmp_path / "other").mkdir()
    with holdfast.init(tmp_path / "other", home=home) as other:
        (tmp_path / "other" / "a").write_text("b")
        theirs = other.checkpoint().checkpoint.id
    with context_of(workspace) as context, pytest.raises(RefusedError, match="no state in common"):
        find_bases(context, ours, theirs)


def test_forks_of_one_state_parted_there(workspace: Workspace, forked: Workspace, home: Path, tmp_path: Path) -> None:
    workspace.fork("@", tmp_path / "second")
    base = workspace.resolve("@")
    with holdfast.open(tmp_path / "second", home=home) as second:
        (tmp_path / "second" / "z").write_text("z")
        theirs = second.checkpoint().checkpoint.id
        with context_of(workspace) as context:
            assert find_bases(context, forked.resolve("@"), theirs) == [base]


def test_content_that_is_gone_cannot_be_put_together(workspace: Workspace, tree: Path) -> None:
    from holdfast.model.entries import Change, file_entry
    from holdfast.model.ids import hash_bytes

    (tree / "a").write_text("a")
    ours = workspace.checkpoint().checkpoint.id
    lost = Change(b"b", None, file_entry(hash_bytes(b"lost"), 4, 0o644))
    with context_of(workspace) as context, context.lock(), pytest.raises(RefusedError) as caught:
        create_derived_checkpoint(context, ours, [lost], WHY)
    assert caught.value.code == "vanished"
    assert workspace.resolve("@") == ours
