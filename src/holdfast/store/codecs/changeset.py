"""The codec of changesets: a checkpoint's changes against its parent. Pure: values in, bytes out.

Four bytes of magic and version, the length of the columns (8 bytes, little-endian), the hash of all that follows it (16
bytes), then the columns as one MessagePack array, compressed with zstd (docs/formats/changeset.md).
"""

from __future__ import annotations

from functools import partial
from itertools import compress
from operator import eq
from struct import Struct

from holdfast.model.entries import Change
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.model.ids import HASH_BYTES, hash_bytes
from holdfast.store.codecs.columns import (
    check_foreign_paths,
    check_hashes,
    check_modes,
    check_paths,
    check_prefix,
    check_sizes,
    join_paths,
    make_entries,
    pack_modes,
    split_paths,
    unpack_modes,
)
from holdfast.store.codecs.compression import decompressor
from holdfast.store.codecs.messagepack import Unpacker, array_head, binary, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.model.entries import Entry

MAGIC = b"HFC"
VERSION = 1
_HEADER = Struct(f"<3sBQ{HASH_BYTES}s")

MAX_COLUMN_BYTES = 1 << 30
"""The most that the columns may take before compression: more than six million changes of usual paths."""

_BEFORE, _AFTER = 1, 2

# As in `columns`: a NamedTuple's own constructor is a Python function, this one runs in C.
_new_change = cast(
    "Callable[[tuple[bytes, Entry | None, Entry | None]], Change]",
    partial(tuple.__new__, Change),  # pyright: ignore[reportUnknownMemberType]
)

_Side = tuple[bytes, list[int], list[int]]
_Fields = tuple[bytes, bytes, bytes, _Side, _Side]


def encode_changeset(changes: Sequence[Change]) -> bytes:
    """``changes``, sorted by path, as bytes.

    Raises `FormatError` if they are not in order, have an invalid entry, or are too many (`MAX_COLUMN_BYTES`), and
    `EscapeError` for a forbidden path.
    """
    paths = [change[0] for change in changes]
    check_paths(paths)
    kinds = bytes([_kind(change) for change in changes])
    prefix, rest = join_paths(paths)
    before = _encode_side([change[1] for change in changes])
    after = _encode_side([change[2] for change in changes])
    columns = b"".join((array_head(5), binary(prefix), binary(rest), binary(kinds), *before, *after))
    if len(columns) > MAX_COLUMN_BYTES:
        raise FormatError(f"changeset: {len(changes)} changes are too many for one changeset")
    packed = _compress(columns) if changes else _uncompressed(columns)
    return _HEADER.pack(MAGIC, VERSION, len(columns), hash_bytes(packed)) + packed


def decode_changeset(data: bytes) -> list[Change]:
    """The inverse of `encode_changeset`, for bytes that anyone may have made.

    Raises `IntegrityError` if the bytes are damaged, and `FormatError`, which names the field, for anything that
    `encode_changeset` does not write. Memory is bounded by `MAX_COLUMN_BYTES` and by the length that the header states.
    """
    columns = _unpack(data)
    try:
        prefix, rest, kinds, before, after = _columns(columns)
    except FormatError as error:
        raise FormatError(f"changeset: field 'columns': {error.message}") from None
    try:
        if kinds.translate(None, b"\1\2\3"):
            raise FormatError("field 'kinds': a change that has neither side, or an unknown one")
        if len(kinds) > 1 and len(prefix) * len(kinds) + len(rest) > MAX_COLUMN_BYTES:
            raise FormatError(f"field 'paths': together they are longer than {MAX_COLUMN_BYTES} bytes")
        paths = split_paths(prefix, rest, len(kinds))
        check_foreign_paths(paths)
        check_prefix(paths, prefix)
        olds = _entries(before, [kind & _BEFORE for kind in kinds])
        news = _entries(after, [kind & _AFTER for kind in kinds])
    except FormatError as error:
        raise FormatError(f"changeset: {error.message}") from None
    if any(map(eq, olds, news)):
        raise FormatError("changeset: field 'kinds': a change that changes nothing")
    return list(map(_new_change, zip(paths, olds, news, strict=True)))


def _compress(columns: bytes) -> bytes:
    from holdfast.store.codecs.zstandard import zstandard

    return zstandard.ZstdCompressor(level=3).compress(columns)


def _uncompressed(columns: bytes) -> bytes:
    """The frame that `_compress` gives for less than 256 bytes of which nothing repeats (RFC 8878, 3.1.1), at once."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes((len(columns),)) + (len(columns) << 3 | 1).to_bytes(3, "little") + columns


def _unpack(data: bytes) -> bytes:
    from holdfast.store.codecs.zstandard import zstandard

    if data[:3] != MAGIC:
        raise FormatError("changeset: field 'magic': this is no changeset")
    if len(data) < _HEADER.size:
        raise IntegrityError("changeset: it is cut short")
    _, version, length, checksum = cast("tuple[bytes, int, int, bytes]", _HEADER.unpack_from(data))
    if version != VERSION:
        raise FormatError(f"changeset: field 'version': {version}, and only {VERSION} is known here")
    packed = data[_HEADER.size :]
    if hash_bytes(packed) != checksum:
        raise IntegrityError("changeset: field 'checksum': the bytes are damaged")
    if length > MAX_COLUMN_BYTES:
        raise FormatError(f"changeset: field 'length': {length} is over {MAX_COLUMN_BYTES}")
    try:
        # The decompressor would allocate the frame's declared size, whatever limit is given.
        if zstandard.frame_content_size(packed) != length:
            raise FormatError("changeset: field 'length': the compressed columns have another")
        return decompressor().decompress(packed, max_output_size=length, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise FormatError(f"changeset: field 'columns': {error}") from None


def _kind(change: Change) -> int:
    if change[1] == change[2]:
        raise FormatError("changeset: a change that changes nothing")
    return (_BEFORE if change[1] is not None else 0) | (_AFTER if change[2] is not None else 0)


def _encode_side(sides: Sequence[Entry | None]) -> tuple[bytes, ...]:
    entries = [entry for entry in sides if entry is not None]
    hashes = b"".join([entry[0] for entry in entries])
    sizes = [entry[1] for entry in entries]
    modes = pack_modes([entry[2] for entry in entries])
    check_sizes(sizes, check_hashes(hashes), "sizes")
    check_modes(modes, len(sizes))
    return array_head(3), binary(hashes), numbers(sizes), numbers(modes)


def _entries(side: _Side, there: Sequence[int]) -> list[Entry | None]:
    """The entries of one side, None where the change has none."""
    hashes, sizes, modes = side
    count = check_hashes(hashes)
    if count != len(there) - there.count(0):
        raise FormatError(f"field 'hashes': {count} for {len(there) - there.count(0)} changes")
    check_sizes(sizes, count, "sizes")
    check_modes(modes, count)
    entries = make_entries(hashes, sizes, unpack_modes(modes))
    if count == len(there):
        return [*entries]
    result: list[Entry | None] = [None] * len(there)
    for at, entry in zip(compress(range(len(there)), there), entries, strict=True):
        result[at] = entry
    return result


def _columns(data: bytes) -> _Fields:
    reader = Unpacker(data)
    reader.array(5)
    fields = (reader.binary(), reader.binary(), reader.binary(), _side(reader), _side(reader))
    reader.end()
    return fields


def _side(reader: Unpacker) -> _Side:
    reader.array(3)
    return reader.binary(), reader.numbers(), reader.numbers()
