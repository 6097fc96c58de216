"""The pack format: encoder and decoder of many blobs in one object. Specified in ``docs/formats/pack.md``.

Pure except for `read_index`, which reads the end of an object. A pack may come from a stranger: nothing here allocates
more than the index and one record, and only `FormatError` and `IntegrityError` come out (I12).
"""

from __future__ import annotations

import struct

from blake3 import blake3

from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import HASH_BYTES, Hash
from holdfast.store.blobs._byte_chunks import PieceReader
from holdfast.store.codecs.compression import DELTA, MAX_SIZE, RAW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.store.codecs.compression import Encoded
    from holdfast.store.objects.object_store import ObjectStore

MAGIC = b"HFPACK"
END_MAGIC = b"HFPE"
VERSION = 1
HEADER = MAGIC + VERSION.to_bytes(2, "little")
MARKER = b"\xff"
MAX_RECORDS = 1 << 20

_HEAD = struct.Struct("<BII16s")
_DELTA_HEAD = struct.Struct("<BII16s16s")
_FOOTER = struct.Struct("<IQ16s4s")
_TAIL_BYTES = 64 << 10


class Record(NamedTuple):
    """One blob in a pack."""

    hash: Hash
    codec: int
    size: int
    """Bytes of content."""
    offset: int
    """Where the stored bytes begin, from the pack's start."""
    length: int
    """Stored bytes."""
    base: Hash | None


class PackEncoder:
    """Turns records into a pack's bytes, in pieces to be written one after the other; keeps only the index.

    Begin with what `begin` returns, then any number of `add`, then `end`.
    """

    __slots__ = ("_heads", "count", "size")

    def __init__(self) -> None:
        self._heads: list[bytes] = []
        self.count = 0
        self.size = 0
        """Bytes of the pack so far."""

    def begin(self) -> bytes:
        """The pack's header."""
        self.size = len(HEADER)
        return HEADER

    def add(self, hash: Hash, size: int, encoded: Encoded, base: Hash | None) -> tuple[bytes, int]:  # noqa: A002 - the field's own name
        """The head that goes before ``encoded.data``, and the offset at which those stored bytes then are.

        ``base`` is given if and only if the codec is `DELTA`. The caller adds no hash twice and stops at `MAX_RECORDS`.
        """
        length = len(encoded.data)
        head = encode_head(hash, encoded.codec, size, length, base)
        self._heads.append(head)
        self.count += 1
        offset = self.size + len(head)
        self.size = offset + length
        return head, offset

    def end(self) -> bytes:
        """Marker, index and footer."""
        index = b"".join(self._heads)
        tail = MARKER + index + _footer(index, self.count)
        self.size += len(tail)
        return tail


def encode_head(hash: Hash, codec: int, size: int, length: int, base: Hash | None) -> bytes:  # noqa: A002 - the field's own name
    """The head of a record, before its stored bytes, and again in the index."""
    if codec != DELTA:
        return _HEAD.pack(codec, size, length, hash)
    assert base is not None, "a delta has a base"
    return _DELTA_HEAD.pack(codec, size, length, hash, base)


def _footer(index: bytes, count: int) -> bytes:
    return _FOOTER.pack(count, len(index), _checksum(index, count), END_MAGIC)


def _checksum(index: bytes, count: int) -> bytes:
    state = blake3(HEADER)
    state.update(index)
    state.update(struct.pack("<IQ", count, len(index)))
    return state.digest(HASH_BYTES)


def _check_header(header: bytes) -> None:
    if header[: len(MAGIC)] != MAGIC:
        raise FormatError("magic: this is no pack")
    version = int.from_bytes(header[len(MAGIC) : len(HEADER)], "little")
    if len(header) < len(HEADER) or version != VERSION:
        raise FormatError(f"version: {version} is not {VERSION}: a newer Holdfast may have written this pack")


def _parse_head(data: bytes, at: int, offset: int) -> tuple[Record, int]:
    """The record whose head is at ``data[at:]`` and would begin at ``offset`` in the pack, and the head's length."""
    codec = data[at]
    layout = _DELTA_HEAD if codec == DELTA else _HEAD
    if codec > DELTA:
        raise FormatError(f"codec: {codec} is none that a blob in a pack may have")
    try:
        _, size, length, name, *rest = layout.unpack_from(data, at)
    except struct.error:
        raise FormatError("head: a record's head is cut short") from None
    base = Hash(rest[0]) if rest else None
    if size > MAX_SIZE:
        raise FormatError(f"size: {size} bytes of content are more than {MAX_SIZE}")
    if length > size or (length == size) != (codec == RAW):
        raise FormatError(f"length: {length} stored bytes cannot be {size} bytes of content in codec {codec}")
    if base == name:
        raise FormatError("base: a delta against itself")
    return Record(Hash(name), codec, size, offset + layout.size, length, base), layout.size


def parse_index(index: bytes, count: int, footer_checksum: bytes) -> list[Record]:
    """The records that an index lists, checked in every way that the index alone allows. In the order of the pack."""
    if _checksum(index, count) != footer_checksum:
        raise IntegrityError("index: the checksum is wrong")
    records: list[Record] = []
    seen: set[Hash] = set()
    at = 0
    offset = len(HEADER)
    while at < len(index):
        record, head_bytes = _parse_head(index, at, offset)
        at += head_bytes
        offset = record.offset + record.length
        if record.hash in seen:
            raise FormatError(f"hash: {record.hash.hex()} is in the pack twice")
        seen.add(record.hash)
        records.append(record)
    if len(records) != count:
        raise FormatError(f"count: {count} is not the number of records, {len(records)}")
    return records


def _parse_footer(footer: bytes) -> tuple[int, int, bytes]:
    """Count, index length and checksum."""
    count, index_bytes, checksum, magic = _FOOTER.unpack(footer)
    if magic != END_MAGIC:
        raise FormatError("footer: the pack does not end as one: it was cut short or overwritten")
    if count > MAX_RECORDS:
        raise FormatError(f"count: {count} records are more than {MAX_RECORDS}")
    if not count * _HEAD.size <= index_bytes <= count * _DELTA_HEAD.size:
        raise FormatError(f"index length: {index_bytes} bytes cannot be {count} records")
    return count, index_bytes, checksum


def read_index(objects: ObjectStore, key: str) -> list[Record]:
    """The records of the pack at ``key``, in the order of the pack, from its header, index and footer alone.

    Raises `NotFoundError` if there is no such object, `FormatError` or `IntegrityError` if it is no complete pack.
    Memory is bounded by `MAX_RECORDS`. The stored bytes themselves are verified only when they are decoded.
    """
    size = objects.size(key)
    if size is not None and size < len(HEADER) + len(MARKER) + _FOOTER.size:
        raise FormatError(f"{key}: {size} bytes are too few for a pack")
    try:
        _check_header(objects.get(key, 0, len(HEADER)))
        assert size is not None, "get would have raised"
        begin = max(size - _TAIL_BYTES, 0)
        tail = objects.get(key, begin, size - begin)
        count, index_bytes, checksum = _parse_footer(tail[-_FOOTER.size :])
        marker_at = size - _FOOTER.size - index_bytes - len(MARKER)
        if marker_at < len(HEADER):
            raise FormatError(f"index length: {index_bytes} bytes do not fit in a pack of {size}")
        if marker_at >= begin:
            rest = tail[marker_at - begin : -_FOOTER.size]
        else:
            rest = objects.get(key, marker_at, len(MARKER) + index_bytes)
        if rest[:1] != MARKER:
            raise FormatError("marker: there is none where the index begins")
        records = parse_index(rest[1:], count, checksum)
        end = records[-1].offset + records[-1].length if records else len(HEADER)
        if end != marker_at:
            raise FormatError(f"size: records end at {end}, but the index begins at {marker_at}")
    except FormatError as error:
        raise FormatError(f"pack {key}: {error.message}") from error
    except IntegrityError as error:
        raise IntegrityError(f"pack {key}: {error.message}") from error
    return records


def read_sequence(pieces: Iterable[bytes]) -> Iterator[tuple[Record, bytes]]:
    """Each record and its stored bytes, from a pack that arrives in ``pieces`` of any size.

    Use it up to the end: only there it is known that the pack was whole (index equal to the records, footer, nothing
    after it). Raises `FormatError` or `IntegrityError` at the first thing that is wrong.
    """
    source = PieceReader(pieces)
    _check_header(source.take(len(HEADER)))
    offset = len(HEADER)
    heads: list[bytes] = []
    seen: set[Hash] = set()
    while (first := source.take(1)) != MARKER:
        if len(heads) == MAX_RECORDS:
            raise FormatError(f"count: more than {MAX_RECORDS} records")
        head = first + source.take((_DELTA_HEAD if first[0] == DELTA else _HEAD).size - 1)
        record, _ = _parse_head(head, 0, offset)
        if record.hash in seen:
            raise FormatError(f"hash: {record.hash.hex()} is in the pack twice")
        seen.add(record.hash)
        heads.append(head)
        offset = record.offset + record.length
        yield record, source.take(record.length)
    for at in range(0, len(heads), 4096):
        expected = b"".join(heads[at : at + 4096])
        if source.take(len(expected)) != expected:
            raise IntegrityError("index: it does not repeat the heads of the records")
    if source.take(_FOOTER.size) != _footer(b"".join(heads), len(heads)):
        raise IntegrityError("footer: count, length, checksum or magic is wrong")
    if not source.at_end():
        raise FormatError("footer: bytes follow it")


def encode_pack(records: Sequence[tuple[Hash, int, Encoded, Hash | None]]) -> bytes:
    """A whole pack in memory, of records as `PackEncoder.add` takes them: for a few records and for tests."""
    encoder = PackEncoder()
    parts = [encoder.begin()]
    for name, size, encoded, base in records:
        parts += (encoder.add(name, size, encoded, base)[0], encoded.data)
    parts.append(encoder.end())
    return b"".join(parts)
