"""Which request is good when, what it makes of the vrings, and that no descriptor is lost."""

from __future__ import annotations

import struct

import pytest

from holdfast.model.errors import FormatError
from holdfast.testing import vhost_user_frontend as frontend
from holdfast.testing.vhost_user_frontend import ALL_FEATURES, Message
from holdfast.wire.vhost_user.messages import HEADER_BYTES, MemoryRegion, decode_header
from holdfast.wire.vhost_user.protocol_constants import (
    MAX_REGIONS,
    PROTOCOL_FEATURES,
    ProtocolFeature,
    Request,
)
from holdfast.wire.vhost_user.session import Device, Session
from holdfast.wire.virtio.feature_bits import Feature
from holdfast.wire.virtio.split_queue import RingLayout

LAYOUT = RingLayout(128, 0x1000, 0x2000, 0x3000)
LOW = MemoryRegion(0, 0x1000, 0x10000, 0)
HIGH = MemoryRegion(0x2000, 0x1000, 0x20000, 0)
DEVICE = Device(
    vrings=3,
    config=b"tag" + bytes(37),
    protocol_features=Device(1).protocol_features | ProtocolFeature.STATUS,
)


class Connection:
    """A front end that is answered as a back end would."""

    def __init__(self, device: Device = DEVICE) -> None:
        self.session = Session(device)

    def say(self, sent: Message) -> bytes | None:
        """The reply. Raises `FormatError`."""
        header = decode_header(sent.data[:HEADER_BYTES])
        body = self.session.receive(header, sent.data[HEADER_BYTES:], sent.descriptors)
        return self.session.reply(header, body)

    def refused(self, sent: Message, match: str) -> bytes | None:
        with pytest.raises(FormatError, match=match):
            self.say(sent)
        return self.session.refusal(decode_header(sent.data[:HEADER_BYTES]))

    def negotiated(self, features: int = ALL_FEATURES) -> Connection:
        self.say(frontend.number(Request.SET_PROTOCOL_FEATURES, self.offered))
        self.say(frontend.message(Request.SET_OWNER))
        self.say(frontend.number(Request.SET_FEATURES, features))
        return self

    def described(self, index: int) -> Connection:
        self.say(frontend.vring_state(Request.SET_VRING_NUM, index, 128))
        self.say(frontend.vring_addresses(index, LAYOUT))
        return self

    def started(self, index: int, kick: int = 7) -> Connection:
        self.described(index).say(frontend.vring_event(Request.SET_VRING_KICK, index, kick))
        self.say(frontend.vring_state(Request.SET_VRING_ENABLE, index, 1))
        return self

    @property
    def offered(self) -> int:
        reply = self.say(frontend.message(Request.GET_PROTOCOL_FEATURES))
        assert reply is not None
        return struct.unpack_from("=Q", reply, HEADER_BYTES)[0]


def value(reply: bytes | None) -> int:
    assert reply is not None
    request, flags, size = struct.unpack_from("=III", reply)
    assert (flags, size, len(reply)) == (5, 8, 20), request
    return struct.unpack_from("=Q", reply, HEADER_BYTES)[0]


def test_what_is_offered() -> None:
    connection = Connection()
    assert value(connection.say(frontend.message(Request.GET_FEATURES))) == ALL_FEATURES
    offered = ProtocolFeature(connection.offered)
    assert offered == (
        ProtocolFeature.MQ
        | ProtocolFeature.REPLY_ACK
        | ProtocolFeature.CONFIG
        | ProtocolFeature.RESET_DEVICE
        | ProtocolFeature.CONFIGURE_MEM_SLOTS
        | ProtocolFeature.STATUS
    )
    assert ProtocolFeature.CONFIG not in ProtocolFeature(Connection(Device(1)).offered)
    assert value(connection.say(frontend.message(Request.GET_QUEUE_NUM))) == 3
    connection.say(frontend.number(Request.SET_PROTOCOL_FEATURES, offered))
    assert value(connection.say(frontend.message(Request.GET_MAX_MEM_SLOTS))) == MAX_REGIONS


@pytest.mark.parametrize("device", [Device(0), Device(257), Device(1, config=bytes(257))])
def test_a_device_that_cannot_be(device: Device) -> None:
    with pytest.raises(ValueError, match="vrings"):
        Session(device)


def test_what_was_not_offered_is_not_agreed_upon() -> None:
    connection = Connection()
    connection.refused(frontend.number(Request.SET_PROTOCOL_FEATURES, ProtocolFeature.INFLIGHT_SHMFD), "0x1000")
    connection.say(frontend.message(Request.SET_OWNER))
    connection.refused(frontend.number(Request.SET_FEATURES, ALL_FEATURES | 1 << 34), "0x400000000")
    connection.refused(frontend.number(Request.SET_FEATURES, PROTOCOL_FEATURES), "VERSION_1")
    assert connection.session.features is None


@pytest.mark.parametrize(
    "sent",
    [
        frontend.config(Request.GET_CONFIG, 0, bytes(4)),
        frontend.config(Request.SET_CONFIG, 0, bytes(4)),
        frontend.message(Request.RESET_DEVICE),
        frontend.message(Request.GET_MAX_MEM_SLOTS),
        frontend.mem_region(Request.ADD_MEM_REG, LOW, [7]),
        frontend.mem_region(Request.REM_MEM_REG, LOW),
        frontend.number(Request.SET_STATUS, 1),
        frontend.message(Request.GET_STATUS),
    ],
)
def test_what_a_feature_brings_needs_it(sent: Message) -> None:
    connection = Connection()
    connection.say(frontend.message(Request.SET_OWNER))
    connection.refused(sent, "was not agreed upon")


@pytest.mark.parametrize(
    "sent",
    [
        frontend.number(Request.SET_FEATURES, ALL_FEATURES),
        frontend.mem_table([LOW], [7]),
        frontend.vring_state(Request.SET_VRING_NUM, 0, 128),
        frontend.vring_event(Request.SET_VRING_CALL, 0, 7),
        frontend.vring_state(Request.GET_VRING_BASE, 0),
    ],
)
def test_nothing_is_set_before_the_device_is_owned(sent: Message) -> None:
    connection = Connection()
    connection.refused(sent, "before SET_OWNER")
    assert connection.session.vrings[0].call is None


def test_a_ring_runs_when_it_is_started_and_enabled() -> None:
    connection = Connection().negotiated()
    (first, second, _) = connection.session.vrings
    connection.described(1)
    assert second.layout == LAYOUT
    assert not second.is_started
    connection.say(frontend.vring_event(Request.SET_VRING_KICK, 1, 7))
    assert (second.is_started, second.is_running) == (True, False)
    connection.say(frontend.vring_state(Request.SET_VRING_ENABLE, 1, 1))
    assert (second.is_running, second.kick) == (True, 7)
    connection.say(frontend.vring_state(Request.SET_VRING_ENABLE, 1, 0))
    assert (second.is_started, second.is_running) == (True, False)
    assert (first.is_started, first.layout) == (False, None)


def test_without_protocol_features_a_ring_is_enabled_from_the_beginning() -> None:
    connection = Connection()
    connection.say(frontend.message(Request.SET_OWNER))
    connection.say(frontend.number(Request.SET_FEATURES, Feature.VERSION_1))
    connection.described(0).say(frontend.vring_event(Request.SET_VRING_KICK, 0, 7))
    assert connection.session.vrings[0].is_running


def test_a_ring_is_stopped_and_goes_on_where_it_was() -> None:
    connection = Connection().negotiated().started(1)
    vring = connection.session.vrings[1]
    sent = frontend.vring_state(Request.GET_VRING_BASE, 1)
    header = decode_header(sent.data[:HEADER_BYTES])
    body = connection.session.receive(header, sent.data[HEADER_BYTES:], ())
    assert (vring.is_started, connection.session.released) == (False, [7])
    vring.base = 65_535
    assert connection.session.reply(header, body) == struct.pack("=IIIII", 11, 5, 8, 1, 65_535)
    connection.say(frontend.vring_state(Request.SET_VRING_BASE, 1, 65_535))
    connection.say(frontend.vring_event(Request.SET_VRING_KICK, 1, 8))
    assert (vring.is_running, vring.base, vring.kick) == (True, 65_535, 8)


def test_a_ring_needs_features_a_size_and_addresses() -> None:
    connection = Connection()
    kick = frontend.vring_event(Request.SET_VRING_KICK, 0, 7)
    connection.say(frontend.message(Request.SET_OWNER))
    connection.described(0).refused(kick, "no features")
    connection = Connection().negotiated()
    connection.say(frontend.vring_state(Request.SET_VRING_NUM, 0, 128))
    connection.refused(kick, "no features, size or addresses")
    connection = Connection().negotiated()
    connection.say(frontend.vring_addresses(0, LAYOUT))
    connection.refused(kick, "no features, size or addresses")
    assert connection.session.vrings[0].kick is None
    assert connection.session.released == []


def test_a_ring_that_is_started_stays_where_it_is() -> None:
    connection = Connection().negotiated().started(1)
    connection.refused(frontend.vring_state(Request.SET_VRING_NUM, 1, 64), "vring 1 is started")
    connection.refused(frontend.vring_state(Request.SET_VRING_BASE, 1, 64), "vring 1 is started")
    connection.refused(frontend.vring_addresses(1, LAYOUT._replace(used=0x4000)), "vring 1 is started")
    connection.refused(frontend.number(Request.SET_FEATURES, ALL_FEATURES & ~Feature.EVENT_IDX), "a vring is started")
    connection.say(frontend.vring_addresses(1, LAYOUT))
    connection.say(frontend.number(Request.SET_FEATURES, ALL_FEATURES))
    assert connection.session.vrings[1].layout == LAYOUT
    connection.described(2)


@pytest.mark.parametrize("index", [3, 255])
def test_a_ring_that_the_device_does_not_have(index: int) -> None:
    connection = Connection().negotiated()
    for sent in (
        frontend.vring_state(Request.SET_VRING_NUM, index, 128),
        frontend.vring_addresses(index, LAYOUT),
        frontend.vring_state(Request.SET_VRING_BASE, index),
        frontend.vring_state(Request.GET_VRING_BASE, index),
        frontend.vring_event(Request.SET_VRING_KICK, index, 7),
        frontend.vring_event(Request.SET_VRING_CALL, index, 7),
        frontend.vring_event(Request.SET_VRING_ERR, index, 7),
        frontend.vring_state(Request.SET_VRING_ENABLE, index, 1),
    ):
        connection.refused(sent, f"vring {index} of 3")


@pytest.mark.parametrize("request_number", [Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR])
def test_an_event_that_is_replaced_is_to_be_closed(request_number: Request) -> None:
    connection = Connection().negotiated().described(1)
    connection.say(frontend.vring_event(request_number, 1, 7))
    assert connection.session.released == []
    connection.say(frontend.vring_event(request_number, 1, 8))
    assert connection.session.released == [7]
    connection.session.close()
    assert connection.session.released == [7, 8]


def test_a_driver_that_polls_is_not_called() -> None:
    connection = Connection().negotiated()
    connection.say(frontend.vring_event(Request.SET_VRING_CALL, 1, 7))
    connection.say(frontend.vring_event(Request.SET_VRING_CALL, 1, None))
    assert connection.session.vrings[1].call is None
    assert connection.session.released == [7]


def test_memory_comes_and_goes() -> None:
    connection = Connection().negotiated()
    connection.say(frontend.mem_table([LOW], [7]))
    assert connection.session.regions == (LOW,)
    connection.say(frontend.mem_region(Request.ADD_MEM_REG, HIGH, [8]))
    assert connection.session.regions == (LOW, HIGH)
    connection.refused(frontend.mem_region(Request.ADD_MEM_REG, HIGH._replace(user_address=1), [9]), "overlaps")
    connection.refused(frontend.mem_region(Request.REM_MEM_REG, LOW._replace(size=1)), "no region")
    connection.say(frontend.mem_region(Request.REM_MEM_REG, LOW._replace(mapping_offset=5), [9]))
    assert connection.session.regions == (HIGH,)
    assert connection.session.released == [9]


def test_there_is_an_end_of_regions() -> None:
    connection = Connection().negotiated()
    for at in range(MAX_REGIONS):
        region = MemoryRegion(at << 20, 1 << 20, at << 20, 0)
        connection.say(frontend.mem_region(Request.ADD_MEM_REG, region, [7]))
    region = MemoryRegion(1 << 40, 1 << 20, 1 << 40, 0)
    connection.refused(frontend.mem_region(Request.ADD_MEM_REG, region, [7]), "32 regions are there")


@pytest.mark.parametrize("sent", [frontend.message(Request.RESET_DEVICE), frontend.number(Request.SET_STATUS, 0)])
def test_a_reset_leaves_memory_and_calls(sent: Message) -> None:
    connection = Connection().negotiated()
    connection.say(frontend.mem_table([LOW], [6]))
    connection.say(frontend.vring_event(Request.SET_VRING_CALL, 1, 9))
    connection.started(1)
    connection.say(frontend.number(Request.SET_STATUS, 15))
    assert value(connection.say(frontend.message(Request.GET_STATUS))) == 15
    connection.say(sent)
    session, vring = connection.session, connection.session.vrings[1]
    assert (session.released, session.features, session.regions) == ([7], None, (LOW,))
    assert (vring.kick, vring.call, vring.enabled, vring.layout) == (None, 9, False, None)
    assert value(connection.say(frontend.message(Request.GET_STATUS))) == 0
    connection.say(frontend.number(Request.SET_FEATURES, ALL_FEATURES))
    assert connection.started(1, 10).session.vrings[1].is_running


def test_a_front_end_that_gives_the_device_up_stops_its_rings() -> None:
    connection = Connection().negotiated().started(0, 7).started(2, 8)
    connection.say(frontend.message(Request.RESET_OWNER))
    assert connection.session.released == [7, 8]
    assert not any(vring.is_running for vring in connection.session.vrings)


def test_the_configuration_is_read_and_not_written() -> None:
    connection = Connection().negotiated()
    reply = connection.say(frontend.config(Request.GET_CONFIG, 0, bytes(40)))
    assert reply == struct.pack("=IIIIII", 24, 5, 52, 0, 40, 0) + b"tag" + bytes(37)
    reply = connection.say(frontend.config(Request.GET_CONFIG, 1, bytes(2)))
    assert reply == struct.pack("=IIIIII", 24, 5, 14, 1, 2, 0) + b"ag"
    reply = connection.refused(frontend.config(Request.GET_CONFIG, 1, bytes(40)), "40 bytes at 1 of 40")
    assert reply == struct.pack("=III", 24, 5, 0)
    sent = frontend.config(Request.SET_CONFIG, 0, b"gat", needs_reply=True)
    assert value(connection.refused(sent, "cannot be written")) != 0


def test_a_request_is_acknowledged_if_that_was_agreed_upon_and_asked_for() -> None:
    sent = frontend.vring_state(Request.SET_VRING_NUM, 1, 128, needs_reply=True)
    wrong = frontend.vring_state(Request.SET_VRING_NUM, 3, 128, needs_reply=True)
    connection = Connection().negotiated()
    assert value(connection.say(sent)) == 0
    assert value(connection.refused(wrong, "vring 3")) == 1
    assert value(connection.refused(frontend.message(99, needs_reply=True), "request 99: not served")) == 1
    assert connection.say(frontend.vring_state(Request.SET_VRING_NUM, 1, 128)) is None
    assert connection.refused(frontend.vring_state(Request.SET_VRING_NUM, 3, 128), "vring 3") is None
    connection = Connection()
    connection.say(frontend.message(Request.SET_OWNER))
    assert connection.say(sent) is None
    assert connection.refused(wrong, "vring 3") is None


def test_a_request_that_has_an_answer_is_not_acknowledged_besides() -> None:
    connection = Connection().negotiated()
    sent = frontend.vring_state(Request.GET_VRING_BASE, 1, needs_reply=True)
    assert connection.say(sent) == struct.pack("=IIIII", 11, 5, 8, 1, 0)
    sent = frontend.vring_state(Request.GET_VRING_BASE, 3, needs_reply=True)
    assert connection.refused(sent, "vring 3") is None
