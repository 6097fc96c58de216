"""Bundles: what goes out comes in again, exactly; what is hostile, damaged or cut short takes nothing in."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING, Any, cast

import pytest
import zstandard

from holdfast.engine import bundle_check
from holdfast.engine.bundle_export import export_bundle
from holdfast.engine.bundle_format import END_MAGIC, BundleReader, BundleWriter, encode_member
from holdfast.engine.bundle_head import Head, Record, decode_head, encode_head
from holdfast.engine.bundle_import import import_bundle
from holdfast.engine.context import Context
from holdfast.model.checkpoint import Checkpoint, Kind, Provenance
from holdfast.model.clock import SystemClock
from holdfast.model.config import Settings
from holdfast.model.entries import Counts, Entry, NotCaptured, count_changes, file_entry, symlink_entry
from holdfast.model.errors import (
    FormatError,
    HoldfastError,
    IntegrityError,
    NotFoundError,
    QuotaError,
    RefusedError,
    StorageError,
    UsageError,
)
from holdfast.model.ids import CheckpointId, Hash, hash_bytes, new_checkpoint_id, new_pack_id, new_workspace_id
from holdfast.store import manifest
from holdfast.store.blobs import write_pages
from holdfast.store.catalog import Catalog
from holdfast.store.changeset import decode_changeset, encode_changeset
from holdfast.store.codec import Encoded
from holdfast.store.commits import Committer
from holdfast.store.database import SqliteDatabase
from holdfast.store.open_objects import open_objects
from holdfast.store.pack import encode_pack
from holdfast.store.pages import EMPTY_PAGE, EMPTY_ROOT, Child, encode_inner, encode_leaf
from holdfast.store.records import CheckpointCommit, Cursor, HistoryEvent, Workspace, pages_key
from holdfast.store.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

State = dict[bytes, bytes]
LARGE = b"".join(b"%d," % n for n in range(400_000))


class Home:
    """A store with one workspace, into which states are committed without a tree on disk."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        folder.mkdir()
        database = SqliteDatabase(
            os.fsencode(folder / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID, timeout=5.0
        )
        objects = open_objects(os.fsencode(folder / "objects"), random=os.urandom)
        self.store = Store(objects, Catalog(database, "local", self.clock))
        workspace = Workspace(new_workspace_id(os.urandom), b"/w", 1, 2, self.clock.now(), None, live=True)
        self.store.catalog.add_workspace(workspace)
        self.context = Context(
            workspace=workspace,
            make_tree=lambda: cast("Any", None),
            store=self.store,
            settings=Settings(),
            folder=os.fsencode(folder),
            clock=self.clock,
            random=os.urandom,
        )

    def commit(
        self,
        state: State,
        *,
        parent: CheckpointId | None = None,
        label: str = "",
        kind: Kind = "manual",
        missed: tuple[NotCaptured, ...] = (),
    ) -> Checkpoint:
        catalog = self.store.catalog
        cursor = catalog.cursor(self.context.workspace.id)
        above = cursor.head if parent is None else parent
        writer = self.store.writer()
        entries: dict[bytes, Entry] = {}
        for path, data in sorted(state.items()):
            size = len(data)
            entries[path] = file_entry(writer.add_stream([data])[0], size, 0o755 if path.endswith(b".sh") else 0o644)
        written = writer.finish()
        built = manifest.build(iter(entries.items()))
        identity = new_checkpoint_id(os.urandom)
        shared = catalog.known(built.new_pages, pages=True)
        fresh = [(name, data, None) for name, data in built.new_pages.items() if name not in shared]
        key = pages_key(catalog.name, identity)
        pages = write_pages(self.store.objects, key, new_pack_id(os.urandom), fresh, self.store.reader.read_bases)
        before = None if above is None else catalog.checkpoint(above).root
        overlay = self.store.pages_with(built.new_pages)
        changes = None if before is None else manifest.diff(overlay, before, built.root)
        point = Checkpoint(
            id=identity,
            workspace=self.context.workspace.id,
            parent=above,
            root=built.root,
            kind=kind,
            label=label,
            created_at=self.clock.now(),
            changes=Counts(added=len(entries)) if changes is None else count_changes(changes),
            total_files=built.files,
            total_bytes=built.bytes,
            new_blobs=len(written.blobs),
            stored_bytes=written.stored_bytes + pages.stored_bytes,
            not_captured=len(missed),
            provenance=Provenance("somebody", "a reason", "make"),
        )
        catalog.commit(
            CheckpointCommit(
                checkpoint=point,
                changeset=None if changes is None else encode_changeset(changes),
                not_captured=missed,
                packs=[*written.packs, *pages.packs],
                blobs=[*written.blobs, *pages.blobs],
                relied_on=written.relied_on | shared,
                expected=cursor,
                event=HistoryEvent(0, point.created_at, "checkpoint", identity, cursor.position),
            )
        )
        return point

    def state(self, checkpoint: CheckpointId) -> State:
        root = self.store.catalog.checkpoint(checkpoint).root
        listed = list(manifest.iterate(self.store.pages, root))
        contents = self.store.reader.fetch([entry for _, entry in listed])
        return {
            path: content if isinstance(content, bytes) else b"".join(content)
            for (path, _), content in zip(listed, contents, strict=True)
        }

    def ids(self) -> list[CheckpointId]:
        return [checkpoint.id for checkpoint in self.store.catalog.checkpoints()]

    def assert_sound(self) -> None:
        found = self.store.verifier().verify(read_data=True)
        assert not found.problems, found.problems


@pytest.fixture
def make_home(tmp_path: Path) -> Iterator[Callable[[str], Home]]:
    homes: list[Home] = []

    def make(name: str) -> Home:
        homes.append(Home(tmp_path / name))
        return homes[-1]

    yield make
    for one in homes:
        one.assert_sound()
        one.store.close()


def history(source: Home) -> list[Checkpoint]:
    """Three checkpoints in a row and a branch from the second, with large, empty, shared and many files."""
    first: State = {b"dir/%04d.txt" % n: b"content %d\n" % (n % 50) for n in range(700)}
    first |= {b"large.bin": LARGE, b"empty": b"", b"run.sh": b"#!/bin/sh\n"}
    second = first | {b"dir/0007.txt": b"edited\n", b"\xff name": b"bytes"}
    third = {path: data for path, data in second.items() if not path.startswith(b"dir/00")}
    missed = (NotCaptured(b"pipe", "fifo"),)
    points = [source.commit(first, label="one"), source.commit(second, missed=missed), source.commit(third)]
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
        with pytest.raises(RefusedError, match="is there already"):
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


# -- hostile bundles ------------------------------------------------------------------------------------------------

ID = CheckpointId("0123456789abcdef01234567")
Member = tuple[bytes, bytes]


def unpacked(file: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())


def write(folder: Path, members: list[Member], *, tail: bytes = b"", end: bool = True) -> bytes:
    """A bundle of these members with a right end."""
    summed = b"".join(name + b"\0" + len(data).to_bytes(8, "little") + data for name, data in members)
    if end:
        members = [*members, (b"end", END_MAGIC + hash_bytes(summed))]
    tar = b"".join(encode_member(name, len(data)) + data + bytes(-len(data) % 512) for name, data in members)
    file = folder / "hostile"
    file.write_bytes(zstandard.ZstdCompressor().compress(tar + bytes(1024)) + tail)
    return os.fsencode(file)


def pack(*contents: bytes) -> bytes:
    return encode_pack([(hash_bytes(data), len(data), Encoded(0, data), None) for data in contents])


def record(root: Hash, identity: str = ID, parent: str | None = None, **fields: Any) -> Record:
    return Record(identity, parent, root, "manual", "", 1, "", "", "", [])._replace(**fields)


def head(records: list[Record], pages: list[bytes], contents: list[bytes]) -> Member:
    sizes = (len(pages), sum(map(len, pages)), len(contents), sum(map(len, contents)))
    return b"bundle", encode_head(Head(records, [records[-1].id], *sizes))


def small(records: list[Record], pages: list[bytes], contents: list[bytes]) -> list[Member]:
    members = [head(records, pages, contents), (b"pages/000000.pack", pack(*pages))]
    return [*members, (b"blobs/000000.pack", pack(*contents))] if contents else members


def leaf(**files: bytes) -> bytes:
    entries = {path.encode(): file_entry(hash_bytes(data), len(data), 0o644) for path, data in files.items()}
    return encode_leaf(list(entries), list(entries.values()))


def forged(state: State, identity: str = ID) -> list[Member]:
    page = leaf(**{path.decode(): data for path, data in state.items()})
    return small([record(hash_bytes(page), identity)], [page], list(state.values()))


A = leaf(a=b"1")
ROOT = hash_bytes(A)


def raw_leaf(*paths: bytes, mode: int = 0o100644) -> bytes:
    """A page as nobody should write it: `encode_leaf` without what it refuses."""
    import msgspec

    count = len(paths)
    prefix = paths[0] if count > 1 and paths[1].startswith(paths[0]) else b""
    rest = b"\0".join(path[len(prefix) :] for path in paths)
    columns = (0, prefix, rest, hash_bytes(b"1") * count, [1] * count, [mode, count])
    return b"HFP\x01" + msgspec.msgpack.encode(columns)


def inner(*children: tuple[bytes, bytes, int, int]) -> bytes:
    """An inner page over encoded leaves: key, page, files, bytes."""
    return encode_inner(1, [key for key, *_ in children], [Child(hash_bytes(p), n, s) for _, p, n, s in children])


def split_tree() -> tuple[bytes, bytes, bytes]:
    """Two leaves that should be one."""
    one, other = leaf(a=b"1"), leaf(b=b"1")
    return one, other, inner((b"a", one, 1, 1), (b"b", other, 1, 1))


B, B2, SPLIT = split_tree()
FILE_ABOVE = leaf(a=b"1")
FILE_BELOW = leaf(**{"a/b": b"1"})
LONG = b"x" * ((1 << 20) + 1)
LONG_PAGE = encode_leaf([b"l"], [file_entry(hash_bytes(LONG), len(LONG), 0o644)])

HOSTILE: dict[str, list[Member]] = {
    "dot dot": small([record(hash_bytes(raw_leaf(b"../a")))], [raw_leaf(b"../a")], [b"1"]),
    "absolute": small([record(hash_bytes(raw_leaf(b"/etc/x")))], [raw_leaf(b"/etc/x")], [b"1"]),
    "inside .git": small([record(hash_bytes(raw_leaf(b".git/config")))], [raw_leaf(b".git/config")], [b"1"]),
    "empty part": small([record(hash_bytes(raw_leaf(b"a//b")))], [raw_leaf(b"a//b")], [b"1"]),
    "path twice": small([record(hash_bytes(raw_leaf(b"a", b"a")))], [raw_leaf(b"a", b"a")], [b"1"]),
    "file and directory": small([record(hash_bytes(raw_leaf(b"a", b"a/b")))], [raw_leaf(b"a", b"a/b")], [b"1"]),
    "device": small([record(hash_bytes(raw_leaf(b"a", mode=0o060644)))], [raw_leaf(b"a", mode=0o060644)], [b"1"]),
    "setuid": small([record(hash_bytes(raw_leaf(b"a", mode=0o104755)))], [raw_leaf(b"a", mode=0o104755)], [b"1"]),
    "not a page": small([record(hash_bytes(b"page"))], [b"page"], []),
    "root missing": small([record(hash_bytes(b"?"))], [A], [b"1"]),
    "page missing": small([record(hash_bytes(SPLIT))], [B, SPLIT], [b"1"]),
    "parent page first": small([record(hash_bytes(SPLIT))], [SPLIT, B, B2], [b"1"]),
    "cut elsewhere": small([record(hash_bytes(SPLIT))], [B, B2, SPLIT], [b"1"]),
    "cut elsewhere, below a sound parent": small(
        [record(ROOT, "f" * 24), record(hash_bytes(SPLIT), ID, "f" * 24)], [B, B2, SPLIT], [b"1"]
    ),
    "file and directory in two pages": small(
        [record(hash_bytes(inner((b"a", FILE_ABOVE, 1, 1), (b"a/b", FILE_BELOW, 1, 1))))],
        [FILE_ABOVE, FILE_BELOW, inner((b"a", FILE_ABOVE, 1, 1), (b"a/b", FILE_BELOW, 1, 1))],
        [b"1"],
    ),
    "false totals": small([record(hash_bytes(inner((b"a", A, 9, 1))))], [A, inner((b"a", A, 9, 1))], [b"1"]),
    "false key": small([record(hash_bytes(inner((b"0", A, 1, 1))))], [A, inner((b"0", A, 1, 1))], [b"1"]),
    "the same page twice below one": small(
        [record(hash_bytes(inner((b"a", A, 1, 1), (b"b", A, 1, 1))))],
        [A, inner((b"a", A, 1, 1), (b"b", A, 1, 1))],
        [b"1"],
    ),
    "page nobody needs": small([record(ROOT)], [A, leaf(z=b"1")], [b"1"]),
    "page in two packs": [
        head([record(ROOT)], [A, A], [b"1"]),
        (b"pages/000000.pack", pack(A)),
        (b"pages/000001.pack", pack(A)),
        (b"blobs/000000.pack", pack(b"1")),
    ],
    "content missing": small([record(ROOT)], [A], []),
    "content nobody needs": small([record(ROOT)], [A], [b"1", b"2"]),
    "content in two packs": [
        *small([record(ROOT)], [A], [b"1", b"1"])[:2],
        (b"blobs/000000.pack", pack(b"1")),
        (b"blobs/000001.pack", pack(b"1")),
    ],
    "content of another hash": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"blobs/000000.pack", encode_pack([(hash_bytes(b"1"), 1, Encoded(0, b"2"), None)])),
    ],
    "content of another size": small(
        [record(hash_bytes(encode_leaf([b"a"], [Entry(hash_bytes(b"1"), 7, 0o100644)])))],
        [encode_leaf([b"a"], [Entry(hash_bytes(b"1"), 7, 0o100644)])],
        [b"1"],
    ),
    "two sizes of one content": small(
        [record(ROOT), record(hash_bytes(encode_leaf([b"b"], [Entry(hash_bytes(b"1"), 7, 0o100644)])), "e" * 24)],
        [A, encode_leaf([b"b"], [Entry(hash_bytes(b"1"), 7, 0o100644)])],
        [b"1"],
    ),
    "a delta": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"blobs/000000.pack", encode_pack([(hash_bytes(b"1"), 40, Encoded(3, b"x"), hash_bytes(b"base"))])),
    ],
    "large content of another hash": [
        *small([record(hash_bytes(LONG_PAGE))], [LONG_PAGE], [LONG])[:2],
        (b"large/" + hash_bytes(LONG).hex().encode(), LONG[:-1] + b"y"),
    ],
    "large content that is small": [
        *small([record(ROOT)], [A], [b"1"])[:2],
        (b"large/" + hash_bytes(b"1").hex().encode(), b"1"),
    ],
    "more than the head says": [
        head([record(ROOT)], [A], []),
        *small([record(ROOT)], [A], [b"1"])[1:],
    ],
    "less than the head says": [
        head([record(ROOT)], [A], [b"1", b"2"]),
        *small([record(ROOT)], [A], [b"1"])[1:],
    ],
    "another member": [*forged({b"a": b"1"}), (b"etc/passwd", b"x")],
    "a name with dots": [*forged({b"a": b"1"})[:2], (b"../../blobs/000000.pack", pack(b"1"))],
    "members out of order": [*forged({b"a": b"1"})[:1], *forged({b"a": b"1"})[:0:-1]],
    "a number left out": [*forged({b"a": b"1"})[:2], (b"blobs/000001.pack", pack(b"1"))],
    "two heads": [forged({b"a": b"1"})[0], *forged({b"a": b"1"})],
    "no head": forged({b"a": b"1"})[1:],
    "a pack that is none": [*forged({b"a": b"1"})[:2], (b"blobs/000000.pack", b"pack")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_bundle_takes_nothing_in(
    members: list[Member], make_home: Callable[[str], Home], tmp_path: Path
) -> None:
    """Case 8; I7, I12: refused with a typed error; nothing is in the catalog, nothing lies about."""
    target = make_home("target")
    listed = sorted(os.listdir(tmp_path))
    with pytest.raises((FormatError, IntegrityError)):
        import_bundle(target.context, write(tmp_path, members))
    assert target.ids() == []
    assert sorted(os.listdir(tmp_path)) == sorted([*listed, "hostile"])


def test_the_forgeries_differ_from_good_bundles_only_in_what_they_forge(
    make_home: Callable[[str], Home], tmp_path: Path
) -> None:
    """The same helpers make a bundle that is taken in, so the tests above fail for the reason they name."""
    target = make_home("target")
    state = {b"a": b"1", b"b/c": b"2"}
    import_bundle(target.context, write(tmp_path, forged(state)))
    assert target.state(ID) == state
    large = [*small([record(hash_bytes(LONG_PAGE), "a" * 24)], [LONG_PAGE], [LONG])[:2]]
    import_bundle(target.context, write(tmp_path, [*large, (b"large/" + hash_bytes(LONG).hex().encode(), LONG)]))
    link = encode_leaf([b"link"], [symlink_entry(hash_bytes(b"/etc"), 4)])
    import_bundle(target.context, write(tmp_path, small([record(hash_bytes(link), "b" * 24)], [link], [b"/etc"])))
    empty = small([record(EMPTY_ROOT, "c" * 24)], [EMPTY_PAGE], [])
    import_bundle(target.context, write(tmp_path, empty))
    assert len(target.ids()) == 4


def test_a_link_and_a_path_through_it_cannot_be_said(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    """I7: the strict decoder refuses a file below a link, in one page as in two."""
    one = encode_leaf([b"l"], [symlink_entry(hash_bytes(b"1"), 1)])
    two = encode_leaf([b"l/x"], [file_entry(hash_bytes(b"1"), 1, 0o644)])
    top = inner((b"l", one, 1, 1), (b"l/x", two, 1, 1))
    with pytest.raises(FormatError):
        import_bundle(
            make_home("target").context, write(tmp_path, small([record(hash_bytes(top))], [one, two, top], [b"1"]))
        )


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(ROOT, "xyz")],
        [record(ROOT, "A" * 24)],
        [record(ROOT), record(ROOT)],
        [record(ROOT, ID, ID)],
        [record(ROOT, ID, "f" * 24)],
        [record(ROOT, ID, "f" * 24), record(ROOT, "f" * 24, ID)],
        [record(Hash(b"short"))],
        [record(ROOT, kind="other")],
        [record(ROOT, created_at=-1)],
        [record(ROOT, created_at=1 << 60)],
        [record(ROOT, label="x" * 201)],
        [record(ROOT, message="x" * 70_000)],
        [record(ROOT, not_captured=[(b"", "reason")])],
        [record(ROOT, not_captured=[(b"a\0b", "reason")])],
    ],
)
def test_a_head_that_cannot_be_is_refused(records: list[Record]) -> None:
    with pytest.raises(FormatError, match="bundle head"):
        decode_head(encode_head(Head(records, [ID], 1, 1, 1, 1)))


@pytest.mark.parametrize("wanted", [[], ["f" * 24], [ID, ID]])
def test_wanted_checkpoints_must_be_there(wanted: list[str]) -> None:
    with pytest.raises(FormatError, match="wanted"):
        decode_head(encode_head(Head([record(ROOT)], wanted, 1, 1, 1, 1)))


def test_a_head_of_another_version_or_checksum_is_refused() -> None:
    good = encode_head(Head([record(ROOT)], [ID], 1, 1, 1, 1))
    assert decode_head(good).wanted == [ID]
    with pytest.raises(FormatError, match="'version': 2"):
        decode_head(good[:8] + b"\x02\0" + good[10:])
    with pytest.raises(FormatError, match="'magic'"):
        decode_head(b"X" + good[1:])
    with pytest.raises(IntegrityError, match="'checksum'"):
        decode_head(good[:-1] + bytes((good[-1] ^ 1,)))


def test_every_cut_and_what_follows_the_end_is_noticed(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    target = make_home("target")
    members = forged({b"a": b"1", b"b": b"22"})
    for failing in (
        write(tmp_path, members, end=False),
        write(tmp_path, members, tail=b"junk"),
        write(tmp_path, members, tail=zstandard.ZstdCompressor().compress(b"more")),
        write(tmp_path, [*members, (b"end", END_MAGIC + hash_bytes(b"?"))], end=False),
    ):
        with pytest.raises((FormatError, IntegrityError)):
            import_bundle(target.context, failing)
    file = tmp_path / "hostile"
    write(tmp_path, members)
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises((FormatError, IntegrityError)):
            import_bundle(target.context, os.fsencode(file))
    assert target.ids() == []


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"5", b"6", b"x", b"g", b"L", b"S"])
def test_members_that_are_no_plain_files_are_refused(kind: bytes, tmp_path: Path) -> None:
    """Links, devices, directories, fifos and every extension header."""
    block = bytearray(encode_member(b"bundle", 0))
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    reader = BundleReader(io.BytesIO(zstandard.ZstdCompressor().compress(bytes(block) + bytes(1024))))
    with pytest.raises(FormatError, match="no plain file"):
        reader.head()


def test_a_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    """I12: neither a member that claims a huge size nor a window of gigabytes makes the reader allocate them."""
    compressed = zstandard.ZstdCompressor().compress(encode_member(b"bundle", 8 << 40) + bytes(1 << 20))
    with pytest.raises(FormatError, match="right size"):
        BundleReader(io.BytesIO(compressed)).head()
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    huge = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(IntegrityError):
        BundleReader(io.BytesIO(huge.compress(bytes(1000)) + huge.flush())).head()


def test_what_would_take_hours_to_check_is_refused(
    make_home: Callable[[str], Home], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_check, "MAX_CHECKED", 3)
    with pytest.raises(FormatError, match="more than 3 entries"):
        import_bundle(
            make_home("target").context, write(tmp_path, forged({b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}))
        )


def test_every_error_is_one_of_ours(make_home: Callable[[str], Home], tmp_path: Path) -> None:
    target = make_home("target")
    file = tmp_path / "hostile"
    for data in (b"", b"\x28\xb5\x2f\xfd", os.urandom(5000), b"\0" * 5000):
        file.write_bytes(data)
        with pytest.raises(HoldfastError):
            import_bundle(target.context, os.fsencode(file))
