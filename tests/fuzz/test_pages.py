"""I12: whatever bytes come in, the decoders of pages and changesets answer with a value or with a typed error."""

from __future__ import annotations

import struct

import msgspec
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.entries import Change, file_entry, symlink_entry
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.ids import hash_bytes
from holdfast.store.codecs.changeset import decode_changeset, encode_changeset
from holdfast.store.manifests.page_codec import (
    Child,
    Leaf,
    decode_known_page,
    decode_page,
    encode_inner,
    encode_leaf,
    encode_page,
)

ONE = hash_bytes(b"1")
LEAF = encode_leaf(
    [b"src/%03d" % at for at in range(40)],
    [symlink_entry(ONE, at) if at % 7 == 0 else file_entry(ONE, at * 1000, 0o644) for at in range(40)],
)
INNER = encode_inner(1, [b"src/%03d" % at for at in range(40)], [Child(ONE, at + 1, at) for at in range(40)])
CHANGESET = encode_changeset(
    [
        Change(b"a/%03d" % at, None, file_entry(ONE, at, 0o644))
        if at % 2
        else Change(b"a/%03d" % at, symlink_entry(ONE, at), None)
        for at in range(40)
    ]
)
NUMBERS = st.integers(-1, 300) | st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from([0o100644, 0o120000])
BYTES = st.binary(max_size=40) | st.lists(st.sampled_from([b"a", b"/", b"\0", b".", b"b", b"..", b".git"])).map(
    b"".join
)
HASHES = st.integers(0, 6).map(lambda count: bytes(16 * count)) | BYTES
VALUES = st.recursive(
    st.none() | NUMBERS | BYTES | st.text(max_size=4), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """``data`` with a few bytes changed, cut out or put in."""

    def change(edits: list[tuple[int, int, bytes]]) -> bytes:
        out = bytearray(data)
        for at, length, new in edits:
            out[at : at + length] = new
        return bytes(out)

    edit = st.tuples(st.integers(0, len(data)), st.integers(0, 20), st.binary(max_size=6))
    return st.lists(edit, min_size=1, max_size=3).map(change)


def check_page(data: bytes) -> None:
    for decode in (decode_page, decode_known_page):
        try:
            page = decode(data)
        except FormatError:
            continue
        assert len(page.keys) == len(page.entries() if isinstance(page, Leaf) else page.children())
        if decode is decode_page:
            assert page.keys == sorted(set(page.keys))
            assert decode_page(encode_page(page)).keys == page.keys


def check_changeset(data: bytes) -> None:
    try:
        changes = decode_changeset(data)
    except (FormatError, IntegrityError):
        return
    assert decode_changeset(encode_changeset(changes)) == changes


@settings(max_examples=300, deadline=None)
@given(
    mutated(LEAF) | mutated(INNER) | st.binary(max_size=60).map(lambda rest: b"HFP\1" + rest) | st.binary(max_size=60)
)
def test_damaged_pages(data: bytes) -> None:
    check_page(data)


@settings(max_examples=300, deadline=None)
@example((1, b"\0", b"", bytes(16), [1], [0]))
@given(
    st.tuples(st.integers(-1, 17), BYTES, BYTES, HASHES, st.lists(NUMBERS, max_size=6), st.lists(NUMBERS, max_size=6))
    | st.lists(VALUES, min_size=5, max_size=7)
)
def test_pages_of_any_columns(columns: object) -> None:
    check_page(b"HFP\1" + msgspec.msgpack.encode(columns))


@settings(max_examples=200, deadline=None)
@given(mutated(CHANGESET) | st.binary(max_size=80).map(lambda rest: b"HFC\1" + rest))
def test_damaged_changesets(data: bytes) -> None:
    check_changeset(data)


SIDES = st.tuples(HASHES, st.lists(NUMBERS, max_size=4), st.lists(NUMBERS, max_size=4))


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(BYTES, BYTES, BYTES | st.lists(st.integers(1, 3), max_size=4).map(bytes), SIDES, SIDES).map(
        msgspec.msgpack.encode
    )
    | mutated(zstandard.ZstdDecompressor().decompress(CHANGESET[28:]))
)
def test_changesets_of_any_columns(columns: bytes) -> None:
    packed = zstandard.ZstdCompressor().compress(columns)
    check_changeset(struct.pack("<3sBQ16s", b"HFC", 1, len(columns), hash_bytes(packed)) + packed)
