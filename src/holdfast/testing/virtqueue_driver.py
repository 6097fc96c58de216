"""The driver's side of split virtqueues (virtio 1.1, section 2.6), as in a guest's kernel: for tests of devices.

It works in any writable buffer, and does nothing by itself: the caller decides whether to kick, and when to look for
used chains.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.wire.virtio.feature_bits import Feature
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import DESCRIPTOR_BYTES, RingLayout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

NEXT: Final = 1
WRITE: Final = 2
INDIRECT: Final = 4

_DESCRIPTOR: Final = struct.Struct("<QIHH")
_U16: Final = struct.Struct("<H")
_USED: Final = struct.Struct("<II")
_INDEX: Final = 0xFFFF


class NoSpaceError(Exception):
    """The ring, or the guest's memory, is full until the device has used some chains."""


class GuestRam:
    """One region of guest memory, and what of it is free."""

    def __init__(
        self, buffer: bytearray | mmap | memoryview, guest_address: int = 0, user_address: int = 0x7F00_0000_0000
    ) -> None:
        self.view: Final = memoryview(buffer).cast("B")
        self.guest_address: Final = guest_address
        self.user_address: Final = user_address
        self._free = [(0, len(self.view))]

    @property
    def region(self) -> MappedRegion:
        """The region as a device has it."""
        return MappedRegion(self.guest_address, self.user_address, self.view)

    def memory(self) -> GuestMemory:
        """A guest that has no other memory."""
        return GuestMemory([self.region])

    def allocate(self, size: int, alignment: int = 1) -> int:
        """Take ``size`` bytes, and return their offset. Raises `NoSpaceError`."""
        for at, (start, end) in enumerate(self._free):
            begin = -(-start // alignment) * alignment
            if begin + size <= end:
                rest = [(start, begin), (begin + size, end)]
                self._free[at : at + 1] = [(low, high) for low, high in rest if low < high]
                return begin
        raise NoSpaceError(f"no {size} bytes are free")

    def free(self, offset: int, size: int) -> None:
        """Give back what `allocate` has given."""
        spans: list[tuple[int, int]] = []
        for start, end in sorted([*self._free, (offset, offset + size)]):
            if spans and spans[-1][1] == start:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        self._free = spans


class UsedChain(NamedTuple):
    """A chain returned by the device."""

    head: int
    written: int
    data: bytes
    """All of the writable part, also what the device has not written to."""


class _Pending(NamedTuple):
    descriptors: list[int]
    spans: list[tuple[int, int]]
    writable: list[tuple[int, int]]


class DriverQueue:
    """The driver's side of one queue, in memory of ``ram``."""

    def __init__(self, ram: GuestRam, size: int, features: int = 0, *, position: int = 0) -> None:
        """Lay the ring out; ``position`` is the index of the first chain, and of the first one used."""
        self.ram: Final = ram
        self.size: Final = size
        self.descriptors_at: Final = ram.allocate(DESCRIPTOR_BYTES * size, 16)
        self.available_at: Final = ram.allocate(6 + 2 * size, 2)
        self.used_at: Final = ram.allocate(6 + 8 * size, 4)
        self.features: Final = features
        self.available_index = position
        self.used_index = position
        self._kicked = position
        self._free = list(range(size))[::-1]
        self._pending: dict[int, _Pending] = {}
        ram.view[self.available_at : self.available_at + 6 + 2 * size] = bytes(6 + 2 * size)
        ram.view[self.used_at : self.used_at + 6 + 8 * size] = bytes(6 + 8 * size)
        self._store(self.available_at + 2, position)
        self._store(self.used_at + 2, position)
        self.request_calls()

    @property
    def layout(self) -> RingLayout:
        """Where its parts are, by user addresses."""
        user = self.ram.user_address
        return RingLayout(self.size, user + self.descriptors_at, user + self.available_at, user + self.used_at)

    @property
    def in_flight(self) -> int:
        """How many chains the device has, or has used without `take_used` having seen it."""
        return len(self._pending)

    def add(self, readable: Sequence[bytes], writable: Sequence[int] = (), *, indirect: bool = False) -> int:
        """Make a chain available: what the device reads, in pieces, and how long the buffers are that it may write to.

        Returns its head, the index of its first descriptor. Raises `NoSpaceError`, and has then changed nothing.
        """
        count = 1 if indirect else len(readable) + len(writable)
        if count > len(self._free):
            raise NoSpaceError(f"no {count} descriptors are free")
        spans: list[tuple[int, int]] = []
        try:
            for size in (*map(len, readable), *writable):
                offset = self.ram.allocate(size)
                spans.append((offset, size))
            if indirect:
                size = DESCRIPTOR_BYTES * len(spans)
                spans.append((self.ram.allocate(size, 16), size))
        except NoSpaceError:
            for span in spans:
                self.ram.free(*span)
            raise
        buffers = spans[: len(readable) + len(writable)]
        for (offset, size), data in zip(buffers, readable, strict=False):
            self.ram.view[offset : offset + size] = data
        descriptors = [self._free.pop() for _ in range(count)]
        if indirect:
            self._link(spans[-1][0], list(range(len(buffers))), buffers, len(readable))
            self.describe(descriptors[0], self.ram.guest_address + spans[-1][0], spans[-1][1], INDIRECT)
        else:
            self._link(self.descriptors_at, descriptors, buffers, len(readable))
        head = descriptors[0]
        self._pending[head] = _Pending(descriptors, spans, buffers[len(readable) :])
        self.publish(head)
        return head

    def describe(self, index: int, address: int, length: int, flags: int, following: int = 0) -> None:
        """Write a descriptor of the table, with any values."""
        _DESCRIPTOR.pack_into(
            self.ram.view, self.descriptors_at + DESCRIPTOR_BYTES * index, address, length, flags, following
        )

    def publish(self, head: int) -> None:
        """Make the chain that begins at ``head`` available, valid or not."""
        self._store(self.available_at + 4 + 2 * (self.available_index % self.size), head)
        self.available_index = (self.available_index + 1) & _INDEX
        self._store(self.available_at + 2, self.available_index)

    def take_used(self) -> list[UsedChain]:
        """The chains used by the device since the last call, in its order. Raises `AssertionError` for a chain that it
        does not have.
        """
        found: list[UsedChain] = []
        while self.used_index != self._load(self.used_at + 2):
            at = self.used_at + 4 + _USED.size * (self.used_index % self.size)
            head, written = _USED.unpack_from(self.ram.view, at)
            assert head in self._pending, f"the device has used {head}, which it does not have"
            descriptors, spans, writable = self._pending.pop(head)
            data = b"".join(self.ram.view[offset : offset + size] for offset, size in writable)
            assert written <= len(data), f"{written} bytes in a writable part of {len(data)}"
            for span in spans:
                self.ram.free(*span)
            self._free += descriptors
            self.used_index = (self.used_index + 1) & _INDEX
            found.append(UsedChain(head, written, data))
        if self._calls_requested:
            self.request_calls()
        return found

    def wants_kick(self) -> bool:
        """Whether the device wants to be notified of the chains made available since the last call."""
        new, old = self.available_index, self._kicked
        self._kicked = new
        if new == old:
            return False
        if self.features & Feature.EVENT_IDX:
            event = self._load(self.used_at + 4 + 8 * self.size)
            return (new - event - 1) & _INDEX < (new - old) & _INDEX
        return not self._load(self.used_at) & 1

    def request_calls(self, after: int = 1) -> None:
        """Have the device interrupt, with `Feature.EVENT_IDX` when it has used ``after`` chains."""
        self._calls_requested = True
        if self.features & Feature.EVENT_IDX:
            self._store(self.available_at + 4 + 2 * self.size, (self.used_index + after - 1) & _INDEX)
        else:
            self._store(self.available_at, 0)

    def suppress_calls(self) -> None:
        """Keep the device from interrupting; with `Feature.EVENT_IDX` only by not advancing the index."""
        self._calls_requested = False
        if not self.features & Feature.EVENT_IDX:
            self._store(self.available_at, 1)

    def _link(self, table: int, descriptors: list[int], buffers: list[tuple[int, int]], readable: int) -> None:
        for at, (offset, size) in enumerate(buffers):
            is_last = at + 1 == len(buffers)
            flags = (0 if at < readable else WRITE) | (0 if is_last else NEXT)
            following = 0 if is_last else descriptors[at + 1]
            place = table + DESCRIPTOR_BYTES * descriptors[at]
            _DESCRIPTOR.pack_into(self.ram.view, place, self.ram.guest_address + offset, size, flags, following)

    def _load(self, offset: int) -> int:
        return _U16.unpack_from(self.ram.view, offset)[0]

    def _store(self, offset: int, value: int) -> None:
        _U16.pack_into(self.ram.view, offset, value)
