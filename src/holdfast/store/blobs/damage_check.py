"""Reads complete objects and reports damage, without a catalog."""

from __future__ import annotations

from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hash, format_hash, hash_bytes
from holdfast.store.blobs import _large_format as large_format
from holdfast.store.blobs.pack_format import HEADER, encode_head, read_index
from holdfast.store.codecs.compression import decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.store.blobs.pack_format import Record
    from holdfast.store.objects.object_store import ObjectStore

_RANGE_BYTES = 4 << 20


class Damage(NamedTuple):
    """A damaged part of an object."""

    key: str
    hash: Hash | None
    """The blob that cannot be read; None if it is the object as a whole."""
    message: str
    is_delta: bool = False
    """Whether the blob can be read only with another one."""


def check_pack(objects: ObjectStore, key: str, read: Callable[[Hash], bytes]) -> Iterator[Damage]:
    """Read every byte of the pack at ``key`` and yield damaged parts; none if it is intact.

    ``read`` returns the content of a delta's base outside of this pack, or raises `IntegrityError`. Raises
    `StorageError` if the store cannot be reached.
    """
    try:
        records = read_index(objects, key)
    except (IntegrityError, NotFoundError) as error:
        yield Damage(key, None, error.message)
        return
    here = {record.hash: record for record in records}

    def content(record: Record, stored: bytes | memoryview) -> bytes:
        base = None
        if record.base is not None:
            inside = here.get(record.base)
            if inside is None:
                base = read(record.base)
            elif inside.base is None:
                base = content(inside, objects.get(key, inside.offset, inside.length))
        found = decompress(record.codec, stored, record.size, base)
        if hash_bytes(found) != record.hash:
            raise IntegrityError("the content has another hash")
        return found

    for start, part in _ranges(records):
        end = part[-1].offset + part[-1].length
        try:
            data = memoryview(objects.get(key, start, end - start))
        except (IntegrityError, NotFoundError) as error:
            yield Damage(key, None, error.message)
            return
        for record in part:
            head = encode_head(record.hash, record.codec, record.size, record.length, record.base)
            at = record.offset - start
            try:
                if bytes(data[at - len(head) : at]) != head:
                    raise IntegrityError("its head is not as the index says")
                content(record, data[at : at + record.length])
            except (IntegrityError, NotFoundError) as error:
                yield Damage(
                    key,
                    record.hash,
                    f"blob {format_hash(record.hash)} in {key}: {error.message}",
                    record.base is not None,
                )


def _ranges(records: list[Record]) -> Iterator[tuple[int, list[Record]]]:
    """Runs of records that are read at once, each with the offset where the first one's head begins."""
    start = len(HEADER)
    part: list[Record] = []
    for record in records:
        if part and record.offset + record.length - start > _RANGE_BYTES:
            yield start, part
            start = part[-1].offset + part[-1].length
            part = []
        part.append(record)
    if part:
        yield start, part


def check_large(objects: ObjectStore, key: str, hash: Hash, size: int | None = None) -> Damage | None:  # noqa: A002 - the field's own name
    """Read every byte of the large blob at ``key``; None if it is the content that has this hash (and, if given,
    size).
    """
    try:
        for _ in large_format.decode(objects.stream(key), hash, size):
            pass
    except (IntegrityError, NotFoundError) as error:
        return Damage(key, hash, f"blob {format_hash(hash)} in {key}: {error.message}")
    return None
