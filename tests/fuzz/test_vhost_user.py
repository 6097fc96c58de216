"""I12: whatever a front end says is understood, or refused and then changes nothing; no descriptor is lost."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.testing import vhost_user_frontend as frontend
from holdfast.testing.vhost_user_frontend import ALL_FEATURES, Message
from holdfast.wire.vhost_user.messages import (
    HEADER_BYTES,
    AddMemRegion,
    MemoryRegion,
    SetMemTable,
    decode_header,
)
from holdfast.wire.vhost_user.protocol_constants import MAX_PAYLOAD_BYTES, MAX_REGIONS, ProtocolFeature, Request
from holdfast.wire.vhost_user.session import Device, Session
from holdfast.wire.virtio.split_queue import RingLayout

DEVICE = Device(2, config=bytes(40), protocol_features=Device(1).protocol_features | ProtocolFeature.STATUS)
EDGES = st.sampled_from([0, 1, 2, 3, 7, 8, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 63])
NUMBERS = EDGES | st.integers(0, (1 << 64) - 1)
REQUESTS = st.sampled_from(Request) | st.integers(0, (1 << 32) - 1)
REGIONS = st.builds(
    MemoryRegion,
    st.sampled_from([0, 0x1000, 0x1800]) | NUMBERS,
    st.sampled_from([0x800, 0x1000]) | NUMBERS,
    st.sampled_from([0x10000, 0x11000]) | NUMBERS,
    st.just(0) | NUMBERS,
)
SMALL = st.integers(0, 2)
ANY = st.builds(
    frontend.message,
    REQUESTS,
    st.binary(max_size=100)
    | st.lists(NUMBERS, max_size=6).map(lambda numbers: struct.pack(f"={len(numbers)}Q", *numbers)),
    needs_reply=st.booleans(),
)
ALMOST = st.one_of(
    st.builds(
        frontend.number, st.just(Request.SET_FEATURES), st.just(ALL_FEATURES) | NUMBERS, needs_reply=st.booleans()
    ),
    st.builds(
        frontend.vring_state, REQUESTS, SMALL, EDGES.map(lambda value: value & 0xFFFFFFFF), needs_reply=st.booleans()
    ),
    st.builds(frontend.vring_state, st.just(Request.SET_VRING_NUM), SMALL, st.sampled_from([1, 128, 1 << 15])),
    st.builds(frontend.vring_state, st.just(Request.GET_VRING_BASE), SMALL),
    st.builds(
        frontend.vring_addresses,
        SMALL,
        st.builds(RingLayout, st.just(0), *[st.integers(0, 1 << 59).map(lambda n: n * 16)] * 3),
    ),
    st.builds(
        frontend.vring_event,
        st.sampled_from([Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR]),
        SMALL,
        st.none() | st.just(0),
        needs_reply=st.booleans(),
    ),
    st.builds(frontend.mem_table, st.lists(REGIONS, max_size=3), st.just([])),
    st.builds(frontend.mem_region, st.sampled_from([Request.ADD_MEM_REG, Request.REM_MEM_REG]), REGIONS),
    st.builds(
        frontend.config, st.sampled_from([Request.GET_CONFIG, Request.SET_CONFIG]), SMALL, st.binary(max_size=50)
    ),
    st.builds(frontend.number, st.just(Request.SET_STATUS), EDGES),
    st.sampled_from([Request.RESET_DEVICE, Request.RESET_OWNER]).map(frontend.message),
)


def descriptors_of(request: int, payload: bytes) -> int:
    """How many a right front end sends."""
    if request == Request.SET_MEM_TABLE:
        return struct.unpack_from("=I", payload)[0] if len(payload) >= 4 else 0
    if request in (Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR):
        return 0 if payload[1:2] == b"\1" else 1
    return 1 if request == Request.ADD_MEM_REG else 0


def state(session: Session) -> list[Any]:
    rings = [(ring.layout, ring.base, ring.kick, ring.call, ring.error, ring.enabled) for ring in session.vrings]
    return [
        rings,
        session.features,
        session.protocol_features,
        session.regions,
        session.status,
        session.is_owned,
        list(session.released),
    ]


def held(session: Session) -> set[int]:
    every = [descriptor for ring in session.vrings for descriptor in (ring.kick, ring.call, ring.error)]
    kept = [descriptor for descriptor in every if descriptor is not None]
    assert len(set(kept)) == len(kept)
    return set(kept)


@given(st.lists(st.tuples(ANY | ALMOST, st.none() | st.integers(0, 3)), max_size=30), st.booleans())
@settings(max_examples=400)
def test_any_conversation(messages: list[tuple[Message, int | None]], begun: bool) -> None:
    session = Session(DEVICE)
    numbers = count(100)
    open_ones: set[int] = set()
    if begun:
        offered = DEVICE.protocol_features | ProtocolFeature.CONFIG
        for sent in (
            frontend.number(Request.SET_PROTOCOL_FEATURES, offered),
            frontend.message(Request.SET_OWNER),
            frontend.number(Request.SET_FEATURES, ALL_FEATURES),
        ):
            session.receive(decode_header(sent.data[:HEADER_BYTES]), sent.data[HEADER_BYTES:], ())
    for sent, wanted in messages:
        header, payload = decode_header(sent.data[:HEADER_BYTES]), sent.data[HEADER_BYTES:]
        number = descriptors_of(header.request, payload) if wanted is None else wanted
        descriptors = [next(numbers) for _ in range(min(number, MAX_REGIONS + 1))]
        before = state(session)
        try:
            body = session.receive(header, payload, descriptors)
        except FormatError as error:
            assert state(session) == before
            assert len(error.message) < 500
            reply = session.refusal(header)
        else:
            open_ones |= set(descriptors)
            if isinstance(body, SetMemTable):
                open_ones -= set(body.descriptors)
            if isinstance(body, AddMemRegion):
                open_ones.remove(body.descriptor)
            for descriptor in session.released:
                open_ones.remove(descriptor)
            session.released.clear()
            assert held(session) == open_ones
            reply = session.reply(header, body)
        if reply is not None:
            assert struct.unpack_from("=III", reply) == (header.request, 5, len(reply) - HEADER_BYTES)
        assert len(session.regions) <= MAX_REGIONS
        for ring in session.vrings:
            assert not ring.is_started or (ring.layout is not None and session.features is not None)
    session.close()
    assert sorted(session.released) == sorted(open_ones)


@given(st.binary(max_size=20) | st.tuples(NUMBERS, NUMBERS, NUMBERS).map(
    lambda values: struct.pack("=III", *(value & 0xFFFFFFFF for value in values))
))  # fmt: skip
@settings(max_examples=300)
def test_any_header(data: bytes) -> None:
    try:
        header = decode_header(data)
    except FormatError:
        return
    assert header.payload_bytes <= MAX_PAYLOAD_BYTES
    assert len(data) == HEADER_BYTES
