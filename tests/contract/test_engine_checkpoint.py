"""Checkpoints, status and diffs over every implementation of the tree port."""

from __future__ import annotations

import stat

import pytest

from holdfast.engine.diffs.patch_text import patch
from holdfast.engine.diffs.tree_diff import DiffContents, diff
from holdfast.engine.history.checkpoint import create_checkpoint
from holdfast.engine.history.restore import restore
from holdfast.engine.history.status import status
from holdfast.engine.opening.context import checkpoint_changes
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import RefusedError, UsageError
from holdfast.model.ids import CheckpointId

from .engine_house import Space, filled

FILE = stat.S_IFREG | 0o644


def test_nothing_changed_is_no_new_checkpoint(space: Space) -> None:
    first = filled(space)
    again = create_checkpoint(space.context, CheckpointRequest())
    assert not again.created
    assert again.checkpoint.id == first
    assert [checkpoint.id for checkpoint in space.context.catalog.checkpoints()] == [first]


def test_a_label_then_names_the_existing_one(space: Space) -> None:
    space.edit.write(b"f", b"1")
    first = create_checkpoint(space.context, CheckpointRequest(kind="auto", label="auto-2026"))
    named = create_checkpoint(space.context, CheckpointRequest(label="mine"))
    assert (named.created, named.checkpoint.id) == (False, first.checkpoint.id)
    assert (named.checkpoint.label, named.checkpoint.kind) == ("mine", "manual")
    for _ in range(2):
        other = create_checkpoint(space.context, CheckpointRequest(label="other"))
        assert (other.created, other.checkpoint.labels, other.labelled) == (False, ("mine", "other"), True)
    later = create_checkpoint(space.context, CheckpointRequest(kind="auto", label="auto-later"))
    assert (later.checkpoint.labels, later.labelled) == (("mine", "other"), False)


def test_what_is_saved_by_hand_as_well_is_kept_with_what_is_said_of_it(space: Space) -> None:
    space.edit.write(b"f", b"1")
    create_checkpoint(space.context, CheckpointRequest(kind="auto", label="auto-2026"))
    mine = create_checkpoint(space.context, CheckpointRequest(provenance=Provenance("ada", "why"))).checkpoint
    assert (mine.kind, mine.label, mine.provenance) == ("manual", "", Provenance("ada", "why"))
    more = create_checkpoint(
        space.context, CheckpointRequest(label="done", provenance=Provenance("bob", "other", "make"))
    ).checkpoint
    assert (more.id, more.label, more.provenance) == (mine.id, "done", Provenance("ada", "why", "make"))
    assert create_checkpoint(space.context, CheckpointRequest()).checkpoint == more


def test_a_label_that_nobody_may_use_saves_nothing(space: Space) -> None:
    space.edit.write(b"f", b"1")
    with pytest.raises(UsageError):
        create_checkpoint(space.context, CheckpointRequest(label="@"))
    assert space.head() is None
    assert space.tree.calls == []


def test_an_empty_tree_is_a_state(space: Space) -> None:
    first = space.save()
    assert space.context.catalog.checkpoint(first).total_files == 0
    space.edit.write(b"f", b"1")
    space.save()
    space.undo()
    assert space.state() == {}
    assert space.head() == first


def test_a_checkpoint_keeps_who_and_why_and_what_changed(space: Space) -> None:
    filled(space)
    space.edit.write(b"keep", b"k2\n")
    space.edit.delete(b"d/e/deep")
    space.edit.write(b"new", b"n")
    why = Provenance("ada", "because", "make all")
    result = create_checkpoint(space.context, CheckpointRequest(kind="run", provenance=why))
    checkpoint = space.context.catalog.checkpoint(result.checkpoint.id)
    assert (checkpoint.kind, checkpoint.provenance) == ("run", why)
    assert checkpoint.changes == (1, 1, 1)
    assert [(change.path, change.status) for change in checkpoint_changes(space.context, checkpoint)] == [
        (b"d/e/deep", "D"),
        (b"keep", "M"),
        (b"new", "A"),
    ]


def test_what_cannot_be_captured_is_recorded_and_shown(space: Space) -> None:
    space.edit.write(b"f", b"1")
    space.edit.special(b"d/strange")
    result = create_checkpoint(space.context, CheckpointRequest())
    assert [path for path, _ in result.not_captured] == [b"d/strange"]
    assert space.context.catalog.not_captured(result.checkpoint.id) == list(result.not_captured)
    assert result.checkpoint.not_captured == 1
    assert list(status(space.context, watching=False).not_captured) == list(result.not_captured)


def test_status_changes_nothing(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2")
    space.edit.delete(b"link")
    found = status(space.context, watching=False)
    assert [(change.path, change.status) for change in found.changes] == [(b"keep", "M"), (b"link", "D")]
    assert not found.clean
    assert space.head() == first
    assert len(space.context.catalog.events(space.context.workspace.id)) == 1


def test_only_permissions_changed(space: Space) -> None:
    first = filled(space)
    space.edit.chmod(b"keep", 0o700)
    second = space.save()
    assert space.context.catalog.checkpoint(second).changes == (0, 1, 0)
    assert space.context.catalog.checkpoint(second).new_blobs == 0
    restore(space.context, first)
    assert space.state()[b"keep"] == (FILE, b"k\n")
    space.undo()
    assert space.state()[b"keep"] == (stat.S_IFREG | 0o700, b"k\n")


# --- diff


def text(space: Space, base: CheckpointId | None, target: CheckpointId | None, *paths: bytes) -> bytes:
    found = diff(space.context, base, target, paths=paths)
    return b"".join(patch(found, DiffContents(space.context, found).fetch))


def test_diff_of_two_checkpoints_and_of_the_tree_is_the_same(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"k\nmore\n")
    space.edit.delete(b"link")
    space.edit.write(b"new", b"n\n")
    lines = text(space, first, None)
    assert b"\n+more\n" in lines
    assert b"\n+n\n" in lines
    assert b"\n-d/run\n" in lines
    second = space.save()
    assert text(space, first, second) == lines
    assert text(space, second, None) == b""
    assert b"+more" not in text(space, first, second, b"new")


def test_diff_finds_a_moved_file_in_the_tree(space: Space) -> None:
    content = b"".join(b"line %d\n" % number for number in range(50))
    space.edit.write(b"old/name", content)
    first = space.save()
    space.edit.delete(b"old/name")
    space.edit.write(b"new/name", content + b"one more\n")
    (renamed,) = diff(space.context, first, None).renamed
    assert (renamed.before_path, renamed.path) == (b"old/name", b"new/name")
    assert b"+one more\n" in text(space, first, None)


def test_a_file_that_changes_under_a_diff_is_said(space: Space) -> None:
    first = filled(space)
    space.edit.write(b"keep", b"2\n")
    found = diff(space.context, first, None)
    space.edit.write(b"keep", b"33\n")
    with pytest.raises(RefusedError, match="changed while"):
        list(patch(found, DiffContents(space.context, found).fetch))
