"""Bundles: what goes out comes in again, exactly."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING

import pytest
import zstandard

from holdfast.engine.history.revisions import resolve_name
from holdfast.engine.upkeep._bundle_format import BundleWriter, encode_member
from holdfast.engine.upkeep.bundle_export import export_bundle
from holdfast.engine.upkeep.bundle_import import import_bundle
from holdfast.model.checkpoint import Checkpoint
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import (
    NotFoundError,
    QuotaError,
    RefusedError,
    StorageError,
    UsageError,
)
from holdfast.model.ids import hash_bytes
from holdfast.store.catalog._checkpoint_commit import Committer
from holdfast.store.catalog_records import CheckpointCommit, Cursor
from holdfast.store.codecs.changeset import decode_changeset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from .bundle_home import Home, State, forged, write

LARGE = b"".join(b"%d," % n for n in range(400_000))


def history(source: Home) -> list[Checkpoint]:
    """Three checkpoints in a row and a branch from the second, with large, empty, shared and many files."""
    first: State = {b"dir/%04d.txt" % n: b"content %d\n" % (n % 50) for n in range(700)}
    first |= {b"large.bin": LARGE, b"empty": b"", b"run.sh": b"#!/bin/sh\n"}
    second = first | {b"dir/0007.txt": b"edited\n", b"\xff name": b"bytes"}
    third = {path: data for path, data in second.items() if not path.startswith(b"dir/00")}
    missed = (NotCaptured(b"pipe", "fifo"),)
    points = [source.commit(first, labels=("one", "zwei")), source.commit(second, missed=missed), source.commit(third)]
    points.append(source.commit(second | {b"branch": b"!"}, parent=points[1].id, kind="fork"))
    return points


def test_what_is_exported_is_imported_exactly(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    points = history(source)
    file = os.fsencode(tmp_path / "b.tar.zst")
    assert export_bundle(source.context, [points[2].id, points[3].id], file) == [
        points[0].id,
        points[1].id,
        points[2].id,
        points[3].id,
    ]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    before = target.store.catalog.cursor(target.context.workspace.id)
    assert import_bundle(target.context, file) == [point.id for point in points]
    for point in points:
        assert target.state(point.id) == source.state(point.id)
        taken = target.store.catalog.checkpoint(point.id)
        assert taken.workspace == target.context.workspace.id
        assert taken.kind == "import"
        same = point._replace(kind="import", workspace=taken.workspace)
        assert taken == same._replace(new_blobs=taken.new_blobs, stored_bytes=taken.stored_bytes)
        assert target.store.catalog.not_captured(point.id) == source.store.catalog.not_captured(point.id)
        one, other = target.store.catalog.changeset(point.id), source.store.catalog.changeset(point.id)
        assert (one and decode_changeset(one)) == (other and decode_changeset(other))
    assert target.store.catalog.cursor(target.context.workspace.id) == before == Cursor(None, None, None)


def test_a_label_of_ones_own_goes_before_an_imported_one(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    points = history(source)
    own = target.commit({b"mine": b"1"}, labels=("one",))
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [points[0].id], file)
    import_bundle(target.context, file)
    assert resolve_name(target.context, "one") == own.id
    assert resolve_name(target.context, "zwei") == points[0].id


def test_a_single_checkpoint_brings_its_ancestors_only(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    points = history(source)
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [points[1].id], file)
    import_bundle(target.context, file)
    assert sorted(target.ids()) == sorted([points[0].id, points[1].id])


def test_an_empty_state_is_carried_too(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    point = source.commit({})
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [point.id], file)
    import_bundle(target.context, file)
    assert target.state(point.id) == {}


def test_importing_again_or_more_adds_only_what_is_missing(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    points = history(source)
    part, whole = os.fsencode(tmp_path / "part"), os.fsencode(tmp_path / "whole")
    export_bundle(source.context, [points[0].id], part)
    export_bundle(source.context, [points[2].id, points[3].id], whole)
    import_bundle(target.context, part)
    import_bundle(target.context, part)
    assert target.ids() == [points[0].id]
    import_bundle(target.context, whole)
    assert sorted(target.ids()) == sorted(point.id for point in points)
    assert target.state(points[3].id) == source.state(points[3].id)
    import_bundle(source.context, whole)
    assert source.store.catalog.checkpoint(points[0].id) == points[0]


def test_an_import_that_is_cut_short_is_finished_by_another(
    make_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: after any number of commits the checkpoints that are there are whole, and importing again adds the rest."""
    source, target = make_home("source"), make_home("target")
    points = history(source)
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [points[2].id, points[3].id], file)
    commit = Committer.commit
    for done in range(1, len(points)):
        allowed = [done]

        def dying(committer: Committer, what: CheckpointCommit, allowed: list[int] = allowed) -> Cursor:
            if not allowed:
                raise KeyboardInterrupt
            allowed.pop()
            return commit(committer, what)

        with monkeypatch.context() as patched:
            patched.setattr(Committer, "commit", dying)
            with pytest.raises(KeyboardInterrupt):
                import_bundle(target.context, file)
        assert sorted(target.ids()) == sorted(point.id for point in points[:done])
        assert target.state(points[done - 1].id) == source.state(points[done - 1].id)
        target.assert_sound()
    import_bundle(target.context, file)
    assert sorted(target.ids()) == sorted(point.id for point in points)


def test_a_collection_between_two_commits_takes_nothing_that_is_needed(
    make_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: content stored for a later checkpoint is collected without grace; the import notices and stores it again."""
    source, target = make_home("source"), make_home("target")
    points = history(source)
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [points[2].id, points[3].id], file)
    commit = Committer.commit
    collected: list[int] = []

    def collecting(committer: Committer, what: CheckpointCommit) -> Cursor:
        cursor = commit(committer, what)
        if len(collected) < 2:
            collected.append(target.store.collector().collect(0).blobs_deleted)
        return cursor

    monkeypatch.setattr(Committer, "commit", collecting)
    import_bundle(target.context, file)
    assert collected[0] > 0
    for point in points:
        assert target.state(point.id) == source.state(point.id)


def test_the_same_checkpoints_give_the_same_bytes(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source = make_home("source")
    points = history(source)
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        export_bundle(source.context, [points[3].id], os.fsencode(file))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_any_tar_program_can_list_it(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source = make_home("source")
    file = tmp_path / "b"
    export_bundle(source.context, [history(source)[0].id], os.fsencode(file))
    with tarfile.open(fileobj=io.BytesIO(unpacked(file)), mode="r:") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == [
        "bundle",
        "pages/000000.pack",
        "blobs/000000.pack",
        f"large/{hash_bytes(LARGE).hex()}",
        "end",
    ]
    assert all(member.isreg() and member.mode == 0o600 for member in members)


def test_sizes_beyond_eight_gib_are_written_as_tar_reads_them() -> None:
    block = encode_member(b"large/" + b"0" * 32, 9 << 30)
    assert tarfile.TarInfo.frombuf(block, "ascii", "strict").size == 9 << 30


def test_an_export_that_fails_leaves_the_target_as_it_was(
    make_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_home("source")
    point = history(source)[0]
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_bytes(b"precious")
    with monkeypatch.context() as patched:
        patched.setattr(BundleWriter, "end", _fail)
        with pytest.raises(StorageError, match="No space left"):
            export_bundle(source.context, [point.id], os.fsencode(out / "b"))
    for name in ("precious", "."):
        with pytest.raises(RefusedError, match="exists already"):
            export_bundle(source.context, [point.id], os.fsencode(out / name))
    assert [path.name for path in out.iterdir()] == ["precious"]
    assert (out / "precious").read_bytes() == b"precious"
    with pytest.raises(StorageError):
        export_bundle(source.context, [point.id], os.fsencode(tmp_path / "none" / "b"))
    with pytest.raises(UsageError):
        export_bundle(source.context, [], os.fsencode(out / "b"))
    assert point.id not in source.store.catalog.protections()


def _fail(_writer: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_bundle_over_the_quota_is_refused_before_it_is_read(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    source, target = make_home("source"), make_home("target")
    file = os.fsencode(tmp_path / "b")
    export_bundle(source.context, [history(source)[0].id], file)
    limit = target.context.settings.store._replace(max_bytes=1000)
    target.context.settings = target.context.settings._replace(store=limit)
    with pytest.raises(QuotaError):
        import_bundle(target.context, file)
    assert target.ids() == []


def test_a_missing_file_is_not_found(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        import_bundle(make_home("target").context, os.fsencode(tmp_path / "none"))


def test_an_id_that_stands_for_something_else_is_refused(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    target = make_home("target")
    mine = target.commit({b"a": b"mine"})
    file = write(tmp_path, forged({b"a": b"other"}, identity=mine.id))
    with pytest.raises(RefusedError, match="another checkpoint"):
        import_bundle(target.context, file)
    assert target.state(mine.id) == {b"a": b"mine"}


def unpacked(file: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
