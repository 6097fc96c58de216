"""Takes content in and makes durable packs and large blobs of it."""

from __future__ import annotations

from collections import deque
from itertools import chain

from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hash, Hasher, hash_bytes
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.blobs._byte_chunks import chunks
from holdfast.store.blobs._pack_writer import PACK_BYTES, PackItem, PackWriter, fresh_packs
from holdfast.store.blobs.pack_format import MAX_RECORDS
from holdfast.store.catalog_records import NewBlob, NewPack, large_blob_key
from holdfast.store.codecs.compression import (
    DELTA,
    LARGE,
    RAW,
    Encoded,
    compress,
    compress_many,
    compress_quick,
    difference,
    pays_surely,
    smaller,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from holdfast.model.ids import PackId
    from holdfast.store.objects.object_store import ObjectStore

    ReadBases = Callable[[Sequence[Hash]], Mapping[Hash, tuple[Hash, bytes]]]
    """Gives, for earlier versions, the blob that may be the base of a delta, and its content: that version or, if that
    is a delta, its base. One that is gone, damaged or too large is not in the answer."""

_WORKERS = 2
_BATCH_BYTES = 1 << 20
_BATCH_ITEMS = 512
_FIRST_BATCH_ITEMS, _FIRST_BATCHES = 32, 8
"""The first batches are small and encoded at once: threads would cost more, and waiting until `finish` would waste the
time in which another process (`holdfast.files.scan.parallel_scan`) walks the tree.
"""
_IN_FLIGHT_BYTES = 32 << 20
_ENDED = "this writer of blobs has ended"


class WrittenBlobs(NamedTuple):
    """The blobs that a writer made durable, and those that existed."""

    packs: list[NewPack]
    blobs: list[NewBlob]
    relied_on: frozenset[Hash]
    """Content that was added and turned out to be stored already. Bases of deltas are in the blobs' rows, not here."""
    stored_bytes: int
    """Bytes that were added to the object store."""


class _Job(NamedTuple):
    hash: Hash
    data: bytes
    base: tuple[Hash, bytes] | None
    ready: PackItem | None = None
    """Its content, if it was encoded in advance."""


def encode(contents: Sequence[tuple[bytes, Hash]], read_bases: ReadBases) -> list[PackItem]:
    """Small contents, each with the hash of an earlier version, encoded as by a writer. Unchanged ones are left out."""
    named = [(hash_bytes(data), data, previous) for data, previous in contents]
    changed = [one for one in named if one[0] != one[2]]
    bases = _bases(read_bases, [previous for _, _, previous in changed])
    return _encode_fresh([_Job(name, data, bases.get(previous)) for name, data, previous in changed])


def encode_pages(pages: Sequence[tuple[Hash, bytes, Hash | None]], read_bases: ReadBases) -> Iterator[PackItem]:
    """Pages of manifests, each with its hash and that of the page it replaces, one after the other."""
    bases = _bases(read_bases, [previous for _, _, previous in pages if previous is not None])
    for name, data, previous in pages:
        job = _Job(name, data, None if previous is None else bases.get(previous))
        yield _item(job, smaller(_difference(job), compress_quick(data)))


def _encode(jobs: Sequence[_Job]) -> list[PackItem]:
    """Each as it was encoded ahead, or as `_encode_fresh`."""
    fresh = iter(_encode_fresh([job for job in jobs if job.ready is None]))
    return [next(fresh) if job.ready is None else job.ready for job in jobs]


def _encode_fresh(jobs: Sequence[_Job]) -> list[PackItem]:
    """Each as a delta where that pays, else by itself; what surely pays is not compressed twice."""
    deltas = [_difference(job) for job in jobs]
    sure = [delta is not None and pays_surely(delta, job.data) for job, delta in zip(jobs, deltas, strict=True)]
    plain = iter(compress_many([job.data for job, is_sure in zip(jobs, sure, strict=True) if not is_sure]))
    items: list[PackItem] = []
    for job, delta, is_sure in zip(jobs, deltas, sure, strict=True):
        items.append(_item(job, delta if delta is not None and is_sure else smaller(delta, next(plain))))
    return items


def _difference(job: _Job) -> Encoded | None:
    return None if job.base is None or job.base[0] == job.hash else difference(job.data, job.base[1])


def _item(job: _Job, encoded: Encoded) -> PackItem:
    base = job.base[0] if job.base is not None and encoded.codec == DELTA else None
    return PackItem(job.hash, len(job.data), encoded, base)


class _Pipeline:
    """Threads that encode batches and append them to packs in order, with a limit on the bytes that are under way."""

    def __init__(self, packs: PackWriter) -> None:
        from holdfast.store._worker_threads import workers

        self.encoders = workers(_WORKERS, "holdfast-encode")
        self._appender = workers(1, "holdfast-append")
        self._packs = packs
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def submit(self, jobs: Sequence[_Job]) -> None:
        """Encode and append ``jobs`` some time later; raises what an earlier batch raised."""
        weight = sum(len(job.data) + (len(job.base[1]) if job.base else 0) for job in jobs)
        encoded = self.encoders.submit(_encode, jobs)
        self._under_way.append((self._appender.submit(lambda: self._packs.add(encoded.result())), weight))
        self._bytes += weight
        self._wait(_IN_FLIGHT_BYTES)

    def finish(self) -> None:
        """Wait for all that was submitted."""
        self._wait(-1)
        self.stop()

    def stop(self) -> None:
        """Drop the waiting jobs and end the threads."""
        self.encoders.shutdown(cancel_futures=True)
        self._appender.shutdown(cancel_futures=True)

    def _wait(self, limit: int) -> None:
        while self._under_way and (self._bytes > limit or self._under_way[0][0].done()):
            future, weight = self._under_way.popleft()
            self._bytes -= weight
            future.result()


class BlobWriter:
    """A `BlobSink` that stores new content in packs, and large content in objects of its own.

    ``stored`` returns the hashes that the catalog knows; ``read_bases`` is as `ReadBases`; ``generation_of`` returns
    the generation for writing a large blob; ``random`` makes ids. The first three are only called in the thread that
    calls the writer. One thread at a time; single use: `finish` or `abort` ends it. Memory is bounded (about 100 MB,
    and 100 bytes a hash).
    """

    def __init__(
        self,
        objects: ObjectStore,
        tenant: str,
        stored: Callable[[Sequence[Hash]], set[Hash]],
        read_bases: ReadBases,
        random: Callable[[int], bytes],
        *,
        generation_of: Callable[[Hash], int],
        pack_bytes: int = PACK_BYTES,
        ahead: Mapping[Hash, PackItem] | None = None,
    ) -> None:
        """``ahead`` is content that was encoded in advance: see `encode`."""
        self._objects = objects
        self._tenant = tenant
        self._stored = stored
        self._read_bases = read_bases
        self._generation_of = generation_of
        self._packs = PackWriter(objects, fresh_packs(tenant, random), pack_bytes=pack_bytes)
        self._pipeline: _Pipeline | None = None
        self._seen: set[Hash] = set()
        self._batch: list[tuple[Hash, bytes, Hash | None]] = []
        self._batch_bytes = 0
        self._first_batches = _FIRST_BATCHES
        self._ahead = ahead or {}
        self._relied_on: set[Hash] = set()
        self._large: list[NewBlob] = []
        self._ended = False

    def add(self, data: bytes, previous: Hash | None = None) -> Hash:
        """See `BlobSink.add`. Raises `StorageError`, perhaps for an earlier content; then only `abort` is allowed."""
        if len(data) > SMALL_BLOB_BYTES:
            return self.add_stream((data,))[0]
        name = hash_bytes(data)
        if name not in self._seen:
            if self._ended:
                raise StorageError(_ENDED)
            self._seen.add(name)
            self._batch.append((name, data, previous))
            self._batch_bytes += len(data)
            if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_ITEMS:
                jobs = self._take_batch()
                if jobs:
                    self._threads().submit(jobs)
            elif self._first_batches and self._pipeline is None and len(self._batch) >= _FIRST_BATCH_ITEMS:
                self._first_batches -= 1
                jobs = self._take_batch()
                if jobs:
                    self._packs.add(_encode(jobs))
        return name

    def add_stream(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        """See `BlobSink.add_stream`. Large content is durable when this returns."""
        rest = iter(pieces)
        head: list[bytes] = []
        have = 0
        for piece in rest:
            head.append(piece)
            have += len(piece)
            if have > SMALL_BLOB_BYTES:
                return self._add_large(chain(head, rest))
        data = b"".join(head)
        return self.add(data), len(data)

    def finish(self) -> WrittenBlobs:
        """Write the rest, and return what was written: all of it is durable then (I4)."""
        try:
            jobs = self._take_batch()
            if self._pipeline is not None:
                self._pipeline.submit(jobs)
                self._pipeline.finish()
            elif jobs:
                self._packs.add(_encode(jobs))
            packs, blobs = self._packs.finish()
        finally:
            self.abort()
        stored_bytes = sum(pack.size for pack in packs) + sum(blob.length for blob in self._large)
        return WrittenBlobs(packs, blobs + self._large, frozenset(self._relied_on), stored_bytes)

    def abort(self) -> None:
        """End without writing more. Packs and large blobs that were closed stay, as objects that nothing names, for
        collection.

        Harmless after `finish`.
        """
        self._ended = True
        self._batch = []
        if self._pipeline is not None:
            self._pipeline.stop()
            self._pipeline = None
        self._packs.abort()

    def _threads(self) -> _Pipeline:
        if self._pipeline is None:
            self._pipeline = _Pipeline(self._packs)
        return self._pipeline

    def _take_batch(self) -> list[_Job]:
        """The new contents of the batch, each with a possible base for a delta."""
        if self._ended:
            raise StorageError(_ENDED)
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return []
        known = self._stored([name for name, _, _ in batch])
        self._relied_on |= known
        new = [item for item in batch if item[0] not in known]
        ahead = self._ahead
        wanted = [previous for name, _, previous in new if previous is not None and name not in ahead]
        bases = _bases(self._read_bases, wanted)
        return [
            _Job(name, data, None if previous is None else bases.get(previous), ahead.get(name))
            for name, data, previous in new
        ]

    def _add_large(self, pieces: Iterable[bytes]) -> tuple[Hash, int]:
        if self._ended:
            raise StorageError(_ENDED)
        encoders = self._threads().encoders
        hasher = Hasher()
        size = 0
        length = len(large_format.HEADER)
        under_way: deque[tuple[int, Future[Encoded]]] = deque()
        upload = self._objects.upload()

        def write_next() -> int:
            chunk_bytes, future = under_way.popleft()
            encoded = future.result()
            head = large_format.encode_chunk(chunk_bytes, encoded)
            upload.write(head)
            upload.write(encoded.data)
            return len(head) + len(encoded.data)

        try:
            upload.write(large_format.HEADER)
            for chunk in chunks(pieces):
                under_way.append((len(chunk), encoders.submit(compress, chunk)))
                hasher.update(chunk)
                size += len(chunk)
                if len(under_way) > 2 * _WORKERS:
                    length += write_next()
            while under_way:
                length += write_next()
            name = hasher.hash()
            if name in self._seen:
                return name, size
            if name in self._stored([name]):
                self._seen.add(name)
                self._relied_on.add(name)
                return name, size
            trailer = large_format.encode_trailer(size, name)
            upload.write(trailer)
            length += len(trailer)
            generation = self._generation_of(name)
            upload.commit(large_blob_key(self._tenant, name, generation))
        finally:
            upload.abort()
        self._seen.add(name)
        self._large.append(NewBlob(name, "blob", size, LARGE, None, None, 0, length, generation))
        return name, size


def _bases(read_bases: ReadBases, previous: Sequence[Hash]) -> Mapping[Hash, tuple[Hash, bytes]]:
    return read_bases(list(dict.fromkeys(previous))) if previous else {}


def write_pages(
    objects: ObjectStore,
    key: str,
    pack_id: PackId,
    pages: Sequence[tuple[Hash, bytes, Hash | None]],
    read_bases: ReadBases,
    ahead: Mapping[Hash, PackItem] | None = None,
    header: bytes = b"",
) -> WrittenBlobs:
    """Write manifest pages, each with its hash and that of the page it replaces, as one pack ``pack_id`` under ``key``.

    ``ahead`` are pages that were encoded in advance. ``header`` is the encoded header of their checkpoint, to which no
    row refers. Durable when it returns (I4). Without pages and header there is no pack. A repeated hash is written
    once; ``relied_on`` is empty.
    """
    if not pages and not header:
        return WrittenBlobs([], [], frozenset(), 0)
    distinct = {name: (data, previous) for name, data, previous in pages}
    if len(distinct) >= MAX_RECORDS:
        raise UsageError(f"{len(distinct)} pages are more than the {MAX_RECORDS} that one pack may hold")
    writer = PackWriter(objects, lambda: (pack_id, key), kind="page", pack_bytes=1 << 62)
    ready = ahead or {}
    try:
        if ready:
            writer.add(ready[name] for name in distinct if name in ready)
        items = [(name, *page) for name, page in distinct.items() if name not in ready]
        for at in range(0, len(items), _BATCH_ITEMS):
            writer.add(encode_pages(items[at : at + _BATCH_ITEMS], read_bases))
        if header:
            writer.add((PackItem(hash_bytes(header), len(header), Encoded(RAW, header), None),))
        packs, blobs = writer.finish()
    finally:
        writer.abort()
    return WrittenBlobs(packs, blobs[:-1] if header else blobs, frozenset(), packs[0].size)
