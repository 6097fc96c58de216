"""The contents of a mounted checkpoint, read from the store on demand."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

from holdfast.model.content import CHUNK_BYTES, SMALL_BLOB_BYTES
from holdfast.model.errors import HoldfastError, IntegrityError, NotFoundError
from holdfast.model.ids import format_hash
from holdfast.model.paths import display
from holdfast.store.blobs.large_blob import LargeBlob
from holdfast.store.codecs.compression import LARGE
from holdfast.store.manifests.ordered_manifest import OrderedManifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests.ordered_manifest import EntryRun
    from holdfast.store.store import Store

_KEPT_BYTES: Final = 64 << 20
"""For contents: this helps reads in parts; the kernel caches its own reads."""
_OPEN_LARGE: Final = 8
"""Large blobs whose chunks are known, each with up to 4 MiB that were read ahead."""
_TURNS: Final = 16


class StoredContent:
    """`Content` of a checkpoint, over the store. For any number of threads; memory is bounded."""

    def __init__(self, store: Store, root: Hash) -> None:
        self._store = store
        manifest = OrderedManifest(_Pages(store), root)
        self.count, self.size = manifest.count, manifest.size
        self._manifest = manifest
        self._turn = Lock()
        self._kept: OrderedDict[tuple[Hash, int], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._large: OrderedDict[Hash, LargeBlob] = OrderedDict()
        self._reading = [Lock() for _ in range(_TURNS)]
        """By hash: of two readers of one content, the second waits for the first's result."""

    def find(self, path: bytes, /) -> int:
        """See `Content.find`."""
        return self._manifest.find(path)

    def stretch(self, position: int, /) -> EntryRun:
        """See `Content.stretch`."""
        return self._manifest.run_at(position)

    def read(self, path: bytes, entry: Entry, offset: int, size: int, /) -> bytes | memoryview:
        """See `Content.read`. Its errors name the path."""
        try:
            if entry.size <= SMALL_BLOB_BYTES:
                return memoryview(self._piece(entry, 0))[offset : offset + size]
            end = min(offset + size, entry.size)
            parts: list[memoryview] = []
            while offset < end:
                index, begin = divmod(offset, CHUNK_BYTES)
                part = memoryview(self._piece(entry, index))[begin : begin + end - offset]
                parts.append(part)
                offset += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except HoldfastError as error:
            raise type(error)(f"{display(path)}: {error.message}", hint=error.hint, code=error.code) from error

    def _piece(self, entry: Entry, index: int) -> bytes:
        """A chunk of large content, or all of small content."""
        key = entry.hash, index
        found = self._look_up(key)
        if found is None:
            with self._reading[entry.hash[0] % _TURNS]:
                found = self._look_up(key)
                if found is None:
                    found = self._load(entry, index)
                    self._keep(key, found)
        return found

    def _look_up(self, key: tuple[Hash, int]) -> bytes | None:
        with self._turn:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: tuple[Hash, int], content: bytes) -> None:
        with self._turn:
            self._kept[key] = content
            self._kept_bytes += len(content)
            while self._kept_bytes > _KEPT_BYTES:
                _, gone = self._kept.popitem(last=False)
                self._kept_bytes -= len(gone)

    def _load(self, entry: Entry, index: int) -> bytes:
        if entry.size <= SMALL_BLOB_BYTES:
            content, expected = self._store.reader.read(entry.hash), entry.size
        else:
            content, expected = self._chunk(entry, index), min(CHUNK_BYTES, entry.size - index * CHUNK_BYTES)
        if len(content) != expected:
            raise IntegrityError(f"blob {format_hash(entry.hash)} has {len(content)} bytes where {expected} should be")
        return content

    def _chunk(self, entry: Entry, index: int) -> bytes:
        try:
            return self._opened(entry).chunk(index)
        except NotFoundError:
            # Collection, or a repair, has moved it since it was located.
            with self._turn:
                self._large.pop(entry.hash, None)
        try:
            return self._opened(entry).chunk(index)
        except NotFoundError as error:
            raise IntegrityError(f"blob {format_hash(entry.hash)} is missing: {error.message}") from error

    def _opened(self, entry: Entry) -> LargeBlob:
        with self._turn:
            blob = self._large.get(entry.hash)
            if blob is not None:
                self._large.move_to_end(entry.hash)
                return blob
        location = self._store.catalog.locate([entry.hash]).get(entry.hash)
        if location is None:
            raise IntegrityError(f"blob {format_hash(entry.hash)} is missing: the catalog does not know it")
        if location.codec != LARGE or location.size != entry.size:
            raise IntegrityError(f"blob {format_hash(entry.hash)} has {location.size} bytes, not {entry.size}")
        blob = LargeBlob(self._store.objects, entry.hash, location)
        with self._turn:
            self._large[entry.hash] = blob
            while len(self._large) > _OPEN_LARGE:
                self._large.popitem(last=False)
        return blob


class _Pages:
    """Pages as they are stored: kept are those of this manifest alone, which threads can share."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        """See `PageSource.read`."""
        found = self._store.reader.read_many(hashes)
        return [found[name] for name in hashes]
