"""A front end and a back end that speak over a real socket, share real memory, and wake each other by real events."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from holdfast.testing import vhost_user_frontend as frontends
from holdfast.testing.vhost_user_frontend import (
    ALL_FEATURES,
    PROTOCOL_FEATURES,
    BrokenVringError,
    Frontend,
    RefusedRequestError,
)
from holdfast.testing.virtqueue_driver import NoSpaceError
from holdfast.wire.vhost_user.protocol_constants import ProtocolFeature, Request
from holdfast.wire.vhost_user.session import Device
from holdfast.wire.virtio.feature_bits import Feature

from .echo_backend import EchoBackend


def open_descriptors() -> int:
    """How many there are, those apart that a mapping of Python's keeps for itself."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:" not in os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the listing's own
            pass
    return count


@contextmanager
def connected(device: Device | None = None) -> Generator[tuple[Frontend, EchoBackend]]:
    before = open_descriptors()
    backend = EchoBackend(device or Device(2))
    try:
        with Frontend(backend.frontend_end) as frontend:
            yield frontend, backend
    finally:
        backend.join()
    assert open_descriptors() == before, "a descriptor was left open"


@pytest.mark.parametrize("features", [ALL_FEATURES, ALL_FEATURES & ~Feature.EVENT_IDX])
@pytest.mark.parametrize("protocol_features", [PROTOCOL_FEATURES, ProtocolFeature(0)])
def test_requests_are_answered(features: int, protocol_features: ProtocolFeature) -> None:
    with connected() as (frontend, backend):
        frontend.negotiate(features, protocol_features)
        for index in range(2):
            frontend.start(index)
        for at in range(300):
            sent = [b"%d" % at, bytes(at + 1)]
            assert frontend.transact(at % 2, sent, [100, 200, 10], indirect=at % 3 > 0) == b"".join(sent)
        assert backend.answered == 300


@pytest.mark.parametrize("features", [ALL_FEATURES, ALL_FEATURES & ~Feature.EVENT_IDX])
def test_many_at_once_and_nobody_sleeps_for_ever(features: int) -> None:
    with connected() as (frontend, backend):
        frontend.negotiate(features)
        queue = frontend.start(0, 16)
        sent = received = 0
        while received < 2000:
            try:
                while sent < 2000:
                    queue.add([struct.pack("=I", sent)], [4], indirect=bool(sent % 2))
                    sent += 1
                    if sent % 5 == 0:
                        frontend.kick(0)
            except NoSpaceError:
                pass
            frontend.kick(0)
            while not (used := queue.take_used()):
                frontend.wait_for_call(0)
            for chain in used:
                assert chain.data == struct.pack("=I", received)
                received += 1
        frontend.stop(0)
        assert backend.answered == 2000


def test_a_ring_that_was_stopped_goes_on() -> None:
    with connected() as (frontend, _):
        frontend.negotiate()
        frontend.start(0, 8)
        base = 0
        for round_number in range(3):
            for at in range(10):
                assert frontend.transact(0, [b"%d %d" % (round_number, at)], [20]) == b"%d %d" % (round_number, at)
            base = frontend.stop(0)
            assert base == 10 * (round_number + 1)
            frontend.start(0, 8, base)


def test_what_was_added_to_a_ring_that_is_stopped_is_answered_without_a_kick() -> None:
    with connected() as (frontend, _):
        frontend.negotiate()
        queue = frontend.start(0, 8)
        base = frontend.stop(0)
        queue.add([b"early"], [5])
        frontend.start(0, 8, base)
        frontend.wait_for_call(0)
        assert [used.data for used in queue.take_used()] == [b"early"]


def test_a_hostile_ring_is_broken_and_the_other_is_served() -> None:
    with connected() as (frontend, backend):
        frontend.negotiate()
        queue = frontend.start(0, 8)
        frontend.start(1, 8)
        queue.describe(0, 1 << 60, 1, 0)
        queue.publish(0)
        frontend.kick(0)
        with pytest.raises(BrokenVringError):
            frontend.transact(0, [b"after"])
        assert frontend.transact(1, [b"still"], [5]) == b"still"
        assert backend.broken == {0}


def test_memory_that_is_taken_away_breaks_the_rings_in_it() -> None:
    with connected() as (frontend, backend):
        frontend.negotiate()
        frontend.start(0, 8)
        assert frontend.transact(0, [b"here"], [4]) == b"here"
        frontend.command(frontends.mem_region(Request.REM_MEM_REG, frontend.region))
        assert backend.broken == {0}


def test_a_request_that_is_refused_leaves_the_connection() -> None:
    with connected() as (frontend, _):
        frontend.negotiate()
        with pytest.raises(RefusedRequestError, match="SET_VRING_NUM"):
            frontend.command(frontends.vring_state(Request.SET_VRING_NUM, 0, 3))
        spare = os.eventfd(0)
        with pytest.raises(RefusedRequestError, match="SET_VRING_KICK"):
            frontend.command(frontends.vring_event(Request.SET_VRING_KICK, 0, spare))
        os.close(spare)
        frontend.start(0)
        assert frontend.transact(0, [b"data"], [4]) == b"data"


@pytest.mark.parametrize(
    "sent",
    [
        frontends.vring_state(Request.SET_VRING_NUM, 0, 3),
        frontends.Message(bytes(12)),
        frontends.Message(struct.pack("=III", Request.SET_FEATURES, 1, 1 << 31)),
    ],
)
def test_a_request_that_is_refused_without_a_way_to_say_so_ends_the_connection(sent: frontends.Message) -> None:
    with connected() as (frontend, _):
        frontend.negotiate()
        frontend.send(sent)
        with pytest.raises(ConnectionError):
            frontend.ask(Request.GET_FEATURES)


def test_the_configuration_and_the_number_of_queues() -> None:
    with connected(Device(5, config=b"0123456789")) as (frontend, _):
        frontend.negotiate(protocol_features=PROTOCOL_FEATURES | ProtocolFeature.CONFIG)
        assert frontend.queue_num == 5
        reply = frontend.ask(Request.GET_CONFIG, struct.pack("=III", 2, 3, 0) + bytes(3))
        assert reply == struct.pack("=III", 2, 3, 0) + b"234"


def leave(frontend: Frontend) -> None:
    pass


def leave_in_a_header(frontend: Frontend) -> None:
    frontend.send(frontends.Message(b"\1\0\0\0"))


def leave_in_a_payload(frontend: Frontend) -> None:
    frontend.send(frontends.Message(frontends.number(Request.SET_FEATURES, 1).data[:-1]))


@pytest.mark.parametrize("leaving", [leave, leave_in_a_header, leave_in_a_payload])
def test_a_front_end_that_goes_away(leaving: Callable[[Frontend], None]) -> None:
    with connected() as (frontend, backend):
        frontend.negotiate()
        frontend.start(0)
        leaving(frontend)
        frontend.close()
        backend.join()
        assert not any(vring.is_started for vring in backend.session.vrings)
