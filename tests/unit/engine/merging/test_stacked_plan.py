"""The plan of a stacked merge over the catalog: fork point, stack, second parents, coarser stacks, straight ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.stacked_plan import MergePlan, Resolution
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.answers import merges as answers
from holdfast.model.ids import CheckpointId
from holdfast.model.json_encoder import encode, encode_all

from ....contexts import context_of


@pytest.fixture
def forked(workspace: Workspace, tree: Path, home: Path, tmp_path: Path):
    """The workspace with a few files, and a fork of it."""
    for name in "abcdefgh":
        (tree / name).write_text(f"{name}\n" * 9)
    workspace.checkpoint()
    workspace.fork("@", tmp_path / "fork")
    with holdfast.open(tmp_path / "fork", home=home) as other:
        yield other


def root(workspace: Workspace) -> Path:
    return Path(os.fsdecode(workspace.path))


def saved(workspace: Workspace, **files: str | None):
    for name, text in files.items():
        path = root(workspace) / name
        path.write_text(text) if text is not None else path.unlink()
    return workspace.checkpoint().checkpoint.id


def planned(workspace: Workspace, other: Workspace) -> MergePlan:
    return plan_states(workspace, other.checkpoint().checkpoint.id, workspace.checkpoint().checkpoint.id)


def plan_states(workspace: Workspace, theirs: CheckpointId, ours: CheckpointId) -> MergePlan:
    with context_of(workspace) as context:
        return stacked_plan.plan(context, theirs, ours)


def test_the_fields_of_the_specification(workspace: Workspace, forked: Workspace) -> None:
    base = workspace.resolve("@")
    saved(workspace, a="ours", b="ours", c=None, z="new here")
    saved(forked, a="1")
    saved(forked, d="theirs", e=None)
    saved(forked, a="2", c=None, y="new there")
    found = planned(workspace, forked)
    overlapping = encode_all(answers.Overlap, found.overlapping)
    assert {**encode(answers.MergePlan, found), "overlapping_files": overlapping} == {
        "result": "needs_reapply",
        "fork_checkpoint": base,
        "production_checkpoint": workspace.resolve("@"),
        "promote_checkpoint": forked.resolve("@"),
        "changesets": 3,
        "straight": False,
        "changes": {
            "apply_theirs": 2,
            "keep_production": 2,
            "deletes": 1,
            "unchanged": 3,
            "overlapping": 1,
            "identical": 1,
        },
        "writes": ["d", "y"],
        "deletes": ["e"],
        "uncaptured": [],
        "overlapping_files": [
            {
                "path": "a",
                "production_path": "a",
                "fork_path": "a",
                "changeset_count": 2,
                "changesets": [1, 3],
                "why": "content",
                "detail": "Modified in changesets Δ1, Δ3 of the fork and here.",
                "version": found.overlapping[0].version,
                "can_reapply": True,
            }
        ],
    }


def test_where_nothing_else_happened_production_becomes_what_the_fork_is(
    workspace: Workspace, forked: Workspace, tree: Path
) -> None:
    saved(forked, a="1", b=None)
    assert planned(workspace, forked).is_straight
    workspace.merge(os.fsdecode(forked.path))
    theirs = forked.show().checkpoint
    assert workspace.show().checkpoint.root == theirs.root
    assert sorted(path.name for path in tree.iterdir()) == sorted(path.name for path in root(forked).iterdir())


def test_a_second_merge_looks_only_at_what_has_come_since(workspace: Workspace, forked: Workspace) -> None:
    saved(workspace, z="ours")
    first = saved(forked, a="1")
    assert workspace.merge(os.fsdecode(forked.path)).restored is not None
    saved(workspace, a="changed again here")
    second = saved(forked, b="2")
    found = planned(workspace, forked)
    assert (found.base, found.fork, found.changesets) == (first, second, 1)
    assert [one.path for one in found.writes] == [b"b"]
    assert not found.overlapping
    workspace.merge(os.fsdecode(forked.path))
    assert (root(workspace) / "a").read_text() == "changed again here"


def test_an_undone_merge_can_be_merged_again(workspace: Workspace, forked: Workspace) -> None:
    base = workspace.resolve("@")
    saved(forked, a="1")
    workspace.merge(os.fsdecode(forked.path))
    workspace.undo()
    assert planned(workspace, forked).base == base
    workspace.merge(os.fsdecode(forked.path))
    assert (root(workspace) / "a").read_text() == "1"


def test_a_fork_that_has_taken_production_in_stands_on_that(workspace: Workspace, forked: Workspace) -> None:
    """The stack is told as one up to there, and one by one after it."""
    saved(forked, a="1")
    saved(forked, b="2")
    ours = saved(workspace, c="ours")
    forked.merge(os.fsdecode(workspace.path))
    saved(forked, d="3")
    saved(workspace, e="later")
    found = planned(workspace, forked)
    assert (found.base, found.changesets) == (ours, 2)
    assert [one.path for one in found.writes] == [b"a", b"b", b"d"]
    assert not found.deletes


def test_retention_makes_the_stack_coarser_and_loses_nothing(workspace: Workspace, forked: Workspace) -> None:
    names = [saved(forked, a=str(number), b=str(number)) for number in range(5)]
    saved(workspace, a="ours")
    before = planned(workspace, forked)
    assert before.changesets == 5
    forked.forget([*names[1:3]])
    found = planned(workspace, forked)
    assert found.changesets == 3
    assert found.base == before.base
    assert found.writes == before.writes
    assert len(found.overlapping[0].small) == 3


def test_second_parents_survive_that_the_merge_and_the_fork_are_forgotten(
    workspace: Workspace, forked: Workspace
) -> None:
    saved(workspace, z="ours")
    saved(forked, a="0")
    theirs = saved(forked, a="1")
    workspace.merge(os.fsdecode(forked.path))
    merged = workspace.resolve("@")
    saved(workspace, y="more")
    saved(forked, b="2")
    assert planned(workspace, forked).base == theirs
    workspace.forget([merged])
    assert planned(workspace, forked).base == theirs
    with pytest.raises(holdfast.RefusedError, match=r"merged into .* last"):
        forked.forget([theirs])
    found = planned(workspace, forked)
    assert [one.path for one in found.writes] == [b"b"]
    assert not found.overlapping
    with context_of(workspace) as context:
        workspace.let_go()
        forked.forget([theirs])
        assert not {theirs, merged} & set(context.catalog.lineage(workspace.resolve("@")))
        found = stacked_plan.plan(context, forked.checkpoint().checkpoint.id, workspace.checkpoint().checkpoint.id)
        assert found.base != theirs
        assert not found.overlapping
        context.catalog.adopt(workspace.id)
    assert workspace.verify().ok


def test_what_both_have_taken_over_from_each_other_is_not_decided_by_chance(
    workspace: Workspace, forked: Workspace, home: Path, tmp_path: Path
) -> None:
    """Two states in common: what one side has taken back since must not come again because of the other."""
    ours = saved(workspace, a="ours")
    saved(forked, b="theirs")
    workspace.fork(ours, tmp_path / "at ours")
    workspace.merge(os.fsdecode(forked.path))
    with holdfast.open(tmp_path / "at ours", home=home) as between:
        forked.merge(os.fsdecode(between.path))
    original = "a\n" * 9
    saved(workspace, a=original, c="c here")
    found = planned(workspace, forked)
    assert len(found.also_bases) == 1
    told = {one.path: one.why for one in found.overlapping}
    taken = {one.path for one in found.stacked.plan.changes}
    assert b"a" not in taken
    assert told in ({b"a": "bases"}, {})
    ended = workspace.merge(os.fsdecode(forked.path))
    assert (root(workspace) / "a").read_text() == original
    assert ended.plan.overlapping or ended.prepared.merged is not None


def test_strangers_have_no_fork_point(workspace: Workspace, home: Path, tree: Path, tmp_path: Path) -> None:
    (tree / "a").write_text("a")
    workspace.checkpoint()
    (tmp_path / "other").mkdir()
    with holdfast.init(tmp_path / "other", home=home) as other:
        (tmp_path / "other" / "a").write_text("b")
        with pytest.raises(holdfast.RefusedError, match="no state in common"):
            planned(workspace, other)


def test_differences_are_remembered_by_what_they_are_of(
    workspace: Workspace, forked: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.engine.merging import deltas

    deltas.clear_caches()
    saved(workspace, a="ours")
    saved(forked, b="theirs")
    first = planned(workspace, forked)
    monkeypatch.setattr(deltas, "diff", None)
    assert planned(workspace, forked) == first
    monkeypatch.setattr(deltas, "MOST_CHANGES", 0)
    monkeypatch.undo()
    saved(workspace, c="ours")
    assert planned(workspace, forked).counts.keep_production == 2


def test_a_stack_is_remembered_by_its_changesets(
    workspace: Workspace, forked: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.engine.merging import deltas

    deltas.clear_caches()
    saved(workspace, a="ours")
    names = [saved(forked, a=text) for text in ("one", "two", "three")]
    first = planned(workspace, forked)
    decode = deltas.decode_changeset
    monkeypatch.setattr(deltas, "decode_changeset", None)
    assert planned(workspace, forked) == first
    monkeypatch.setattr(deltas, "decode_changeset", decode)
    # What retention drops is in the next changeset then, which is another one under the same name.
    forked.forget([names[1]])
    coarser = planned(workspace, forked)
    assert (first.changesets, coarser.changesets) == (3, 2)
    assert [small.number for small in coarser.overlapping[0].small] == [1, 2]
    monkeypatch.setattr(deltas, "MOST_CHANGES", 0)
    saved(forked, b="theirs")
    assert planned(workspace, forked).changesets == 3
    monkeypatch.setattr(deltas, "decode_changeset", None)
    with pytest.raises(TypeError):
        planned(workspace, forked)  # nothing is kept beyond the limit


def test_a_fork_that_has_done_nothing_leaves_no_trace(workspace: Workspace, forked: Workspace) -> None:
    """Else a state would be its own ancestor, and states in common would be found that are none."""
    workspace.merge(os.fsdecode(forked.path))
    with context_of(workspace) as context:
        assert context.catalog.merge_parents(workspace.resolve("@")) == []
    saved(workspace, a="ours")
    forked.merge(os.fsdecode(workspace.path))
    ours = saved(workspace, b="ours")
    found = planned(workspace, forked)
    assert (found.also_bases, found.overlapping) == ([], [])
    assert found.production == ours


def test_a_decision_where_there_are_two_states_in_common_is_taken(
    workspace: Workspace, forked: Workspace, home: Path, tmp_path: Path
) -> None:
    ours = saved(workspace, a="ours")
    saved(forked, b="theirs")
    workspace.fork(ours, tmp_path / "at ours")
    workspace.merge(os.fsdecode(forked.path))
    with holdfast.open(tmp_path / "at ours", home=home) as between:
        forked.merge(os.fsdecode(between.path))
    saved(workspace, a="a\n" * 9)
    found = workspace.merge(os.fsdecode(forked.path))
    assert [(one.path, one.why) for one in found.plan.overlapping] == [(b"a", "bases")]
    assert (root(workspace) / "a").read_text() == "a\n" * 9
    workspace.merge(os.fsdecode(forked.path), resolutions={"a": Resolution(content=b"decided")})
    assert (root(workspace) / "a").read_text() == "decided"


def ignored(workspace: Workspace, *names: str) -> None:
    (root(workspace) / ".gitignore").write_text("".join(f"/{name}\n" for name in names))


def test_what_the_fork_has_begun_to_ignore_stays(workspace: Workspace, forked: Workspace, tree: Path) -> None:
    """I5: also what production has changed, and under a directory; what is gone from the fork's disk is deleted."""
    (tree / "dir").mkdir()
    (tree / "dir/in").write_text("in\n")
    workspace.checkpoint()
    forked.merge(os.fsdecode(workspace.path))
    ignored(forked, "a", "b", "c", "dir/", "d")
    saved(workspace, b="changed here", d=None)
    saved(forked, c=None)
    found = planned(workspace, forked)
    said = encode(answers.MergePlan, found)
    assert said["uncaptured"] == ["a", "b", "dir/in"]
    assert (said["deletes"], said["writes"]) == (["c"], [".gitignore"])
    assert (found.result, found.counts.deletes) == ("clean", 1)
    workspace.merge(os.fsdecode(forked.path))
    assert {name: (tree / name).exists() for name in ("a", "b", "c", "d", "dir/in")} == {
        "a": True,
        "b": True,
        "c": False,
        "d": False,
        "dir/in": True,
    }
    assert (tree / "b").read_text() == "changed here"
    assert planned(workspace, forked).stacked.plan.changes == [], "it is merged, and nothing of it comes again"
    workspace.undo()
    assert not (tree / ".gitignore").exists()
    assert (tree / "c").exists()
    assert (tree / "b").read_text() == "changed here"
    assert workspace.status().clean
    workspace.redo()
    assert (tree / ".gitignore").exists()
    assert (tree / "b").read_text() == "changed here"
    assert workspace.status().clean


def test_what_is_ignored_and_was_copied_was_not_renamed(workspace: Workspace, forked: Workspace, tree: Path) -> None:
    """``config`` becomes ``config.example``, and each has one of their own from now on; on either side."""
    for side in (workspace, forked):
        for name in "ab":
            (root(side) / f"{name}.{side.id}").write_text((root(side) / name).read_text())
    ignored(forked, "a")
    ignored(workspace, "b")
    (root(forked) / "b").write_text("b\n" * 9 + "and more")
    found = planned(workspace, forked)
    assert found.uncaptured == [b"a"]
    assert [(one.path, one.why) for one in found.overlapping] == [
        (b".gitignore", "both_added"),
        (b"b", "deleted_here"),
    ]
    assert sorted(change.path for change in found.stacked.plan.changes) == sorted(
        f"{name}.{forked.id}".encode() for name in "ab"
    )


def test_without_the_directory_the_rules_of_the_state_tell(
    workspace: Workspace, forked: Workspace, tree: Path, tmp_path: Path
) -> None:
    ignored(forked, "a", "b")
    (tmp_path / "fork/c").unlink()
    state = forked.checkpoint().checkpoint.id
    (tmp_path / "fork/b").unlink()
    (tmp_path / "fork/d").unlink()
    ours = workspace.checkpoint().checkpoint.id
    assert plan_states(workspace, state, ours).uncaptured == [b"a"], "b is gone from its disk since"
    forked.checkpoint()
    assert plan_states(workspace, state, ours).uncaptured == [b"a"]
    (tmp_path / "fork").rename(tmp_path / "elsewhere")
    found = plan_states(workspace, state, ours)
    assert found.uncaptured == [b"a", b"b"]
    assert [change.path for change in found.deletes] == [b"c"]
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork/c").write_text("of another directory at its path")
    assert plan_states(workspace, state, ours).uncaptured == [b"a", b"b"]


def test_what_another_rule_leaves_out_stays_as_well(
    workspace: Workspace, forked: Workspace, tmp_path: Path, home: Path
) -> None:
    """A rule that no checkpoint holds: the disk tells."""
    (tmp_path / "fork/holdfast.toml").write_text('[capture]\nexclude = ["/a"]\n')
    with holdfast.open(tmp_path / "fork", home=home) as other:
        found = planned(workspace, other)
    assert found.uncaptured == [b"a"]
    assert found.deletes == []


def test_a_link_on_the_way_is_not_followed(workspace: Workspace, forked: Workspace, tmp_path: Path) -> None:
    """I7: what lies behind a link is not what was there."""
    for one in (workspace, forked):
        (root(one) / "dir").mkdir()
        (root(one) / "dir/in").write_text("in\n")
    workspace.checkpoint()
    forked.merge(os.fsdecode(workspace.path))
    (tmp_path / "fork/dir").rename(tmp_path / "outside")
    (tmp_path / "fork/dir").symlink_to(tmp_path / "outside")
    found = planned(workspace, forked)
    assert found.uncaptured == []
    assert [change.path for change in found.deletes] == [b"dir/in"]


def test_undo_of_a_merge_keeps_what_was_done_to_what_it_made_ignored(
    workspace: Workspace, forked: Workspace, tree: Path
) -> None:
    """I5, I6: no checkpoint holds it meanwhile."""
    ignored(forked, "a", "b")
    workspace.merge(os.fsdecode(forked.path))
    assert workspace.status().clean
    (tree / "a").write_text("worked on, ignored")
    (tree / "b").unlink()
    workspace.undo()
    assert not (tree / ".gitignore").exists()
    assert (tree / "a").read_text() == "worked on, ignored"
