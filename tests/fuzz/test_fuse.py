"""I12: whatever a kernel or a guest says over FUSE is decoded, or refused with a typed error, in bounded memory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.wire.fuse import request_bodies
from holdfast.wire.fuse.negotiation import Terms, Wishes, decode_offer, encode_terms, negotiate
from holdfast.wire.fuse.protocol_constants import NAME_MAX, OFFSET_MAX, Init, Opcode
from holdfast.wire.fuse.request_bodies import Offer
from holdfast.wire.fuse.request_errors import errno_of
from holdfast.wire.fuse.requests import Decoder, decode_header

RECORDED = [
    bytes.fromhex(line[2:])
    for path in sorted((Path(__file__).parents[1] / "protocol/fuse/recorded").glob("*/*.txt"))
    for line in path.read_text().splitlines()
    if line.startswith(">")
]
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, OFFSET_MAX, OFFSET_MAX + 1, (1 << 64) - 1)


def terms(flags: Init) -> Terms:
    agreed = negotiate(Offer(7, 45, 0, Init((1 << 43) - 1)), Wishes(flags, 1 << 16))
    assert agreed is not None
    return agreed


AGREED = [terms(flags) for flags in (Init(0), Wishes().flags, Init.EXPORT_SUPPORT | Init.SETXATTR_EXT)]
DECODERS = [Decoder(agreed) for agreed in AGREED]
MOST_READ = max(agreed.max_read for agreed in AGREED)
DECODER = st.sampled_from(DECODERS)


def check_name(name: bytes) -> None:
    assert 0 < len(name) <= NAME_MAX
    assert b"/" not in name
    assert b"\0" not in name


def check(frame: bytes, decoder: Decoder) -> None:
    """Decodes ``frame``; what comes of it is as promised."""
    try:
        header = decode_header(memoryview(frame))
        body = decoder.decode(header, memoryview(frame))
    except FormatError as error:
        assert errno_of(error) > 0
        assert len(error.message) < 2000
        return
    match body:
        case request_bodies.Name(name):
            if header.opcode != Opcode.REMOVEXATTR:
                check_name(name)
        case request_bodies.Rename():
            check_name(body.name)
            check_name(body.new_name)
        case (
            request_bodies.MakeNode()
            | request_bodies.MakeDirectory()
            | request_bodies.Symlink()
            | request_bodies.Link()
        ):
            check_name(body.name)
        case request_bodies.Create():
            assert (body.name == b"") == (header.opcode == Opcode.TMPFILE)
            if body.name:
                check_name(body.name)
        case request_bodies.Read():
            assert body.size <= MOST_READ
            if header.opcode == Opcode.READ:
                assert body.offset + body.size <= OFFSET_MAX
        case request_bodies.Write():
            assert body.offset + len(body.data) <= OFFSET_MAX
            assert len(body.data) == len(frame) - 80
        case request_bodies.Forget():
            assert len(body.forgets) * 8 <= len(frame)
        case _:
            pass


@given(st.sampled_from(Opcode) | st.integers(0, 2**32 - 1), st.binary(max_size=300), st.integers(0, 12), DECODER)
@settings(max_examples=1500, deadline=None)
def test_any_body(opcode: int, body: bytes, extensions: int, decoder: Decoder) -> None:
    check(struct.pack("=IIQQIIIHH", 40 + len(body), opcode, 1, 1, 0, 0, 1, extensions, 0) + body, decoder)


@given(st.binary(max_size=200), DECODER)
@example(bytes(40), DECODERS[0])
@settings(max_examples=300, deadline=None)
def test_any_bytes(frame: bytes, decoder: Decoder) -> None:
    check(frame, decoder)


CHANGES = st.lists(st.tuples(st.integers(0, 200), st.sampled_from("BIQ"), st.sampled_from(EDGES)), max_size=4)


@given(st.sampled_from(RECORDED), CHANGES, st.integers(-40, 16), st.booleans(), DECODER)
@settings(max_examples=3000, deadline=None)
def test_what_a_kernel_said_with_something_changed(
    frame: bytes, changes: list[tuple[int, str, int]], longer: int, says_so: bool, decoder: Decoder
) -> None:
    changed = bytearray(frame + bytes(max(longer, 0)))
    del changed[len(frame) + longer :]
    for at, kind, value in changes:
        size = struct.calcsize(kind)
        if at + size <= len(changed):
            struct.pack_into(f"={kind}", changed, at, value & (1 << 8 * size) - 1)
    if says_so and len(changed) >= 4:
        struct.pack_into("=I", changed, 0, len(changed))
    check(bytes(changed), decoder)


@given(st.binary(max_size=120), st.builds(Wishes, st.integers(0, (1 << 43) - 1).map(Init), st.integers(0, 1 << 33)))
@settings(max_examples=500, deadline=None)
def test_any_offer(body: bytes, wishes: Wishes) -> None:
    try:
        offer = decode_offer(memoryview(bytes(40) + body))
        agreed = negotiate(offer, wishes)
    except (FormatError, UnsupportedError) as error:
        assert errno_of(error) > 0
        return
    if agreed is not None:
        assert offer.major == 7
        assert agreed.flags & ~Init.INIT_EXT in offer.flags & wishes.flags
        assert agreed.max_write <= agreed.max_read
        assert len(encode_terms(1, agreed)) == 80


@pytest.mark.parametrize("filling", [b"\0", b"\1", b"a", b"\xff"])
@pytest.mark.parametrize("opcode", [*Opcode])
def test_a_large_frame_of_anything(opcode: Opcode, filling: bytes) -> None:
    for extensions in (0, 2**16 - 1):
        head = struct.pack("=IIQQIIIHH", 40 + (1 << 20), opcode, 1, 1, 0, 0, 1, extensions, 0)
        check(head + filling * (1 << 20), DECODERS[1])
