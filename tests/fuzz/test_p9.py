"""I12: whatever a guest says over 9P is decoded, or refused with a typed error, in bounded memory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.testing.p9_client import decode_reply, encode_request
from holdfast.wire.p9 import replies, request_bodies
from holdfast.wire.p9.framing import FrameSplitter, decode_header
from holdfast.wire.p9.protocol_constants import NAME_MAX, NO_FID, NO_TAG, OFFSET_MAX, VERSION, Type
from holdfast.wire.p9.request_errors import errno_of
from holdfast.wire.p9.requests import Decoder
from holdfast.wire.p9.session import Limits, Request, Session

RECORDED = [
    bytes.fromhex(line[2:])
    for path in sorted((Path(__file__).parents[1] / "protocol/p9/recorded").glob("*.txt"))
    for line in path.read_text().splitlines()
    if line.startswith(">")
]
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, OFFSET_MAX, OFFSET_MAX + 1, (1 << 64) - 1)
MSIZE = 1 << 16
MAKING = {Type.ATTACH, Type.WALK, Type.LOPEN, Type.LCREATE, Type.XATTRWALK, Type.XATTRCREATE, Type.AUTH}


def check_name(name: bytes) -> None:
    assert 0 < len(name) <= NAME_MAX
    assert b"/" not in name
    assert b"\0" not in name
    assert name != b"."


def check(frame: bytes) -> None:
    """Decodes ``frame``; what comes of it is as promised."""
    try:
        header = decode_header(memoryview(frame))
        body = Decoder(MSIZE).decode(header, memoryview(frame))
    except FormatError as error:
        assert errno_of(error) > 0
        assert len(error.message) < 1000
        return
    match body:
        case request_bodies.Walk():
            assert len(body.names) <= 16
            for name in body.names:
                check_name(name)
        case (
            request_bodies.Create()
            | request_bodies.Symlink()
            | request_bodies.MakeNode()
            | request_bodies.MakeDirectory()
            | request_bodies.Link()
            | request_bodies.Rename()
            | request_bodies.UnlinkAt()
        ):
            check_name(body.name)
            assert body.name != b".."
        case request_bodies.RenameAt():
            check_name(body.name)
            check_name(body.new_name)
        case request_bodies.Read():
            assert body.size <= MSIZE - 11
        case request_bodies.Write():
            assert body.offset + len(body.data) <= OFFSET_MAX
            assert len(body.data) == len(frame) - 23
        case request_bodies.Lock():
            assert 0 <= body.start <= OFFSET_MAX
            assert body.start - 1 <= body.end <= OFFSET_MAX
        case _:
            pass


@given(st.sampled_from(Type) | st.integers(0, 255), st.binary(max_size=300))
@settings(max_examples=1500, deadline=None)
def test_any_body(kind: int, body: bytes) -> None:
    check(struct.pack("<IBH", 7 + len(body), kind, 1) + body)


@given(st.binary(max_size=100))
@example(bytes(7))
@settings(max_examples=300, deadline=None)
def test_any_bytes(frame: bytes) -> None:
    check(frame)


CHANGES = st.lists(st.tuples(st.integers(0, 100), st.sampled_from("BHIQ"), st.sampled_from(EDGES)), max_size=4)


def with_changes(frame: bytes, changes: list[tuple[int, str, int]], longer: int) -> bytes:
    changed = bytearray(frame + bytes(max(longer, 0)))
    del changed[len(frame) + longer :]
    for at, kind, value in changes:
        size = struct.calcsize(kind)
        if at + size <= len(changed):
            struct.pack_into(f"<{kind}", changed, at, value & (1 << 8 * size) - 1)
    if len(changed) >= 4:
        struct.pack_into("<I", changed, 0, len(changed))
    return bytes(changed)


@given(st.sampled_from(RECORDED), CHANGES, st.integers(-20, 16))
@settings(max_examples=2000, deadline=None)
def test_what_a_client_said_with_something_changed(
    frame: bytes, changes: list[tuple[int, str, int]], longer: int
) -> None:
    check(with_changes(frame, changes, longer))


@given(st.lists(st.tuples(st.sampled_from(RECORDED), CHANGES), max_size=25), st.data())
@settings(max_examples=300, deadline=None)
def test_any_conversation(said: list[tuple[bytes, list[tuple[int, str, int]]]], data: st.DataObject) -> None:
    """What comes of it is a connection that ends, or errors; all that is kept is given back."""
    session: Session[object] = Session(Limits(msize=8192, fids=8, requests=4))
    splitter = FrameSplitter(session.msize)
    opening = encode_request(Type.VERSION, NO_TAG, 8192, VERSION) + encode_request(
        Type.ATTACH, 1, 0, NO_FID, b"", b"", 0
    )
    requests: list[Request[object]] = []
    made: list[object] = []
    gone: list[object] = []

    def finish(request: Request[object]) -> None:
        kept = object() if request.type in MAKING and data.draw(st.booleans()) else None
        made.extend(() if kept is None else (kept,))
        gone.extend(session.finish(request, replies.error(request.tag, 5), kept).gone)

    try:
        for frame in splitter.split(opening + b"".join(with_changes(frame, some, 0) for frame, some in said)):
            actions = session.receive(frame)
            splitter.limit = session.msize
            for reply in actions.output:
                assert decode_reply(bytes(reply))
            gone.extend(actions.gone)
            if actions.request is not None:
                requests.append(actions.request)
            while requests and (len(requests) == 4 or data.draw(st.booleans())):
                finish(requests.pop(data.draw(st.integers(0, len(requests) - 1))))
    except FormatError as error:
        assert errno_of(error) > 0
    gone.extend(session.close().gone)
    for request in requests:
        finish(request)
    assert sorted(map(id, gone)) == sorted(map(id, made)), "all that was kept is given back, and once"
    assert (session.in_flight, session.fid_count) == (0, 0)


@pytest.mark.parametrize("filling", [b"\0", b"\1", b"a", b"\xff"])
@pytest.mark.parametrize("kind", [*Type])
def test_a_large_frame_of_anything(kind: Type, filling: bytes) -> None:
    check(struct.pack("<IBH", 7 + (1 << 20), kind, 1) + filling * (1 << 20))
