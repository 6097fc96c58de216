"""The front end's side of vhost-user: what QEMU would say to a back end, without a virtual machine.

The functions encode messages; `Frontend` is a guest with its monitor, over a connected socket::

    with Frontend(connection) as frontend:
        frontend.negotiate()
        frontend.start(1)
        reply = frontend.transact(1, [request], [4096])
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.testing.virtqueue_driver import DriverQueue, GuestRam
from holdfast.wire.vhost_user import protocol_constants
from holdfast.wire.vhost_user.messages import HEADER_BYTES, MemoryRegion
from holdfast.wire.vhost_user.protocol_constants import ProtocolFeature, Request
from holdfast.wire.virtio.feature_bits import Feature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from holdfast.wire.virtio.split_queue import RingLayout

ALL_FEATURES: Final = int(Feature.VERSION_1 | Feature.INDIRECT_DESC | Feature.EVENT_IDX) | (
    protocol_constants.PROTOCOL_FEATURES
)
PROTOCOL_FEATURES: Final = ProtocolFeature.MQ | ProtocolFeature.REPLY_ACK | ProtocolFeature.CONFIGURE_MEM_SLOTS


class Message(NamedTuple):
    """The bytes and descriptors to send at once."""

    data: bytes
    descriptors: tuple[int, ...] = ()


def message(
    request: int, payload: bytes = b"", descriptors: Sequence[int] = (), *, needs_reply: bool = False
) -> Message:
    """Any request."""
    flags = protocol_constants.VERSION | (protocol_constants.FLAG_NEED_REPLY if needs_reply else 0)
    return Message(struct.pack("=III", request, flags, len(payload)) + payload, tuple(descriptors))


def number(request: int, value: int, *, needs_reply: bool = False) -> Message:
    """A request that is one number of 64 bits."""
    return message(request, struct.pack("=Q", value), needs_reply=needs_reply)


def vring_state(request: int, index: int, value: int = 0, *, needs_reply: bool = False) -> Message:
    """SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE."""
    return message(request, struct.pack("=II", index, value), needs_reply=needs_reply)


def vring_addresses(index: int, layout: RingLayout, flags: int = 0, *, needs_reply: bool = False) -> Message:
    """SET_VRING_ADDR."""
    payload = struct.pack("=IIQQQQ", index, flags, layout.descriptors, layout.used, layout.available, 0)
    return message(Request.SET_VRING_ADDR, payload, needs_reply=needs_reply)


def vring_event(request: int, index: int, descriptor: int | None, *, needs_reply: bool = False) -> Message:
    """SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR."""
    value = index | (protocol_constants.NO_DESCRIPTOR if descriptor is None else 0)
    descriptors = () if descriptor is None else (descriptor,)
    return message(request, struct.pack("=Q", value), descriptors, needs_reply=needs_reply)


def mem_table(regions: Sequence[MemoryRegion], descriptors: Sequence[int], *, needs_reply: bool = False) -> Message:
    """SET_MEM_TABLE."""
    payload = struct.pack("=I4x", len(regions)) + b"".join(struct.pack("=QQQQ", *region) for region in regions)
    return message(Request.SET_MEM_TABLE, payload, descriptors, needs_reply=needs_reply)


def mem_region(
    request: int, region: MemoryRegion, descriptors: Sequence[int] = (), *, needs_reply: bool = False
) -> Message:
    """ADD_MEM_REG, REM_MEM_REG."""
    return message(request, struct.pack("=8xQQQQ", *region), descriptors, needs_reply=needs_reply)


def config(request: int, offset: int, data: bytes, flags: int = 0, *, needs_reply: bool = False) -> Message:
    """GET_CONFIG, with as many bytes as requested; SET_CONFIG."""
    return message(request, struct.pack("=III", offset, len(data), flags) + data, needs_reply=needs_reply)


class RefusedRequestError(Exception):
    """The back end has answered that a request has failed."""


class BrokenVringError(Exception):
    """The back end has signalled that it does not process this ring any more."""


class _Vring(NamedTuple):
    queue: DriverQueue
    kick: int
    call: int
    error: int

    def close(self) -> None:
        for descriptor in self[1:]:
            os.close(descriptor)


class Frontend:
    """A virtual machine's memory and its rings, with a device of a back end. Everything waits ``seconds`` at most."""

    def __init__(self, connection: socket.socket, *, memory_bytes: int = 16 << 20, seconds: float = 30) -> None:
        """Takes over ``connection``."""
        self._socket: Final = connection
        self._seconds: Final = seconds
        connection.settimeout(seconds)
        self._memory = os.memfd_create("guest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._memory, memory_bytes)
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.ram: Final = GuestRam(mmap.mmap(self._memory, memory_bytes), guest_address=0x4000_0000)
        self.region: Final = MemoryRegion(self.ram.guest_address, memory_bytes, self.ram.user_address, 0)
        self.features = 0
        self.protocol_features = ProtocolFeature(0)
        self.queue_num = 0
        self._queues: dict[int, DriverQueue] = {}
        self._vrings: dict[int, _Vring] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away without a word, as a front end does that is killed."""
        self._socket.close()
        for vring in self._vrings.values():
            vring.close()
        self._vrings.clear()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def send(self, sent: Message) -> None:
        """Send any message."""
        socket.send_fds(self._socket, [sent.data], list(sent.descriptors))

    def receive(self, request: int) -> bytes:
        """The payload of the reply to a request. Raises `ConnectionError` if the connection was closed instead."""
        replied, flags, size = struct.unpack("=III", self._read(HEADER_BYTES))
        assert replied == request, f"a reply to {replied}, not to {request}"
        assert flags == protocol_constants.VERSION | protocol_constants.FLAG_REPLY, f"flags {flags:#x}"
        return self._read(size)

    def ask(self, request: int, payload: bytes = b"") -> bytes:
        """Send a request that has its own reply, and return that."""
        self.send(message(request, payload))
        return self.receive(request)

    def command(self, sent: Message) -> None:
        """Send a request, and wait until it was carried out, if the back end says so. Raises `RefusedRequestError`."""
        request, flags, size = struct.unpack_from("=III", sent.data)
        if ProtocolFeature.REPLY_ACK not in self.protocol_features:
            self.send(sent)
            return
        head = struct.pack("=III", request, flags | protocol_constants.FLAG_NEED_REPLY, size)
        self.send(Message(head + sent.data[HEADER_BYTES:], sent.descriptors))
        if any(self.receive(request)):
            raise RefusedRequestError(Request(request).name)

    def negotiate(self, features: int = ALL_FEATURES, protocol_features: ProtocolFeature = PROTOCOL_FEATURES) -> None:
        """Agree upon those of the features that the back end has, take the device, and share the memory."""
        offered = _number(self.ask(Request.GET_FEATURES))
        possible = _number(self.ask(Request.GET_PROTOCOL_FEATURES))
        agreed = protocol_features & ProtocolFeature(possible)
        self.send(number(Request.SET_PROTOCOL_FEATURES, agreed))
        self.protocol_features = agreed
        if ProtocolFeature.MQ in agreed:
            self.queue_num = _number(self.ask(Request.GET_QUEUE_NUM))
        self.command(message(Request.SET_OWNER))
        self.features = features & offered
        self.command(number(Request.SET_FEATURES, self.features))
        if ProtocolFeature.CONFIGURE_MEM_SLOTS in agreed:
            self.command(mem_region(Request.ADD_MEM_REG, self.region, [self._memory]))
        else:
            self.command(mem_table([self.region], [self._memory]))

    def start(self, index: int, size: int = 128, base: int = 0) -> DriverQueue:
        """Begin with a ring, or go on with it after `stop`, at the ``base`` that this has returned."""
        queue = self._queues.get(index)
        if queue is None:
            queue = self._queues[index] = DriverQueue(self.ram, size, self.features, position=base)
        vring = _Vring(queue, *(os.eventfd(0, os.EFD_CLOEXEC) for _ in range(3)))
        self._vrings[index] = vring
        self.command(vring_state(Request.SET_VRING_NUM, index, queue.size))
        self.command(vring_state(Request.SET_VRING_BASE, index, base))
        self.command(vring_addresses(index, queue.layout))
        self.command(vring_event(Request.SET_VRING_KICK, index, vring.kick))
        self.command(vring_event(Request.SET_VRING_CALL, index, vring.call))
        self.command(vring_event(Request.SET_VRING_ERR, index, vring.error))
        self.command(vring_state(Request.SET_VRING_ENABLE, index, 1))
        return queue

    def stop(self, index: int) -> int:
        """Stop a ring, and return the position at which to resume."""
        found, base = struct.unpack("=II", self.ask(Request.GET_VRING_BASE, struct.pack("=II", index, 0)))
        assert found == index
        self._vrings.pop(index).close()
        return base

    def kick(self, index: int) -> None:
        """Tell the device that chains are available, if it wants to know."""
        vring = self._vrings[index]
        if vring.queue.wants_kick():
            os.eventfd_write(vring.kick, 1)

    def wait_for_call(self, index: int) -> None:
        """Wait for an interrupt. Raises `TimeoutError`, or `BrokenVringError` if there will be none."""
        vring = self._vrings[index]
        ready, _, _ = select.select([vring.call, vring.error], [], [], self._seconds)
        if vring.call in ready:
            os.eventfd_read(vring.call)
        elif ready:
            raise BrokenVringError(f"vring {index}")
        else:
            raise TimeoutError(f"no interrupt for vring {index}")

    def transact(
        self, index: int, readable: Sequence[bytes], writable: Sequence[int] = (), *, indirect: bool = True
    ) -> bytes:
        """Have the device answer the only request in this ring, and return the bytes that it has written."""
        vring = self._vrings[index]
        head = vring.queue.add(readable, writable, indirect=indirect)
        self.kick(index)
        while not (used := vring.queue.take_used()):
            self.wait_for_call(index)
        assert [chain.head for chain in used] == [head]
        return used[0].data[: used[0].written]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the back end has closed the connection")
            data += piece
        return data


def _number(payload: bytes) -> int:
    return struct.unpack("=Q", payload)[0]
