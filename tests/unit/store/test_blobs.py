"""Blobs from content to object store and back: every kind of content, shared, changed, damaged, moved, cut off."""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.entries import file_entry
from holdfast.model.errors import IntegrityError, StorageError
from holdfast.model.ids import CheckpointId, Hash, hash_bytes, new_pack_id
from holdfast.store.blobs.content_reader import BlobReader
from holdfast.store.blobs.content_writer import BlobWriter, WrittenBlobs, write_pages
from holdfast.store.blobs.damage_check import check_large, check_pack
from holdfast.store.blobs.lazy_writer import LazyWriter
from holdfast.store.blobs.pack_format import read_index
from holdfast.store.catalog_records import BlobLocation, large_blob_key, pages_key
from holdfast.store.codecs import compression
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.remote_store import open_bucket
from holdfast.testing.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.store.objects.object_store import ObjectStore


class Shelf:
    """An object store with the rows that a catalog would keep of it."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects
        self.rows: dict[Hash, BlobLocation] = {}
        self.generation = 0
        self.queries = 0
        self.stored_asked = 0
        self.thread = threading.get_ident()
        self.random = random.Random(7)
        self.reader = BlobReader(objects, self.locate)

    def locate(self, hashes: Sequence[Hash]) -> dict[Hash, BlobLocation]:
        assert threading.get_ident() == self.thread
        self.queries += 1
        return {name: self.rows[name] for name in hashes if name in self.rows}

    def stored(self, hashes: Sequence[Hash]) -> set[Hash]:
        assert threading.get_ident() == self.thread
        self.stored_asked += 1
        return self.rows.keys() & set(hashes)

    def read_bases(self, names: Sequence[Hash]) -> dict[Hash, tuple[Hash, bytes]]:
        assert threading.get_ident() == self.thread
        return self.reader.read_bases(names)

    def writer(self, pack_bytes: int = 32 << 20) -> BlobWriter:
        return BlobWriter(
            self.objects,
            "t",
            self.stored,
            self.read_bases,
            self.random.randbytes,
            pack_bytes=pack_bytes,
            generation_of=lambda name: self.generation,
        )

    def commit(self, written: WrittenBlobs) -> None:
        keys = {item.id: item.key for item in written.packs}
        for blob in written.blobs:
            key = large_blob_key("t", blob.hash, blob.generation) if blob.pack is None else keys[blob.pack]
            row = BlobLocation(key, blob.offset, blob.length, blob.codec, blob.size, blob.base)
            self.rows.setdefault(blob.hash, row)

    def check(self) -> None:
        """Every object is sound and every row right, by the objects' own account."""
        for item in self.objects.list(""):
            if item.key.startswith("blobs/"):
                name = Hash(bytes.fromhex(item.key.split("/")[-1].split(".")[0]))
                assert check_large(self.objects, item.key, name) is None
                continue
            assert list(check_pack(self.objects, item.key, self.reader.read)) == []
            for record in read_index(self.objects, item.key):
                row = self.rows.get(record.hash)
                if row is not None and row.key == item.key:
                    assert (row.offset, row.length, row.codec, row.size, row.base) == (
                        record.offset, record.length, record.codec, record.size, record.base,
                    )  # fmt: skip


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Shelf]:
    tiers = Shelf(LocalObjects(str(tmp_path / "objects")))
    yield tiers
    tiers.check()


def sources(count: int, size: int = 5000, seed: int = 0) -> list[bytes]:
    generator = random.Random(seed)
    words = [generator.randbytes(3).hex() for _ in range(500)]
    return [" ".join(generator.choices(words, k=size // 7)).encode() for _ in range(count)]


def test_what_was_added_comes_back_in_every_way(tiers: Shelf) -> None:
    contents = [b"", b"x", b"\0" * 5000, random.Random(1).randbytes(3000), *sources(50)]
    contents.append(random.Random(2).randbytes(SMALL_BLOB_BYTES))
    writer = tiers.writer()
    hashes = [writer.add(content) for content in contents]
    assert hashes == [hash_bytes(content) for content in contents]
    written = writer.finish()
    tiers.commit(written)
    assert len(written.packs) == 1
    assert written.stored_bytes == tiers.objects.size(written.packs[0].key) == written.packs[0].size
    assert written.relied_on == frozenset()
    assert [blob.hash for blob in written.blobs] == hashes
    for name, content in zip(hashes, contents, strict=True):
        assert tiers.reader.read(name) == content
        assert b"".join(tiers.reader.open(name)) == content
        tiers.reader.check(name)
    tiers.queries = 0
    assert tiers.reader.read_many(hashes * 2) == dict(zip(hashes, contents, strict=True))
    assert tiers.queries == 1
    assert tiers.reader.read_many([]) == {}


def test_thousands_of_blobs_go_through_threads_into_several_packs(tiers: Shelf) -> None:
    contents = sources(3000, 2000)
    writer = tiers.writer(pack_bytes=256 << 10)
    hashes = [writer.add(content) for content in contents]
    written = writer.finish()
    tiers.commit(written)
    assert len(written.packs) > 3
    assert all(item.size < 1 << 20 for item in written.packs)
    assert written.stored_bytes == sum(info.size for info in tiers.objects.list("packs/t/"))
    entries = [file_entry(name, len(content), 0o644) for name, content in zip(hashes, contents, strict=True)]
    random.Random(3).shuffle(entries)
    by_hash = dict(zip(hashes, contents, strict=True))
    assert list(tiers.reader.fetch(entries)) == [by_hash[entry.hash] for entry in entries]
    assert list(tiers.reader.fetch([])) == []
    early = tiers.reader.fetch(entries)
    assert next(early) == by_hash[entries[0].hash]
    early.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_the_same_content_is_stored_once(tiers: Shelf) -> None:
    first = tiers.writer()
    name = first.add(b"known content" * 10)
    tiers.commit(first.finish())
    writer = tiers.writer()
    for _ in range(3):
        assert writer.add(b"known content" * 10) == name
        writer.add(b"new content" * 10)
        assert writer.add_stream([b"new ", b"con", b"tent" + b"new content" * 9]) == (
            hash_bytes(b"new content" * 10),
            110,
        )
    written = writer.finish()
    tiers.commit(written)
    assert written.relied_on == {name}
    assert [blob.hash for blob in written.blobs] == [hash_bytes(b"new content" * 10)]


def test_nothing_new_writes_nothing(tiers: Shelf) -> None:
    first = tiers.writer()
    first.add(b"abc")
    tiers.commit(first.finish())
    before = list(tiers.objects.list(""))
    writer = tiers.writer()
    writer.add(b"abc")
    assert writer.finish() == WrittenBlobs([], [], frozenset([hash_bytes(b"abc")]), 0)
    assert tiers.writer().finish() == WrittenBlobs([], [], frozenset(), 0)
    assert list(tiers.objects.list("")) == before


def test_little_is_encoded_while_more_is_still_to_come(tiers: Shelf) -> None:
    contents = sources(300)
    writer = tiers.writer()
    asked: list[int] = []
    for content in contents:
        writer.add(content)
        asked.append(tiers.stored_asked)
    assert 0 < asked[40] < asked[80], "not all at the end"
    written = writer.finish()
    assert len(written.packs) == 1
    tiers.commit(written)
    entries = [file_entry(hash_bytes(content), len(content), 0o644) for content in contents]
    assert list(tiers.reader.fetch(entries)) == contents


def test_a_writer_that_nobody_needs_is_not_made(tiers: Shelf) -> None:
    made: list[BlobWriter] = []

    def make() -> BlobWriter:
        made.append(tiers.writer())
        return made[-1]

    unused = LazyWriter(make)
    unused.abort()
    assert not made
    used = LazyWriter(make)
    name = used.add(b"abc")
    assert used.add_stream([b"a", b"bc"]) == (name, 3)
    tiers.commit(used.finish())
    used.abort()
    assert len(made) == 1
    assert list(tiers.reader.fetch([file_entry(name, 3, 0o644)])) == [b"abc"]


def test_edits_are_stored_as_differences_one_deep(tiers: Shelf) -> None:
    """A chain of edits: every delta is against content that stands alone, so reading never follows a chain."""
    versions = [sources(1, 30_000)[0]]
    for at in range(12):
        place = 2000 * at
        versions.append(versions[-1][:place] + b"edit number %d" % at + versions[-1][place + 5 :])
    previous = None
    for version in versions:
        writer = tiers.writer()
        name = writer.add(version, previous)
        written = writer.finish()
        tiers.commit(written)
        if previous is not None:
            assert written.stored_bytes < 800
            assert written.relied_on == frozenset()
            (blob,) = written.blobs
            assert blob.codec == compression.DELTA
            assert blob.base is not None
            assert tiers.rows[blob.base].base is None
        previous = name
    for version in versions:
        assert tiers.reader.read(hash_bytes(version)) == version
    everything = tiers.reader.read_many([hash_bytes(version) for version in reversed(versions)])
    assert all(everything[hash_bytes(version)] == version for version in versions)


def test_a_rewritten_file_is_stored_whole(tiers: Shelf) -> None:
    old, new = sources(1, seed=1)[0], random.Random(9).randbytes(5000)
    writer = tiers.writer()
    writer.add(old)
    tiers.commit(writer.finish())
    for previous in (hash_bytes(old), hash_bytes(b"never stored"), hash_bytes(new)):
        writer = tiers.writer()
        writer.add(new, previous)
        assert [blob.base for blob in writer.finish().blobs] == [None]


@pytest.mark.parametrize("size", [SMALL_BLOB_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 12345])
@pytest.mark.parametrize("step", [CHUNK_BYTES, 300_000])
def test_large_content_is_an_object_of_its_own(tiers: Shelf, size: int, step: int) -> None:
    content = (random.Random(4).randbytes(CHUNK_BYTES) + bytes(size))[:size]
    writer = tiers.writer()
    small = writer.add(b"small")
    name, total = writer.add_stream(content[at : at + step] for at in range(0, size, step))
    assert (name, total) == (hash_bytes(content), size)
    assert writer.add_stream([content]) == (name, size), "a second time it is known"
    written = writer.finish()
    tiers.commit(written)
    key = large_blob_key("t", name, 0)
    (blob,) = [blob for blob in written.blobs if blob.pack is None]
    assert (blob.codec, blob.size, blob.length, blob.offset) == (compression.LARGE, size, tiers.objects.size(key), 0)
    assert written.stored_bytes == blob.length + written.packs[0].size
    entries = [file_entry(small, 5, 0o644), file_entry(name, size, 0o644), file_entry(small, 5, 0o644)]
    first, large, last = tiers.reader.fetch(entries)
    assert (first, last) == (b"small", b"small")
    assert not isinstance(large, bytes)
    pieces = list(large)
    assert max(map(len, pieces)) <= CHUNK_BYTES
    assert b"".join(pieces) == tiers.reader.read(name) == content
    assert tiers.reader.read_bases([name]) == {}
    again = tiers.writer()
    assert again.add(content) == name
    assert again.finish() == WrittenBlobs([], [], frozenset([name]), 0)


def test_a_generation_is_part_of_the_key(tiers: Shelf) -> None:
    tiers.generation = 3
    writer = tiers.writer()
    name, _ = writer.add_stream([bytes(SMALL_BLOB_BYTES + 1)])
    written = writer.finish()
    tiers.commit(written)
    assert written.blobs[0].generation == 3
    assert [info.key for info in tiers.objects.list("")] == [large_blob_key("t", name, 3)]


def test_a_stream_that_breaks_leaves_nothing(tiers: Shelf) -> None:
    def broken(pieces: int) -> Iterator[bytes]:
        for _ in range(pieces):
            yield bytes(CHUNK_BYTES)
        raise OSError(errno.EIO, "cannot read")

    writer = tiers.writer()
    for pieces in (0, 1, 5):
        with pytest.raises(OSError, match="cannot read"):
            writer.add_stream(broken(pieces))
    name = writer.add(b"after it")
    written = writer.finish()
    tiers.commit(written)
    assert [blob.hash for blob in written.blobs] == [name]
    assert len(list(tiers.objects.list(""))) == 1
    assert tiers.objects.clean(1 << 62) == 0


def test_abort_leaves_nothing_visible_of_the_open_pack(tiers: Shelf) -> None:
    for count in (3, 3000):
        writer = tiers.writer()
        for content in sources(count, 2000):
            writer.add(content)
        writer.abort()
        writer.abort()
        with pytest.raises(StorageError):
            writer.add(b"too late")
        with pytest.raises(StorageError):
            writer.add_stream([bytes(SMALL_BLOB_BYTES + 1)])
        with pytest.raises(StorageError):
            writer.finish()
    assert list(tiers.objects.list("")) == []
    assert tiers.objects.clean(1 << 62) == 0


@pytest.mark.parametrize("count", [3, 3000])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, count: int) -> None:
    """Case 4, through the threads."""
    for fail in ("write", "sync", "rename", "sync_directory"):
        root = str(tmp_path / fail)
        disk = FaultyDisk(lambda name, number, bad=fail: OSError(errno.ENOSPC, "full") if name == bad else None)
        writer = Shelf(LocalObjects(root, disk=disk)).writer()

        def write(writer: BlobWriter = writer) -> None:
            for content in sources(count, 2000):
                writer.add(content)
            writer.finish()

        with pytest.raises(StorageError, match="full"):
            write()
        writer.abort()
        assert list(LocalObjects(root).list("")) == []
        assert LocalObjects(root).clean(1 << 62) == 0


def damage(tiers: Shelf, change: Callable[[bytearray, BlobLocation], object], name: Hash) -> None:
    row = tiers.rows[name]
    data = bytearray(tiers.objects.get(row.key))
    change(data, row)
    tiers.objects.put(row.key, [bytes(data)])


def test_damaged_content_is_never_given_out(tmp_path: Path) -> None:
    """Case 5."""
    contents = [*sources(4, 3000), random.Random(3).randbytes(500)]
    edited = contents[0] + b"edited"
    for victim in range(len(contents)):
        tiers = Shelf(LocalObjects(str(tmp_path / str(victim))))
        writer = tiers.writer()
        hashes = [writer.add(content) for content in contents]
        tiers.commit(writer.finish())
        writer = tiers.writer()
        hashes.append(writer.add(edited, hashes[0]))
        tiers.commit(writer.finish())

        def flip(data: bytearray, row: BlobLocation) -> None:
            data[row.offset + row.length // 2] ^= 4

        damage(tiers, flip, hashes[victim])
        bad = {hashes[victim]} | ({hashes[-1]} if victim == 0 else set())
        for name in hashes:
            if name in bad:
                with pytest.raises(IntegrityError, match=hashes[victim].hex()):
                    tiers.reader.check(name)
            else:
                tiers.reader.check(name)
        key = tiers.rows[hashes[victim]].key
        assert {item.hash for item in check_pack(tiers.objects, key, tiers.reader.read)} == {hashes[victim]}
        with pytest.raises(IntegrityError):
            list(tiers.reader.fetch([file_entry(hashes[victim], len(contents[victim]), 0o600)]))
        if victim == 0:
            assert tiers.reader.read_bases([hashes[0]]) == {}, "a damaged version is no base"
            other = tiers.rows[hashes[-1]].key
            assert [item.hash for item in check_pack(tiers.objects, other, tiers.reader.read)] == [hashes[-1]]


def test_a_damaged_head_or_index_is_named(tiers: Shelf) -> None:
    writer = tiers.writer()
    names = [writer.add(content) for content in sources(3)]
    tiers.commit(writer.finish())
    key = tiers.rows[names[0]].key
    sound = tiers.objects.get(key)

    def flip_head(data: bytearray, row: BlobLocation) -> None:
        data[row.offset - 1] ^= 1

    def flip_end(data: bytearray, row: BlobLocation) -> None:
        data[-10] ^= 1

    damage(tiers, flip_head, names[1])
    assert [item.hash for item in check_pack(tiers.objects, key, tiers.reader.read)] == [names[1]]
    tiers.objects.put(key, [sound])
    damage(tiers, flip_end, names[1])
    assert [item.hash for item in check_pack(tiers.objects, key, tiers.reader.read)] == [None]
    tiers.objects.put(key, [sound[:100]])
    assert [item.hash for item in check_pack(tiers.objects, key, tiers.reader.read)] == [None]
    with pytest.raises(IntegrityError):
        tiers.reader.check(names[1])
    tiers.objects.delete(key)
    assert [item.hash for item in check_pack(tiers.objects, key, tiers.reader.read)] == [None]
    with pytest.raises(IntegrityError, match="missing"):
        tiers.reader.read(names[0])
    tiers.objects.put(key, [sound])


@pytest.mark.parametrize("at", [0, 7, 20, 5000, -1, -20, -29])
def test_a_damaged_large_blob_is_found_before_its_end(tiers: Shelf, at: int) -> None:
    content = bytes(SMALL_BLOB_BYTES) + random.Random(5).randbytes(100_000)
    writer = tiers.writer()
    name, size = writer.add_stream([content])
    tiers.commit(writer.finish())
    key = tiers.rows[name].key
    sound = tiers.objects.get(key)
    for damaged in (sound[:at], sound[:at] + bytes([sound[at] ^ 1]) + sound[at:][1:], sound + b"x"):
        tiers.objects.put(key, [damaged])
        with pytest.raises(IntegrityError, match=name.hex()):
            tiers.reader.check(name)
        assert check_large(tiers.objects, key, name) is not None
    tiers.objects.put(key, [sound])
    found = check_large(tiers.objects, key, hash_bytes(b"other"))
    assert found is not None
    assert check_large(tiers.objects, key, name, size) is None
    assert check_large(tiers.objects, key, name, size - 1) is not None
    tiers.objects.delete(key)
    with pytest.raises(IntegrityError, match="missing"):
        tiers.reader.check(name)


def test_an_object_that_collection_moved_is_located_again(tiers: Shelf) -> None:
    """I11, seen by a reader: the answer of `locate` may be old by the time the object is read."""
    writer = tiers.writer()
    contents = [*sources(600), bytes(SMALL_BLOB_BYTES + 5)]
    hashes = [writer.add(content) for content in contents]
    tiers.commit(writer.finish())
    current = dict(tiers.rows)
    stale = {name: row._replace(key=row.key + "-gone") for name, row in current.items()}
    answers: list[dict[Hash, BlobLocation]] = []
    reader = BlobReader(tiers.objects, lambda wanted: {n: (answers.pop(0) if answers else current)[n] for n in wanted})
    entries = [file_entry(name, len(content), 0o644) for name, content in zip(hashes, contents, strict=True)]

    answers[:] = [stale]
    assert reader.read(hashes[0]) == contents[0]
    answers[:] = [stale]
    assert reader.read(hashes[-1]) == contents[-1]
    answers[:] = [stale, stale, stale, stale]
    got = [content if isinstance(content, bytes) else b"".join(content) for content in reader.fetch(entries)]
    assert got == contents
    answers[:] = [stale, stale]
    with pytest.raises(IntegrityError, match="missing"):
        reader.read(hashes[0])
    with pytest.raises(IntegrityError, match="does not know"):
        tiers.reader.read(hash_bytes(b"unheard of"))


def test_an_entry_of_another_size_is_damage(tiers: Shelf) -> None:
    writer = tiers.writer()
    name = writer.add(b"12345")
    tiers.commit(writer.finish())
    with pytest.raises(IntegrityError, match="5 bytes"):
        list(tiers.reader.fetch([file_entry(name, 6, 0o644)]))


def test_a_damaged_row_is_damage(tiers: Shelf) -> None:
    writer = tiers.writer()
    name = writer.add(b"12345" * 100)
    tiers.commit(writer.finish())
    sound = tiers.rows[name]
    for wrong in (
        {"offset": -1}, {"length": -1}, {"length": 1 << 60}, {"offset": 1 << 60}, {"size": 1 << 60}, {"size": 499},
        {"codec": compression.RAW}, {"codec": compression.LZ4}, {"codec": compression.DELTA}, {"codec": 77},
        {"codec": compression.LARGE},
        {"codec": compression.DELTA, "base": name}, {"base": hash_bytes(b"absent")}, {"key": "packs/t/absent"},
    ):  # fmt: skip
        tiers.rows[name] = sound._replace(**wrong)
        with pytest.raises(IntegrityError):
            tiers.reader.check(name)
    tiers.rows[name] = sound
    tiers.reader.check(name)


def test_pages_are_written_under_the_checkpoints_key(tiers: Shelf) -> None:
    first = [b"page %d " % n * 200 + random.Random(n).randbytes(600) for n in range(20)]
    key = pages_key("t", CheckpointId("c" * 24))
    pages = [(hash_bytes(page), page, None) for page in first]
    written = write_pages(tiers.objects, key, new_pack_id(os.urandom), pages + pages[:2], tiers.read_bases)
    tiers.commit(written)
    assert [(pack.key, pack.size) for pack in written.packs] == [(key, tiers.objects.size(key))]
    assert {blob.kind for blob in written.blobs} == {"page"}
    assert {blob.codec for blob in written.blobs} == {compression.LZ4}
    assert len(written.blobs) == 20
    changed = first[3][:100] + b"changed" + first[3][107:]
    key = pages_key("t", CheckpointId("d" * 24))
    update = [(hash_bytes(changed), changed, hash_bytes(first[3]))]
    written = write_pages(tiers.objects, key, new_pack_id(os.urandom), update, tiers.read_bases)
    tiers.commit(written)
    assert written.blobs[0].base == hash_bytes(first[3])
    assert written.stored_bytes < 250
    assert tiers.reader.read(hash_bytes(changed)) == changed
    assert write_pages(tiers.objects, key, new_pack_id(os.urandom), [], tiers.read_bases) == WrittenBlobs(
        [], [], frozenset(), 0
    )


def test_a_bucket_does_as_well_as_a_directory() -> None:
    tiers = Shelf(open_bucket("memory://"))
    writer = tiers.writer(pack_bytes=100 << 10)
    contents = [*sources(300), bytes(SMALL_BLOB_BYTES * 3)]
    hashes = [writer.add(content) for content in contents]
    tiers.commit(writer.finish())
    tiers.check()
    assert tiers.reader.read_many(hashes) == dict(zip(hashes, contents, strict=True))
