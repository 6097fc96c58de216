"""Merging by three states: a table of what both sides can do to a file, and what holds for any three trees."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.engine.merging.three_way import (
    CONFLICT_TEXTS,
    Decision,
    MergeConflict,
    SideChanges,
    ThreeWayPlan,
    merged_entry,
    plan,
)
from holdfast.model.command_results import Renamed
from holdfast.model.entries import Change, Entry, file_entry, symlink_entry
from holdfast.model.ids import hash_bytes

Tree = dict[bytes, Entry]


def file(text: str, permissions: int = 0o644) -> Entry:
    return file_entry(hash_bytes(text.encode()), len(text), permissions)


def link(target: str) -> Entry:
    return symlink_entry(hash_bytes(target.encode()), len(target))


def changes(base: Tree, side: Tree) -> list[Change]:
    return [
        Change(path, base.get(path), side.get(path))
        for path in sorted({*base, *side})
        if base.get(path) != side.get(path)
    ]


def side(base: Tree, tree: Tree, *renames: tuple[bytes, bytes]) -> SideChanges:
    """What was done to ``base``; ``renames`` are told apart."""
    renamed = [Renamed(one, other, base[one], tree[other], 100) for one, other in renames]
    hidden = {path for pair in renames for path in pair}
    return SideChanges([one for one in changes(base, tree) if one.path not in hidden], renamed)


def after(tree: Tree, found: ThreeWayPlan) -> Tree:
    out = dict(tree)
    for change in found.changes:
        assert out.get(change.path) == change.before
        if change.after is None:
            del out[change.path]
        else:
            out[change.path] = change.after
    return out


A, B, C = file("a"), file("b"), file("c")
RUN = file("a", 0o755)
PRIVATE = file("a", 0o600)
LINK, OTHER = link("a"), link("b")


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (A, A, B, B),
        (A, B, A, B),
        (A, B, B, B),
        (A, A, None, None),
        (A, None, A, None),
        (A, None, None, None),
        (None, None, A, A),
        (None, A, None, A),
        (None, A, A, A),
        (A, RUN, B, file("b", 0o755)),
        (A, B, RUN, file("b", 0o755)),
        (A, RUN, RUN, RUN),
        (LINK, LINK, A, A),
        (A, LINK, A, LINK),
        (LINK, OTHER, OTHER, OTHER),
        (A, B, C, "content"),
        (LINK, OTHER, link("c"), "content"),
        (A, RUN, PRIVATE, "mode"),
        (A, LINK, B, "type"),
        (A, B, LINK, "type"),
        (LINK, A, OTHER, "type"),
        (None, A, B, "both_added"),
        (None, A, RUN, "both_added"),
        (A, None, B, "deleted_here"),
        (A, B, None, "deleted_there"),
        (A, RUN, None, "deleted_there"),
    ],
)
def test_what_becomes_of_one_file(base: Entry | None, ours: Entry | None, theirs: Entry | None, merged: object) -> None:
    assert merged_entry(base, ours, theirs) == merged

    trees = [{b"f": entry} if entry else {} for entry in (base, ours, theirs)]
    found = plan(side(trees[0], trees[1]), side(trees[0], trees[2]))
    if isinstance(merged, str):
        assert found == ([], [(b"f", b"f", merged)], [])
        assert merged in CONFLICT_TEXTS
    else:
        assert found.conflicts == []
        assert after(trees[1], found).get(b"f") == merged


def renamed(base: Tree, ours: Tree, theirs: Tree, here: list[tuple[bytes, bytes]], there: list[tuple[bytes, bytes]]):
    return plan(side(base, ours, *here), side(base, theirs, *there))


def test_a_change_follows_a_rename_on_the_other_side() -> None:
    for ours in (B, RUN):
        found = renamed({b"a": A}, {b"a": ours}, {b"z": A}, [], [(b"a", b"z")])
        assert after({b"a": ours}, found) == {b"z": ours}
    found = renamed({b"a": A}, {b"z": A}, {b"a": B}, [(b"a", b"z")], [])
    assert after({b"z": A}, found) == {b"z": B}
    assert found.conflicts == []


def test_a_rename_that_also_changes_permissions_takes_the_others_content() -> None:
    found = renamed({b"a": A}, {b"a": B}, {b"z": RUN}, [], [(b"a", b"z")])
    assert after({b"a": B}, found) == {b"z": file("b", 0o755)}


def test_both_renaming_a_file_alike_agree() -> None:
    found = renamed({b"a": A}, {b"z": B}, {b"z": RUN}, [(b"a", b"z")], [(b"a", b"z")])
    assert after({b"z": B}, found) == {b"z": file("b", 0o755)}


@pytest.mark.parametrize(
    ("ours", "theirs", "here", "there", "conflict"),
    [
        ({b"y": A}, {b"z": A}, [(b"a", b"y")], [(b"a", b"z")], MergeConflict(b"y", b"z", "renamed_apart")),
        ({}, {b"z": A}, [], [(b"a", b"z")], MergeConflict(b"a", b"z", "deleted_here")),
        ({b"y": A}, {}, [(b"a", b"y")], [], MergeConflict(b"y", b"a", "deleted_there")),
        ({b"a": B}, {b"z": C}, [], [(b"a", b"z")], MergeConflict(b"a", b"z", "content")),
        ({b"y": B}, {b"a": C}, [(b"a", b"y")], [], MergeConflict(b"y", b"a", "content")),
        ({b"z": B}, {b"z": C}, [(b"a", b"z")], [(b"a", b"z")], MergeConflict(b"z", b"z", "content")),
    ],
)
def test_renames_that_cannot_be_brought_together(
    ours: Tree,
    theirs: Tree,
    here: list[tuple[bytes, bytes]],
    there: list[tuple[bytes, bytes]],
    conflict: MergeConflict,
) -> None:
    base = {b"a": A}
    assert renamed(base, ours, theirs, here, there) == ([], [conflict], [])
    by_side = {"ours": ours, "theirs": theirs}
    for which, wanted in by_side.items():
        settled = {conflict.merged_path(b"a"): Decision(which)}  # type: ignore[arg-type]
        found = plan(side(base, ours, *here), side(base, theirs, *there), settled=settled)
        assert found.conflicts == []
        assert found.settled == [conflict]
        assert after(ours, found) == wanted


def test_a_name_that_both_have_taken_is_a_conflict_of_its_own() -> None:
    found = renamed({b"a": A}, {b"a": B, b"z": C}, {b"z": A}, [], [(b"a", b"z")])
    assert found == ([], [(b"a", b"a", "deleted_there"), (b"z", b"z", "both_added")], [])


def test_a_file_in_the_place_of_a_directory() -> None:
    base = {b"d/x": A}
    found = plan(side(base, {b"d/x": A, b"d/y": B}), side(base, {b"d": C}))
    assert found.conflicts == [MergeConflict(b"d/y", b"d", "in_the_way")]
    found = plan(side({}, {b"d": A}), side({}, {b"d/x": B, b"e": C}))
    assert found.conflicts == [MergeConflict(b"d", b"d/x", "in_the_way")]
    assert found.changes == [Change(b"e", None, C)]


def test_a_file_turned_directory_on_one_side_alone_is_taken() -> None:
    base = {b"d": A, b"f": A}
    found = plan(side(base, {b"d": A, b"f": B}), side(base, {b"d/x": A, b"f": A}))
    assert after({b"d": A, b"f": B}, found) == {b"d/x": A, b"f": B}


def test_a_change_there_to_a_file_renamed_into_a_directory_that_is_a_file_here_stays_ours() -> None:
    """A followed rename that has no place to go must not take the file away."""
    base = {b"a": A}
    found = renamed(base, {b"a": B, b"d": C}, {b"d/z": A}, [], [(b"a", b"d/z")])
    assert found.conflicts == [MergeConflict(b"d", b"d/z", "in_the_way")]


ENTRIES = st.sampled_from([A, B, C, RUN, LINK])
PATHS = st.sampled_from([b"a", b"b", b"c", b"d/a", b"d/b", b"d", b"e/f/g", b"e/f", b"e"])


def is_tree(tree: Tree) -> bool:
    """No file is where there is a directory."""
    return not any(other.startswith(path + b"/") for path in tree for other in tree)


def without_files_above(tree: Tree) -> Tree:
    """``tree``, without what would have a file for a directory."""
    return {path: entry for path, entry in tree.items() if not any(path.startswith(other + b"/") for other in tree)}


TREES = st.dictionaries(PATHS, ENTRIES, max_size=7).map(without_files_above)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES, TREES, TREES)
def test_any_three_trees(base: Tree, ours: Tree, theirs: Tree) -> None:
    found = plan(side(base, ours), side(base, theirs))
    merged = after(ours, found)
    assert is_tree(merged)
    in_conflict = {path for one in found.conflicts for path in (one.path, one.there)}
    for path in {*base, *ours, *theirs} - in_conflict:
        b, o, t = base.get(path), ours.get(path), theirs.get(path)
        if t == b:
            assert merged.get(path) == o
        elif o == b:
            assert merged.get(path) == t
        else:
            assert merged.get(path) == merged_entry(b, o, t)
    mirrored = plan(side(base, theirs), side(base, ours))
    assert {frozenset((one.path, one.there)) for one in mirrored.conflicts if one.why != "in_the_way"} == {
        frozenset((one.path, one.there)) for one in found.conflicts if one.why != "in_the_way"
    }
    if not found.conflicts:
        assert after(theirs, mirrored) == merged


@settings(deadline=None)
@given(TREES, TREES)
def test_who_has_done_nothing_takes_all(base: Tree, other: Tree) -> None:
    nothing, something = side(base, base), side(base, other)
    assert after(base, plan(nothing, something)) == other
    assert plan(something, nothing) == ([], [], [])
    assert plan(something, something) == ([], [], [])


@settings(deadline=None)
@given(TREES, TREES, TREES)
def test_preferring_a_side_leaves_no_conflict_but_directories(base: Tree, ours: Tree, theirs: Tree) -> None:
    plain = plan(side(base, ours), side(base, theirs))
    for which in ("ours", "theirs"):
        found = plan(side(base, ours), side(base, theirs), settled=dict.fromkeys(base | ours | theirs, Decision(which)))
        assert {one.why for one in found.conflicts} <= {"in_the_way"}
        by_side = ours if which == "ours" else theirs
        assert is_tree(after(ours, found))
        for one in found.settled:
            if not any(one.there in (clash.path, clash.there) for clash in found.conflicts):
                assert after(ours, found).get(one.path) == by_side.get(one.path)
        assert len(found.settled) >= len([one for one in plain.conflicts if one.why != "in_the_way"]) or found.conflicts


def test_nothing_takes_the_place_of_what_the_other_side_has_put_under_a_new_name() -> None:
    """A rename onto a name at which the other side has a file of its own is no rename: each path is for itself."""
    old, mine = file_entry(hash_bytes(b"old"), 3, 0o644), file_entry(hash_bytes(b"mine"), 4, 0o644)
    renamed = SideChanges([], [Renamed(b"a", b"b", old, old, 100)])
    other = SideChanges([Change(b"a", old, None), Change(b"b", None, mine)])
    for one, two in ((other, renamed), (renamed, other)):
        found = plan(one, two)
        assert found == ThreeWayPlan([], [MergeConflict(b"b", b"b", "both_added")], [])
