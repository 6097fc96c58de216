"""Reads the content of blobs, verified, from the places in the catalog."""

from __future__ import annotations

from collections import deque
from itertools import chain, groupby
from operator import itemgetter

from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.errors import FormatError, IntegrityError, NotFoundError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hash, format_hash, hash_bytes
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.codecs.compression import DELTA, LARGE, decompress
from holdfast.store.objects.object_store import get_ranges, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from holdfast.model.content import Content
    from holdfast.model.entries import Entry
    from holdfast.store.catalog_records import BlobLocation
    from holdfast.store.objects.object_store import ObjectStore

_BATCH_ITEMS = 256
_BATCH_BYTES = 4 << 20
_GAP_BYTES = 32 << 10
"""Reading this much in vain is cheaper than another request."""
_FAR_GAP_BYTES = 256 << 10
"""The same, where a request goes over a network."""
_RANGE_BYTES = 4 << 20
_AT_ONCE = 4
"""Requests that are under way over a network."""
_MOST_REMEMBERED = 16_384
_AHEAD = 2
"""Batches that are read ahead, by one thread: two would only wait for each other's turn at the interpreter."""


class BlobReader:
    """Gives back the content of blobs from an object store.

    ``locate`` returns the places of blobs, without unknown ones; it is only called in the thread that calls the reader.
    Every content is verified against its hash before it is returned, large ones with their last chunk. A missing object
    is located again once, since collection may have moved its content. Each method raises `IntegrityError` for content
    that is damaged or missing and `StorageError` if the store cannot be reached.
    """

    def __init__(self, objects: ObjectStore, locate: Callable[[Sequence[Hash]], dict[Hash, BlobLocation]]) -> None:
        self._objects = objects
        self._is_far = is_remote(objects)
        self._locate = locate
        self._required: dict[Hash, BlobLocation] = {}
        """The places of the last required contents, if they were few; they may have changed since."""

    def read(self, hash: Hash) -> bytes:  # noqa: A002 - the field's own name
        """The whole content of one blob, in memory: for content that is known to be small enough."""
        return self.read_many((hash,))[hash]

    def read_many(
        self, hashes: Iterable[Hash], bases: dict[Hash, tuple[Hash, bytes]] | None = None
    ) -> dict[Hash, bytes]:
        """The complete contents of ``hashes``, in memory; located in one query and read in the order of the packs.
        ``bases`` receives the result that `read_bases` would give for them.
        """
        wanted = list(dict.fromkeys(hashes))
        located = self._find(wanted)
        try:
            found = self._load(wanted, located)
        except NotFoundError:
            located = self._find(wanted)
            found = self._load_again(wanted, located)
        if bases is not None:
            roots = ((name, located[name].base or name) for name in wanted if located[name].codec != LARGE)
            bases.update((name, (root, found[root])) for name, root in roots)
        for name in wanted:
            if name not in found:
                found[name] = b"".join(self._stream(name, located[name]))
        return found

    def open(self, hash: Hash) -> Iterator[bytes]:  # noqa: A002 - the field's own name
        """The content of one blob of any size, in pieces of at most 1 MiB. Verified when it is used up, not before."""
        location = self._find((hash,))[hash]
        if location.codec == LARGE:
            yield from self._stream(hash, location)
        else:
            yield self.read(hash)

    def read_bases(self, hashes: Sequence[Hash]) -> dict[Hash, tuple[Hash, bytes]]:
        """Bases for deltas, given earlier versions: each blob itself, or its base if it is a delta.

        Missing, damaged and large blobs are left out: then content is better stored without a base.
        """
        located = self._locate(hashes)
        roots = {
            name: name if location.base is None else location.base
            for name, location in located.items()
            if location.codec != LARGE
        }
        wanted = list(dict.fromkeys(roots.values()))
        try:
            found = self._load(wanted, self._find(wanted, located))
        except (IntegrityError, NotFoundError):
            found = {name: content for name in wanted for content in self._sound(name)}
        return {name: (root, found[root]) for name, root in roots.items() if root in found}

    def _sound(self, name: Hash) -> Iterator[bytes]:
        """The content of a small blob, or nothing if it is damaged."""
        try:
            yield self._load((name,), self._find((name,)))[name]
        except (IntegrityError, NotFoundError):
            return

    def check(self, hash: Hash) -> None:  # noqa: A002 - the field's own name
        """Read and verify one blob of any size; raises `IntegrityError` with the fault."""
        for _ in self.open(hash):
            pass

    def require(self, entries: Iterable[Entry]) -> None:
        """Raise `IntegrityError` if the content of any of ``entries`` is surely not there: unknown, in an object that
        is gone or too short. No content is read. Where a limited number of them is, is remembered for `locate`.
        """
        self._required.clear()
        for _, reason in self._lost(entries, self._required):
            raise IntegrityError(reason)

    def lost(self, entries: Iterable[Entry]) -> Iterator[tuple[Hash, str]]:
        """The hashes of those of ``entries`` whose content is surely not there, as `require`, each with the reason."""
        return self._lost(entries, {})

    def _lost(self, entries: Iterable[Entry], found: dict[Hash, BlobLocation]) -> Iterator[tuple[Hash, str]]:
        """As `lost`; the places of existing blobs are added to ``found``, while that is small."""
        sizes: dict[str, int | None] = {}
        for batch in _batches(entries):
            names = list(dict.fromkeys(entry.hash for entry in batch))
            located = self._locate(names)
            bases = {location.base for location in located.values() if location.base is not None} - located.keys()
            located = {**located, **self._locate(list(bases))}
            if len(found) < _MOST_REMEMBERED:
                found.update(located)
            for name in names:
                reason = self._absence(name, located, sizes)
                if reason is not None:
                    yield name, reason

    def _absence(self, name: Hash, located: dict[Hash, BlobLocation], sizes: dict[str, int | None]) -> str | None:
        """Why the content of ``name`` cannot exist; ``sizes`` are those of objects, asked for once each."""
        location = located.get(name)
        if location is None:
            return f"blob {format_hash(name)} is missing: the catalog does not know it"
        key, end = location.key, location.offset + location.length
        if key not in sizes:
            sizes[key] = self._objects.size(key)
        size = sizes[key]
        if size is None:
            return f"blob {format_hash(name)} is missing: there is no {key}"
        if size < end:
            return f"blob {format_hash(name)} is cut short: {key} has {size} bytes instead of {end} or more"
        return None if location.base is None else self._absence(location.base, located, sizes)

    def locate(self, entries: Sequence[Entry]) -> Callable[[Sequence[Hash]], dict[Hash, bytes]]:
        """Find the places of ``entries``: the result reads small contents of any of them.

        It does not query the catalog, and may run in a forked copy of the process. Contents that were moved since, and
        large ones, are missing in its answer: use `fetch`.
        """
        located = self._located(entries, self._required)
        self._required = {}

        def read(hashes: Sequence[Hash]) -> dict[Hash, bytes]:
            try:
                return self._load(hashes, located)
            except NotFoundError:
                return {}

        return read

    def fetch(self, entries: Iterable[Entry]) -> Iterator[Content]:
        """The content of each of ``entries``, in their order; large content in pieces, to be used up before the next.

        Reads a few batches ahead in another thread; close the iterator if you do not use it up.
        """
        batches = _batches(entries)
        first = next(batches, None)
        if first is None:
            return
        second = next(batches, None)
        if second is None:
            yield from self._contents(first, self._located(first), None)
            return
        from holdfast.store._worker_threads import workers

        threads = workers(1, "holdfast-read")
        ahead: deque[tuple[list[Entry], dict[Hash, BlobLocation], Future[dict[Hash, bytes]]]] = deque()
        try:
            upcoming = chain((first, second), batches)
            exhausted = False
            while ahead or not exhausted:
                while not exhausted and len(ahead) <= _AHEAD:
                    batch = next(upcoming, None)
                    if batch is None:
                        exhausted = True
                        break
                    located = self._located(batch)
                    names = [entry.hash for entry in batch]
                    ahead.append((batch, located, threads.submit(self._load, names, located)))
                if ahead:
                    yield from self._contents(*ahead.popleft())
        finally:
            threads.shutdown(cancel_futures=True)

    def _located(
        self, batch: Sequence[Entry], known: Mapping[Hash, BlobLocation] | None = None
    ) -> dict[Hash, BlobLocation]:
        located = self._find([entry.hash for entry in batch], known)
        for entry in batch:
            if located[entry.hash].size != entry.size:
                there = located[entry.hash].size
                raise IntegrityError(f"blob {format_hash(entry.hash)} has {there} bytes, not {entry.size}")
        return located

    def _contents(
        self, batch: Sequence[Entry], located: dict[Hash, BlobLocation], loading: Future[dict[Hash, bytes]] | None
    ) -> Iterator[Content]:
        names = [entry.hash for entry in batch]
        try:
            found = self._load(names, located) if loading is None else loading.result()
        except NotFoundError:
            located = self._find(names)
            found = self._load_again(names, located)
        for name in names:
            content = found.get(name)
            yield self._stream(name, located[name]) if content is None else content

    def _find(
        self, hashes: Sequence[Hash], known: Mapping[Hash, BlobLocation] | None = None
    ) -> dict[Hash, BlobLocation]:
        """The places of ``hashes``, with the bases of deltas; raises `IntegrityError` for a missing one. ``known`` are
        just located places.
        """
        located = dict(known or {})
        located.update(self._locate([name for name in hashes if name not in located]))
        bases = {location.base for location in located.values() if location.base is not None}
        missing_bases = [base for base in bases if base not in located]
        if missing_bases:
            located = {**located, **self._locate(missing_bases)}
        for name in (*hashes, *missing_bases):
            location = located.get(name)
            if location is None:
                raise IntegrityError(f"blob {format_hash(name)} is missing: the catalog does not know it")
            if location.offset < 0 or location.length < 0:
                raise IntegrityError(f"blob {format_hash(name)} cannot be at {location.offset}: the catalog is damaged")
        return located

    def _load(self, hashes: Sequence[Hash], located: dict[Hash, BlobLocation]) -> dict[Hash, bytes]:
        """The contents of those of ``hashes`` that are not large. Runs in any thread. Raises `NotFoundError` for a
        lost object.
        """
        needed = {name: located[name] for name in hashes if located[name].codec != LARGE}
        for location in list(needed.values()):
            if location.base is not None:
                needed[location.base] = located[location.base]
        found: dict[Hash, bytes] = {}
        deltas: list[tuple[Hash, BlobLocation, memoryview]] = []
        order = sorted(needed.items(), key=lambda item: (item[1].key, item[1].offset))
        for items, data in self._ranges(order):
            start = items[0][1].offset
            for name, location in items:
                begin = location.offset - start
                stored = data[begin : begin + location.length]
                if location.codec == DELTA:
                    deltas.append((name, location, stored))
                else:
                    found[name] = _decode(name, location, stored, None)
        for name, location, stored in deltas:
            base = None if location.base is None else found.get(location.base)
            found[name] = _decode(name, location, stored, base)
        return found

    def _load_again(self, hashes: Sequence[Hash], located: dict[Hash, BlobLocation]) -> dict[Hash, bytes]:
        try:
            return self._load(hashes, located)
        except NotFoundError as error:
            raise IntegrityError(f"stored content is missing: {error.message}") from error

    def _ranges(
        self, order: Sequence[tuple[Hash, BlobLocation]]
    ) -> Iterator[tuple[Sequence[tuple[Hash, BlobLocation]], memoryview]]:
        """The reads of objects, each with its items, for items sorted by object and offset. Neighbours are read at
        once, and where requests are slow, several run at the same time.
        """
        wanted = list(_neighbours(order, _FAR_GAP_BYTES if self._is_far else _GAP_BYTES))

        if not self._is_far or len(wanted) < 2:
            for key, same in groupby(wanted, itemgetter(0)):
                ranges = list(same)
                data = get_ranges(self._objects, key, [(start, end - start) for _, start, end, _ in ranges])
                for (_, _, _, items), part in zip(ranges, data, strict=True):
                    yield items, memoryview(part)
            return

        def read(range_: tuple[str, int, int, Sequence[tuple[Hash, BlobLocation]]]) -> memoryview:
            key, start, end, _ = range_
            return memoryview(self._objects.get(key, start, end - start))

        from holdfast.store._worker_threads import workers

        threads = workers(_AT_ONCE, "holdfast-fetch")
        try:
            for at in range(0, len(wanted), _AT_ONCE):
                part = wanted[at : at + _AT_ONCE]
                for range_, data in zip(part, threads.map(read, part), strict=True):
                    yield range_[3], data
        finally:
            threads.shutdown(cancel_futures=True)

    def _stream(self, name: Hash, location: BlobLocation) -> Iterator[bytes]:
        """The content of a large blob."""
        pieces = self._objects.stream(location.key)
        try:
            first = next(pieces, b"")
        except NotFoundError:
            location = self._find((name,))[name]
            if location.codec != LARGE:
                yield self.read(name)
                return
            pieces = self._objects.stream(location.key)
            try:
                first = next(pieces, b"")
            except NotFoundError as error:
                raise IntegrityError(f"blob {format_hash(name)} is missing: {error.message}") from error
        try:
            yield from large_format.decode(chain((first,), pieces), name, location.size)
        except FormatError as error:
            raise FormatError(f"blob {format_hash(name)} in {location.key}: {error.message}") from error
        except IntegrityError as error:
            raise IntegrityError(f"blob {format_hash(name)} in {location.key}: {error.message}") from error
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    weight = 0
    for entry in entries:
        batch.append(entry)
        weight += entry.size if entry.size <= SMALL_BLOB_BYTES else 0
        if weight >= _BATCH_BYTES or len(batch) >= _BATCH_ITEMS:
            yield batch
            batch = []
            weight = 0
    if batch:
        yield batch


def _neighbours(
    order: Sequence[tuple[Hash, BlobLocation]], gap: int
) -> Iterator[tuple[str, int, int, Sequence[tuple[Hash, BlobLocation]]]]:
    """Object, begin and end of a joint read, and the items in it."""
    at = 0
    while at < len(order):
        key, start = order[at][1].key, order[at][1].offset
        end = start + order[at][1].length
        after = at + 1
        while after < len(order) and order[after][1].key == key:
            following = order[after][1]
            far = following.offset + following.length
            if following.offset > end + gap or far - start > _RANGE_BYTES:
                break
            end = max(end, far)
            after += 1
        yield key, start, end, order[at:after]
        at = after


def _decode(name: Hash, location: BlobLocation, stored: memoryview, base: bytes | None) -> bytes:
    try:
        content = decompress(location.codec, stored, location.size, base)
    except FormatError as error:
        raise FormatError(f"blob {format_hash(name)} in {location.key}: {error.message}") from error
    except IntegrityError as error:
        raise IntegrityError(f"blob {format_hash(name)} in {location.key}: {error.message}") from error
    if hash_bytes(content) != name:
        raise IntegrityError(f"blob {format_hash(name)} in {location.key}: the content has another hash")
    return content
