"""I12: whatever bytes a bundle consists of, reading it ends with a typed error or with all rules kept."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.upkeep._bundle_check import BundleChecker, PageSpool
from holdfast.engine.upkeep._bundle_format import (
    BundleHead,
    BundleReader,
    BundleWriter,
    CheckpointRecord,
    LargeItem,
    decode_head,
    decode_member,
    encode_head,
    encode_member,
)
from holdfast.model.entries import file_entry
from holdfast.model.errors import FormatError, IntegrityError
from holdfast.model.ids import Hash, Hasher, hash_bytes
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

ID = "0123456789abcdef01234567"


def bundle(states: Mapping[str, dict[bytes, bytes]]) -> bytes:
    """A good bundle of a row of checkpoints."""
    pages: dict[Hash, bytes] = {}
    contents: dict[Hash, bytes] = {}
    records: list[CheckpointRecord] = []
    for identity, state in states.items():
        contents |= {hash_bytes(data): data for data in state.values()}
        entries = ((path, file_entry(hash_bytes(data), len(data), 0o644)) for path, data in sorted(state.items()))
        built = manifest.build(entries)
        pages |= built.new_pages
        parent = records[-1].id if records else None
        records.append(
            CheckpointRecord(identity, parent, built.root, "auto", ["a", "b"], 5, "me", "", "", [(b"sock", "socket")])
        )
    small = {name: data for name, data in contents.items() if len(data) <= 1 << 20}
    ordered = sorted(pages.items(), key=lambda item: manifest.totals(Spooled(pages), item[0])[0])
    out = io.BytesIO()
    writer = BundleWriter(out)
    sizes = (len(pages), sum(map(len, pages.values())), len(contents), sum(map(len, contents.values())))
    writer.head(BundleHead(records, [records[-1].id], *sizes))
    writer.packs("pages", ordered)
    writer.packs("blobs", small.items())
    for name, data in contents.items():
        if name not in small:
            writer.large(name, len(data), [data])
    writer.end()
    return out.getvalue()


class Spooled:
    def __init__(self, pages: dict[Hash, bytes]) -> None:
        self._pages = pages

    def read(self, hashes: Any, /) -> list[bytes]:
        return [self._pages[name] for name in hashes]


def read(data: bytes) -> int:
    """Read and check all of a bundle as an import does; the number of its items."""
    reader = BundleReader(io.BytesIO(data))
    checker = BundleChecker(reader.head(), PageSpool(io.BytesIO()))
    checked = False
    count = 0
    for item in reader.items():
        count += 1
        if not isinstance(item, LargeItem) and item.kind == "pages":
            checker.page(item.hash, item.data)
            continue
        if not checked:
            checker.manifests()
            checked = True
        if isinstance(item, LargeItem):
            checker.content(item.hash, item.size)
            state = Hasher()
            for piece in item.pieces:
                state.update(piece)
            if state.hash() != item.hash:
                raise IntegrityError("another hash")
        else:
            checker.content(item.hash, len(item.data))
    if not checked:
        checker.manifests()
    checker.complete()
    return count


MANY = {b"%03d/%d" % (n // 10, n): b"%d" % (n % 7) for n in range(400)}
GOOD = bundle({ID: MANY, "a" * 24: MANY | {b"new": b"x"}, "b" * 24: {b"big": b"z" * ((1 << 20) + 5)}})
TAR = zstandard.ZstdDecompressor().decompressobj().decompress(GOOD)
SMALL = bundle({ID: {b"a": b"1", b"b/c": b"2"}})
SMALL_TAR = zstandard.ZstdDecompressor().decompressobj().decompress(SMALL)


def packed(tar: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(tar)


def refused(data: bytes) -> bool:
    """True if reading ends with a typed error; any other exception goes on and fails the test."""
    try:
        read(data)
    except (FormatError, IntegrityError):
        return True
    return False


def test_the_untouched_bundles_are_good() -> None:
    assert read(GOOD) > 10
    assert read(packed(TAR)) == read(GOOD)
    assert read(SMALL) == 3


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SMALL) - 1), st.integers(1, 255))
def test_no_flipped_byte_of_the_file_goes_unnoticed(at: int, flip: int) -> None:
    # What a frame's header says of unused bits may change without harm; the content may not.
    changed = bytearray(SMALL)
    changed[at] ^= flip
    if not refused(bytes(changed)):
        assert zstandard.ZstdDecompressor().decompressobj().decompress(bytes(changed)) == SMALL_TAR


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SMALL_TAR) - 1), st.integers(1, 255))
def test_no_flipped_byte_of_the_content_goes_unnoticed(at: int, flip: int) -> None:
    changed = bytearray(SMALL_TAR)
    changed[at] ^= flip
    assert refused(packed(bytes(changed)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(TAR) - 1), st.integers(0, 2000), st.binary(max_size=600))
def test_splices_are_refused(at: int, gone: int, put: bytes) -> None:
    changed = TAR[:at] + put + TAR[at + gone :]
    assert refused(packed(changed)) or changed == TAR


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=3000))
def test_noise_is_refused(data: bytes) -> None:
    assert refused(data)
    assert refused(packed(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=512, max_size=512) | st.tuples(st.binary(max_size=100), st.integers(0, 1 << 62)))
def test_a_member_header_is_read_as_it_is_written_or_refused(block: bytes | tuple[bytes, int]) -> None:
    if isinstance(block, bytes):
        try:
            assert encode_member(*decode_member(block)) == block
        except FormatError:
            pass
    elif b"\0" not in block[0]:
        assert decode_member(encode_member(*block)) == block


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)
FIELDS = st.tuples(
    st.just(ID) | VALUES,
    st.none() | st.just(ID) | VALUES,
    st.just(bytes(16)) | VALUES,
    st.sampled_from(["auto", "import", "?"]) | VALUES,
    st.text(max_size=5) | VALUES,
    st.integers(-5, 1 << 54) | VALUES,
    st.text(max_size=5) | VALUES,
    st.text(max_size=5),
    st.text(max_size=5),
    st.lists(st.tuples(st.binary(max_size=4), st.text(max_size=4)), max_size=3) | VALUES,
)


@settings(max_examples=300, deadline=None)
@given(
    st.tuples(st.lists(FIELDS, max_size=3) | VALUES, st.just([ID]) | VALUES, *[st.integers(-2, 1 << 60) | VALUES] * 4)
    | VALUES
)
def test_any_head_with_a_right_checksum_is_read_as_it_was_written_or_refused(value: Any) -> None:
    rest = msgspec.msgpack.encode(value)
    data = b"HFBUNDLE\x01\x00" + hash_bytes(rest) + rest
    try:
        head = decode_head(data)
    except FormatError:
        return
    assert decode_head(encode_head(head)) == head


def test_a_head_nested_deep_is_refused() -> None:
    rest = b"\x91" * 100_000
    data = b"HFBUNDLE\x01\x00" + hash_bytes(rest) + rest
    try:
        decode_head(data)
    except FormatError:
        return
    raise AssertionError("taken")
