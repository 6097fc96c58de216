"""The bytes of changesets, and what their decoder refuses."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
import zstandard

from holdfast.model.entries import Change, file_entry, symlink_entry
from holdfast.model.errors import EscapeError, FormatError, IntegrityError
from holdfast.model.ids import hash_bytes
from holdfast.store.codecs.changeset import MAX_COLUMN_BYTES, decode_changeset, encode_changeset

ONE, TWO = hash_bytes(b"1"), hash_bytes(b"2")
CHANGES = [
    Change(b"dir/added", None, file_entry(ONE, 1, 0o644)),
    Change(b"dir/deleted", symlink_entry(TWO, 2), None),
    Change(b"dir/mode", file_entry(ONE, 1, 0o644), file_entry(ONE, 1, 0o755)),
    Change(b"dir/type\xff", file_entry(ONE, 1, 0o644), symlink_entry(TWO, 2)),
]
SIDE = (ONE, [1], [0o100644, 1])
NONE = (b"", [], [])


def pack(columns: bytes, *, version: int = 1, length: int | None = None, checksum: bytes | None = None) -> bytes:
    packed = zstandard.ZstdCompressor().compress(columns)
    length = len(columns) if length is None else length
    return struct.pack("<3sBQ16s", b"HFC", version, length, checksum or hash_bytes(packed)) + packed


def columns(*values: Any) -> bytes:
    return pack(msgspec.msgpack.encode(values))


@pytest.mark.parametrize("changes", [[], CHANGES[:1], CHANGES])
def test_what_goes_in_comes_out(changes: list[Change]) -> None:
    assert decode_changeset(encode_changeset(changes)) == changes


def test_a_changeset_is_the_documented_columns() -> None:
    before = (TWO + ONE + ONE, [2, 1, 1], [0o120000, 1, 0o100644, 2])
    after = (ONE + ONE + TWO, [1, 1, 2], [0o100644, 1, 0o100755, 1, 0o120000, 1])
    data = columns(b"dir/", b"added\0deleted\0mode\0type\xff", bytes([2, 1, 3, 3]), before, after)
    assert decode_changeset(data) == CHANGES


BAD = {
    "nothing": (b"", FormatError, "magic"),
    "another format": (b"HFP\1" + bytes(40), FormatError, "magic"),
    "a header cut short": (b"HFC\1" + bytes(10), IntegrityError, "cut short"),
    "a newer version": (pack(b"", version=2), FormatError, "version"),
    "damaged bytes": (pack(b"x", checksum=bytes(16)), IntegrityError, "checksum"),
    "a length that is another": (pack(b"x", length=2), FormatError, "length"),
    "a length without bound": (pack(b"x", length=MAX_COLUMN_BYTES + 1), FormatError, "length"),
    "no columns": (pack(b"x"), FormatError, "columns"),
    "a kind of change that is none": (columns(b"a", b"", b"\0", NONE, NONE), FormatError, "kinds"),
    "an unknown kind": (columns(b"a", b"", b"\4", NONE, NONE), FormatError, "kinds"),
    "a side too few": (columns(b"a", b"", b"\2", NONE, NONE), FormatError, "hashes"),
    "a side too many": (columns(b"a", b"", b"\2", SIDE, SIDE), FormatError, "hashes"),
    "a change that changes nothing": (columns(b"a", b"", b"\3", SIDE, SIDE), FormatError, "changes nothing"),
    "a way out": (columns(b"../a", b"", b"\2", NONE, SIDE), FormatError, "paths"),
    "more paths than kinds": (columns(b"", b"a\0b", b"\2", NONE, SIDE), FormatError, "paths"),
    "a path twice": (columns(b"a", b"\0", b"\2\1", SIDE, SIDE), FormatError, "paths"),
    "a short prefix": (columns(b"", b"aa\0ab", b"\2\1", SIDE, SIDE), FormatError, "prefix"),
    "a set-id mode": (columns(b"a", b"", b"\2", NONE, (ONE, [1], [0o104755, 1])), FormatError, "modes"),
    "a negative size": (columns(b"a", b"", b"\2", NONE, (ONE, [-1], [0o100644, 1])), FormatError, "columns"),
    "half a hash": (columns(b"a", b"", b"\2", NONE, (ONE[:5], [1], [0o100644, 1])), FormatError, "hashes"),
    "a prefix that unfolds": (
        columns(b"a" * 300_000, b"\0" * 9999, b"\2" * 10_000, NONE, SIDE), FormatError, "paths",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_encoder_writes_is_refused_by_name(name: str) -> None:
    data, error, field = BAD[name]
    with pytest.raises(error, match=field):
        decode_changeset(data)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    data = struct.pack("<3sBQ16s", b"HFC", 1, 1000, hash_bytes(packed)) + packed
    with pytest.raises(FormatError, match="length"):
        decode_changeset(data)


def test_encoding_refuses_what_decoding_would() -> None:
    with pytest.raises(FormatError, match="ascending"):
        encode_changeset(CHANGES[::-1])
    with pytest.raises(FormatError, match="changes nothing"):
        encode_changeset([Change(b"a", None, None)])
    with pytest.raises(EscapeError):
        encode_changeset([CHANGES[0]._replace(path=b"../a")])
    with pytest.raises(FormatError, match="modes"):
        encode_changeset([Change(b"a", None, file_entry(ONE, 1, 0)._replace(mode=0o040755))])


def test_an_empty_one_is_what_the_compressor_makes_of_it() -> None:
    data = encode_changeset([])
    packed = data[-len(data) + data.index(b"\x28\xb5\x2f\xfd") :]
    columns = zstandard.ZstdDecompressor().decompress(packed)
    assert packed == zstandard.ZstdCompressor(level=3).compress(columns)
    assert decode_changeset(data) == []
