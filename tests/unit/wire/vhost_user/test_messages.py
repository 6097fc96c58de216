"""Every request that a front end of virtio-fs sends is decoded; with anything wrong it is refused. (I12)"""

from __future__ import annotations

import struct

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing import vhost_user_frontend as frontend
from holdfast.testing.vhost_user_frontend import Message
from holdfast.wire.vhost_user import messages
from holdfast.wire.vhost_user.messages import (
    HEADER_BYTES,
    Body,
    Header,
    MemoryRegion,
    decode_body,
    decode_header,
    encode_config,
    encode_no_config,
    encode_u64,
    encode_vring_base,
)
from holdfast.wire.vhost_user.protocol_constants import MAX_PAYLOAD_BYTES, MAX_REGIONS, Request
from holdfast.wire.virtio.split_queue import RingLayout

LAYOUT = RingLayout(128, 0x7000_0000_1000, 0x7000_0000_2002, 0x7000_0000_3004)
LOW = MemoryRegion(0, 0xA0000, 0x7000_0000_0000, 0)
HIGH = MemoryRegion(0xC0000, 0x1000_0000, 0x7000_1000_0000, 0xC0000)
U64 = (1 << 64) - 1


def decode(sent: Message) -> Body:
    header = decode_header(sent.data[:HEADER_BYTES])
    return decode_body(header, sent.data[HEADER_BYTES:], sent.descriptors)


GOOD: list[tuple[Message, Body]] = [
    (frontend.message(Request.GET_FEATURES), messages.GetFeatures()),
    (frontend.number(Request.SET_FEATURES, U64), messages.SetFeatures(U64)),
    (frontend.message(Request.SET_OWNER), messages.SetOwner()),
    (frontend.message(Request.RESET_OWNER), messages.ResetOwner()),
    (frontend.message(Request.GET_PROTOCOL_FEATURES), messages.GetProtocolFeatures()),
    (frontend.number(Request.SET_PROTOCOL_FEATURES, 9), messages.SetProtocolFeatures(9)),
    (frontend.message(Request.GET_QUEUE_NUM), messages.GetQueueNum()),
    (frontend.message(Request.GET_MAX_MEM_SLOTS), messages.GetMaxMemSlots()),
    (frontend.mem_table([LOW, HIGH], [7, 8]), messages.SetMemTable((LOW, HIGH), (7, 8))),
    (frontend.mem_region(Request.ADD_MEM_REG, HIGH, [7]), messages.AddMemRegion(HIGH, 7)),
    (frontend.mem_region(Request.REM_MEM_REG, HIGH), messages.RemoveMemRegion(HIGH, None)),
    (frontend.mem_region(Request.REM_MEM_REG, HIGH, [7]), messages.RemoveMemRegion(HIGH, 7)),
    (frontend.vring_state(Request.SET_VRING_NUM, 1, 1), messages.SetVringNum(1, 1)),
    (frontend.vring_state(Request.SET_VRING_NUM, 1, 1 << 15), messages.SetVringNum(1, 1 << 15)),
    (frontend.vring_state(Request.SET_VRING_BASE, 1, 65_535), messages.SetVringBase(1, 65_535)),
    (frontend.vring_state(Request.GET_VRING_BASE, 1, 1 << 31), messages.GetVringBase(1)),
    (
        frontend.vring_addresses(1, LAYOUT),
        messages.SetVringAddresses(1, LAYOUT.descriptors, LAYOUT.used, LAYOUT.available),
    ),
    (frontend.vring_event(Request.SET_VRING_KICK, 255, 7), messages.SetVringKick(255, 7)),
    (frontend.vring_event(Request.SET_VRING_CALL, 1, 7), messages.SetVringCall(1, 7)),
    (frontend.vring_event(Request.SET_VRING_CALL, 1, None), messages.SetVringCall(1, None)),
    (frontend.vring_event(Request.SET_VRING_ERR, 1, 7), messages.SetVringError(1, 7)),
    (frontend.vring_event(Request.SET_VRING_ERR, 1, None), messages.SetVringError(1, None)),
    (frontend.vring_state(Request.SET_VRING_ENABLE, 1, 1), messages.SetVringEnable(1, True)),
    (frontend.vring_state(Request.SET_VRING_ENABLE, 1, 0), messages.SetVringEnable(1, False)),
    (frontend.config(Request.GET_CONFIG, 36, bytes(4)), messages.GetConfig(36, 4, 0)),
    (frontend.config(Request.GET_CONFIG, 0, bytes(256), 1), messages.GetConfig(0, 256, 1)),
    (frontend.config(Request.SET_CONFIG, 36, b"data", 1), messages.SetConfig(36, b"data", 1)),
    (frontend.message(Request.RESET_DEVICE), messages.ResetDevice()),
    (frontend.number(Request.SET_STATUS, 15), messages.SetStatus(15)),
    (frontend.message(Request.GET_STATUS), messages.GetStatus()),
]


def named(case: tuple[Message, object]) -> str:
    return Request(struct.unpack_from("=I", case[0].data)[0]).name


@pytest.mark.parametrize(("sent", "body"), GOOD, ids=map(named, GOOD))
def test_what_a_request_says(sent: Message, body: Body) -> None:
    assert decode(sent) == body
    assert type(decode(sent)) is type(body)


@pytest.mark.parametrize("sent", [sent for sent, _ in GOOD], ids=map(named, GOOD))
def test_a_request_with_too_little_or_too_much(sent: Message) -> None:
    request, name = struct.unpack_from("=I", sent.data)[0], named((sent, None))
    payload = sent.data[HEADER_BYTES:]
    for other in (payload[:-1], payload[:4], payload + b"\0", payload + bytes(8)):
        if other != payload:
            with pytest.raises(FormatError, match=name):
                decode(frontend.message(request, other, sent.descriptors))
    with pytest.raises(FormatError, match=name):
        decode_body(Header(request, False, len(payload) + 1), payload, sent.descriptors)
    for descriptors in (sent.descriptors[:-1], (*sent.descriptors, 9), (*sent.descriptors, 9, 10)):
        may_have_one = request == Request.REM_MEM_REG and len(descriptors) <= 1
        if descriptors != sent.descriptors and not may_have_one:
            with pytest.raises(FormatError, match=rf"{name}: {len(descriptors)} descriptors"):
                decode(Message(sent.data, descriptors))


def moved(**changes: int) -> Message:
    return frontend.mem_region(Request.ADD_MEM_REG, HIGH._replace(**changes), [7])


BAD = [
    (frontend.vring_state(Request.SET_VRING_NUM, 1, 0), "ring size"),
    (frontend.vring_state(Request.SET_VRING_NUM, 1, 127), "ring size"),
    (frontend.vring_state(Request.SET_VRING_NUM, 1, 1 << 16), "SET_VRING_NUM: 65536"),
    (frontend.vring_state(Request.SET_VRING_BASE, 1, 1 << 16), "SET_VRING_BASE"),
    (frontend.vring_state(Request.SET_VRING_ENABLE, 1, 2), "SET_VRING_ENABLE"),
    (frontend.vring_addresses(1, LAYOUT._replace(descriptors=8)), "not aligned"),
    (frontend.vring_addresses(1, LAYOUT._replace(available=1)), "not aligned"),
    (frontend.vring_addresses(1, LAYOUT._replace(used=2)), "not aligned"),
    (frontend.vring_addresses(1, LAYOUT, flags=1), "not logged"),
    (frontend.vring_event(Request.SET_VRING_KICK, 1, None), "not polled"),
    (frontend.number(Request.SET_VRING_CALL, 1 << 9), "SET_VRING_CALL: 0x200"),
    (frontend.number(Request.SET_VRING_CALL, 1), "0 descriptors, expected 1"),
    (Message(frontend.number(Request.SET_VRING_ERR, 1 << 8).data, (7,)), "1 descriptors, expected 0"),
    (frontend.config(Request.GET_CONFIG, 1, bytes(256)), "256 bytes at 1"),
    (frontend.config(Request.GET_CONFIG, (1 << 32) - 1, bytes(4)), "4 bytes at 4294967295"),
    (frontend.config(Request.GET_CONFIG, 0, b""), "0 bytes at 0"),
    (frontend.message(Request.GET_CONFIG, struct.pack("=III", 0, 5, 0) + bytes(4)), "5 bytes at 0"),
    (frontend.number(Request.SET_STATUS, 256), "SET_STATUS"),
    (moved(size=0), "guest address"),
    (moved(guest_address=U64), "guest address"),
    (moved(user_address=U64), "user address"),
    (moved(mapping_offset=(1 << 63) - HIGH.size), "are in no file"),
    (moved(mapping_offset=U64), "are in no file"),
    (frontend.mem_table([], []), "0 regions"),
    (frontend.mem_table([LOW] * (MAX_REGIONS + 1), range(MAX_REGIONS + 1)), "33 regions"),
    (frontend.mem_table([LOW, LOW._replace(user_address=1 << 40)], [7, 8]), "guest addresses"),
    (frontend.mem_table([LOW, LOW._replace(guest_address=1 << 40)], [7, 8]), "user addresses"),
    (frontend.message(Request.SET_MEM_TABLE, struct.pack("=I4x", 0xFFFFFFFF)), "4294967295 regions"),
]


@pytest.mark.parametrize(("sent", "match"), BAD)
def test_a_number_that_cannot_be(sent: Message, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        decode(sent)


SERVED = {struct.unpack_from("=I", sent.data)[0] for sent, _ in GOOD}


@pytest.mark.parametrize("request_number", [0, 45, 1 << 31, *sorted(set(Request) - SERVED)])
def test_a_request_that_is_not_served(request_number: int) -> None:
    with pytest.raises(FormatError, match="not served"):
        decode(frontend.message(request_number))


def test_a_header() -> None:
    assert decode_header(struct.pack("=III", 5, 1, 72)) == Header(5, False, 72)
    assert decode_header(struct.pack("=III", 5, 9, 0)) == Header(5, True, 0)
    assert decode_header(struct.pack("=III", 1 << 31, 1, MAX_PAYLOAD_BYTES)).payload_bytes == MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(12),
        struct.pack("=III", 5, 1, 0)[:-1],
        struct.pack("=III", 5, 1, 0) + b"\0",
        struct.pack("=III", 5, 0, 0),
        struct.pack("=III", 5, 2, 0),
        struct.pack("=III", 5, 3, 0),
        struct.pack("=III", 5, 5, 0),
        struct.pack("=III", 5, 17, 0),
        struct.pack("=III", 5, 1 << 31 | 1, 0),
        struct.pack("=III", 5, 1, MAX_PAYLOAD_BYTES + 1),
    ],
)
def test_a_header_that_is_none(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"header|SET_MEM_TABLE|request 0"):
        decode_header(data)


def test_the_largest_request_is_within_the_limit() -> None:
    regions = [MemoryRegion(at << 30, 1 << 30, (at + 64) << 30, 0) for at in range(MAX_REGIONS)]
    body = decode(frontend.mem_table(regions, range(MAX_REGIONS)))
    assert body == messages.SetMemTable(tuple(regions), tuple(range(MAX_REGIONS)))


def test_replies() -> None:
    assert encode_u64(Request.GET_FEATURES, 1 << 32) == struct.pack("=IIIQ", 1, 5, 8, 1 << 32)
    assert encode_vring_base(1, 77) == struct.pack("=IIIII", 11, 5, 8, 1, 77)
    assert encode_config(36, b"\2\0\0\0", 0) == struct.pack("=IIIIII", 24, 5, 16, 36, 4, 0) + b"\2\0\0\0"
    assert encode_no_config() == struct.pack("=III", 24, 5, 0)
