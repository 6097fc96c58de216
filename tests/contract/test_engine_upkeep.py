"""Forgetting, collecting, statistics and bundles over every implementation of the tree port."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.engine.history.restore import restore
from holdfast.engine.history.retention import Policy
from holdfast.engine.opening.context import checkpoint_changes
from holdfast.engine.upkeep.bundle_export import export_bundle
from holdfast.engine.upkeep.bundle_import import import_bundle
from holdfast.engine.upkeep.forget_checkpoints import forget
from holdfast.engine.upkeep.housekeeping import collect, stats, verify
from holdfast.model.errors import RefusedError
from holdfast.model.ids import CheckpointId
from holdfast.store.manifests import manifest

from .engine_house import House, Space, filled


def test_forgetting_composes_what_changed(space: Space) -> None:
    ids: list[CheckpointId] = []
    for number in range(6):
        space.edit.write(b"always", b"%d" % number)
        space.edit.write(b"new%d" % number, b"n")
        if number:
            space.edit.delete(b"new%d" % (number - 1))
        if number == 3:
            space.edit.write(b"always", b"0")
        ids.append(space.save())
    catalog = space.context.catalog
    forget(space.context, [ids[1], ids[3], ids[2]])
    heir = catalog.checkpoint(ids[4])
    assert heir.parent == ids[0]
    expected = manifest.diff(space.context.store.pages, catalog.checkpoint(ids[0]).root, heir.root)
    assert checkpoint_changes(space.context, heir) == expected
    assert heir.changes == (1, 1, 1)
    forget(space.context, [ids[0]])
    heir = catalog.checkpoint(ids[4])
    assert heir.parent is None
    assert heir.changes == (heir.total_files, 0, 0)
    with pytest.raises(RefusedError) as caught:
        forget(space.context, [ids[4], ids[5]])
    assert caught.value.code == "protected"
    assert catalog.checkpoint(ids[4]).id == ids[4], "nothing was removed"


def test_a_policy_can_be_tried_first(space: Space) -> None:
    for number in range(4):
        space.edit.write(b"f", b"%d" % number)
        space.save()
        space.clock.advance(3600)
    tried = forget(space.context, (), policy=Policy(keep_last=2), dry_run=True)
    assert (len(tried.removed), len(tried.kept), tried.dry_run) == (2, 2, True)
    assert len(space.context.catalog.checkpoints()) == 4
    done = forget(space.context, (), policy=Policy(keep_last=2))
    assert done.removed == tried.removed
    assert len(space.context.catalog.checkpoints()) == 2


def test_collection_waits_for_the_grace_time(space: Space) -> None:
    # I11
    space.edit.write(b"f", os.urandom(4000))
    first = space.save()
    space.edit.write(b"f", os.urandom(4000))
    space.save()
    forget(space.context, [first])
    assert collect(space.context).blobs_deleted == 0
    space.clock.advance(space.context.settings.gc.grace - 60)
    assert collect(space.context).blobs_deleted == 0
    space.clock.advance(120)
    assert collect(space.context).bytes_freed >= 4000
    assert stats(space.context).dead_bytes < 1000, "but for the header of the checkpoint, which no row names"
    assert verify(space.context, read_data=True).ok


def test_collection_between_two_saves_takes_nothing_that_comes_back(space: Space) -> None:
    # I11: the tree remembers content that the store has let go.
    content = os.urandom(4000)
    space.edit.write(b"keep", b"k")
    space.edit.write(b"f", content)
    first = space.save()
    space.edit.delete(b"f")
    space.save()
    forget(space.context, [first])
    space.clock.advance(space.context.settings.gc.grace + 60)
    assert collect(space.context).blobs_deleted
    space.edit.write(b"f", content)
    space.save()
    assert verify(space.context, read_data=True).ok
    space.edit.delete(b"f")
    space.undo()
    assert space.state()[b"f"][1] == content


def test_statistics_name_the_largest(space: Space) -> None:
    space.edit.write(b"big/one", os.urandom(9000))
    space.edit.write(b"small", b"s")
    space.save()
    found = stats(space.context)
    assert found.largest[0] == (b"big", 9000)
    assert found.content_bytes == 9001


def test_a_bundle_carries_checkpoints_to_another_tree(house: House, space: Space, tmp_path: Path) -> None:
    first = filled(space)
    then = space.state()
    file = bytes(house.place / "home" / "bundle")
    export_bundle(space.context, [first], file)
    other = House(house.kind, tmp_path / "home" / "elsewhere")
    os.mkdir(other.place)
    there = other.new()
    (taken,) = import_bundle(there.context, file)
    restore(there.context, taken)
    assert there.state() == then
    other.opener.close()


def test_large_files_are_streamed_through_either_tree(space: Space) -> None:
    content = os.urandom(1 << 20) * 3
    space.edit.write(b"large", content + b"1")
    first = space.save()
    space.edit.write(b"large", content + b"2")
    space.save()
    restore(space.context, first)
    assert space.state()[b"large"][1] == content + b"1"
