"""A split virtqueue, the device's side of it (virtio 1.1, section 2.6).

::

    while True:                                     # when the driver has kicked, and when the queue has begun
        queue.suppress_kicks()
        while (chain := queue.pop()) is not None:   # FormatError: the queue is broken, use it no more
            written = fill(chain.writable, answer(chain.readable))
            queue.push(chain.head, written)
            if queue.wants_call():                  # interrupt the driver
                ...
        if not queue.request_kicks():               # nothing has come in between: wait for a kick
            break

The driver can write to all of it at any time. So each value is read once and then checked, and the data of a chain for
the device is copied out of guest memory before any use. The work for one chain is bounded by the number of descriptors,
its memory by ``max_readable``; the number of waiting and unanswered chains never exceeds the entries of the ring.

**Order of memory accesses.** A processor can delay a store beyond a later load, on every architecture: `wants_call` and
`request_kicks` have a full barrier, without which either side may go to sleep just when the other has notified it. x86
keeps all other accesses in order. ARM and others do not: there the index of available chains is read before the entries
that it covers, and an entry of the used ring is written before the index that covers it, by further barriers. Indexes
are written and read as 16 bits at a time, so no half of one is ever seen.
"""

from __future__ import annotations

import os
import struct
import sys
from threading import Lock
from typing import TYPE_CHECKING, Final, cast

from holdfast.model.errors import FormatError, UnsupportedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.virtio.feature_bits import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.wire.virtio.guest_memory import GuestMemory

MAX_SIZE: Final = 1 << 15
MAX_INDIRECT: Final = 1024
"""Descriptors in an indirect table. A chain may not have more than its ring has entries, but Linux before 5.13 sends a
mebibyte in 260 pieces by rings of 128; 1,024 is also the limit of QEMU, and of one ``preadv``.
"""
DESCRIPTOR_BYTES: Final = 16

_DESCRIPTOR: Final = struct.Struct("<QIHH")
_NEXT: Final = 1
_WRITE: Final = 2
_INDIRECT: Final = 4
_NO_INTERRUPT: Final = 1
_NO_NOTIFY: Final = 1
_INDEX: Final = 0xFFFF

_FLAGS_AT: Final = 0
_INDEX_AT: Final = 1
_ENTRIES_AT: Final = 2
"""In both rings, in units of 16 bits."""

_REORDERS: Final = os.uname().machine not in {"x86_64", "i686", "i586", "i386"}
"""Whether this processor may exchange two loads, or two stores."""


class RingLayout(NamedTuple):
    """How many entries a queue has, and the user addresses of its parts."""

    size: int
    descriptors: int
    available: int
    used: int


class Chain(NamedTuple):
    """A request that the driver has made available, to be answered by `SplitQueue.push`, once and in any order."""

    head: int
    readable: bytes
    """The data from the driver, a copy."""
    writable: list[memoryview]
    """Guest memory for the answer, in order; none is empty."""


# A constructor in Python would cost a fifth of the time to pop a chain.
_new_chain: Final = cast(
    "Callable[[type[Chain], tuple[int, bytes, list[memoryview]]], Chain]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)


class SplitQueue:
    """One queue, for one thread at a time: two that share it need a lock around each call.

    An index that counts chains runs from 0 to 65,535 and begins anew, also where the ring is shorter.
    """

    __slots__ = (
        "_asked",
        "_available",
        "_available_index",
        "_descriptors",
        "_extent_end",
        "_extent_start",
        "_extent_view",
        "_fence",
        "_has_called",
        "_has_event_index",
        "_has_indirect",
        "_layout",
        "_mask",
        "_max_readable",
        "_memory",
        "_position",
        "_signalled",
        "_size",
        "_used",
        "_used_elements",
        "_used_index",
    )

    def __init__(
        self,
        memory: GuestMemory,
        layout: RingLayout,
        features: int,
        *,
        max_readable: int,
        position: int = 0,
        in_flight: int = 0,
    ) -> None:
        """Begin at ``position``, the index of the first chain to take. The ``in_flight`` chains before it were taken by
        an earlier object for the same ring, and must still be answered.

        ``features`` are those agreed upon (`Feature`). A chain with more than ``max_readable`` readable bytes breaks
        the queue. Raises `FormatError` if the size is no power of two up to 32,768, a part of the ring is not in
        memory, or its used index differs; `UnsupportedError` on a big-endian host.
        """
        if sys.byteorder != "little":
            raise UnsupportedError("virtio rings need a little-endian host")
        check_size(layout.size)
        self._layout: Final = layout
        self._size: Final = layout.size
        self._mask: Final = layout.size - 1
        self._has_indirect: Final = bool(features & Feature.INDIRECT_DESC)
        self._has_event_index: Final = bool(features & Feature.EVENT_IDX)
        self._max_readable: Final = max_readable
        self._position = self._available_index = position & _INDEX
        self._used_index = (position - in_flight) & _INDEX
        self._signalled = self._used_index
        self._has_called = False
        self._fence: Final = Lock()
        self._fence.acquire()
        self.remap(memory)
        if self._used[_INDEX_AT] != self._used_index:
            raise FormatError(f"used ring: index {self._used[_INDEX_AT]}, where the queue begins at {self._used_index}")

    def remap(self, memory: GuestMemory) -> None:
        """Go on in ``memory``, which has replaced the one before; chains that were taken keep their views.

        Raises `FormatError` if a part of the ring is not in it.
        """
        layout, size = self._layout, self._size
        descriptors = memory.user_view(layout.descriptors, DESCRIPTOR_BYTES * size)
        available = memory.user_view(layout.available, 6 + 2 * size)
        used = memory.user_view(layout.used, 6 + 8 * size)
        self._memory = memory
        self._descriptors = descriptors
        self._available = available.cast("H")
        self._used = used.cast("H")
        self._used_elements = used[4 : 4 + 8 * size].cast("I")
        self._extent_start = self._extent_end = 0
        self._extent_view = used
        self._asked = -1

    @property
    def position(self) -> int:
        """The index of the next chain to take: what GET_VRING_BASE is answered."""
        return self._position

    @property
    def in_flight(self) -> int:
        """How many chains were taken and are not answered."""
        return (self._position - self._used_index) & _INDEX

    def has_more(self) -> bool:
        """Whether a chain is available, as far as that can be seen yet: after `request_kicks` a kick tells of it."""
        return self._available[_INDEX_AT] != self._position

    def pop(self) -> Chain | None:
        """Take the next chain, or None if there is none. Raises `FormatError` for a violation by the driver; the queue
        is then broken, and only chains taken before can still be answered.
        """
        position = self._position
        available = self._available
        if position == self._available_index:
            index = available[_INDEX_AT]
            if index == position:
                return None
            if (index - position) & _INDEX > self._size - ((position - self._used_index) & _INDEX):
                raise FormatError(f"available ring: index {index} after {position}, in a ring of {self._size}")
            self._available_index = index
            if _REORDERS:
                self._order()
        head = available[_ENTRIES_AT + (position & self._mask)]

        # One loop, without a call for each descriptor: it runs four to six times for a small request, and 260 times for
        # a mebibyte.
        table, base, count = self._descriptors, 0, self._size
        left, at = count, head
        start, end, view = self._extent_start, self._extent_end, self._extent_view
        readable: list[memoryview] = []
        writable: list[memoryview] = []
        room = self._max_readable
        is_indirect = False
        unpack = _DESCRIPTOR.unpack_from
        while True:
            if at >= count:
                raise FormatError(f"descriptor {at}: the table has {count}")
            if not left:
                raise FormatError(f"chain at descriptor {head}: a loop")
            left -= 1
            address, length, flags, following = unpack(table, base + at * DESCRIPTOR_BYTES)
            last = address + length
            if flags & _INDIRECT:
                if is_indirect or flags & _NEXT or not self._has_indirect:
                    raise FormatError(f"chain at descriptor {head}: an indirect table that cannot be here")
                if not length or length % DESCRIPTOR_BYTES or length > DESCRIPTOR_BYTES * MAX_INDIRECT:
                    raise FormatError(f"indirect table: {length} bytes are none, or over {MAX_INDIRECT} descriptors")
                if start <= address and last <= end:
                    table, base = view, address - start
                else:
                    table, base = memoryview(b"".join(self._memory.guest_views(address, length))), 0
                count = left = length // DESCRIPTOR_BYTES
                is_indirect = True
                at = 0
                continue
            if not flags & _WRITE:
                if writable:
                    raise FormatError(f"chain at descriptor {head}: a readable buffer after a writable one")
                room -= length
            if start <= address and last <= end and length:
                (writable if flags & _WRITE else readable).append(view[address - start : last - start])
            else:
                (writable if flags & _WRITE else readable).extend(self._memory.guest_views(address, length))
                start, end, view = self._memory.extent_at(address)
                self._extent_start, self._extent_end, self._extent_view = start, end, view
            if not flags & _NEXT:
                break
            at = following

        if room < 0:
            raise FormatError(f"chain at descriptor {head}: more than {self._max_readable} readable bytes")
        self._position = (position + 1) & _INDEX
        return _new_chain(Chain, (head, b"".join(readable), writable))

    def push(self, head: int, written: int) -> None:
        """Give the chain at ``head`` back to the driver, with ``written`` bytes in its writable part, which must be
        there by now.
        """
        index = self._used_index
        at = (index & self._mask) * 2
        elements = self._used_elements
        elements[at] = head
        elements[at + 1] = written
        if _REORDERS:
            self._order()
        self._used_index = index = (index + 1) & _INDEX
        self._used[_INDEX_AT] = index

    def wants_call(self) -> bool:
        """Whether the driver wants an interrupt for the chains pushed since the last call."""
        index, signalled = self._used_index, self._signalled
        if index == signalled:
            return False
        self._signalled = index
        self._order()
        if not self._has_event_index:
            return not self._available[_FLAGS_AT] & _NO_INTERRUPT
        if not self._has_called:
            # It is unknown what an earlier object has told the driver.
            self._has_called = True
            return True
        event = self._available[_ENTRIES_AT + self._size]
        return (index - event - 1) & _INDEX < (index - signalled) & _INDEX

    def suppress_kicks(self) -> None:
        """Let the driver save its kicks, as chains are taken anyway. With `Feature.EVENT_IDX` it does so by itself."""
        if not self._has_event_index:
            self._used[_FLAGS_AT] = _NO_NOTIFY

    def request_kicks(self) -> bool:
        """Have the driver kick for the next chain. Whether one is there already, for which no kick need come."""
        position = self._position
        if not self._has_event_index:
            self._used[_FLAGS_AT] = 0
            self._order()
        elif position != self._asked:  # (otherwise the driver knows already)
            self._asked = self._used[_ENTRIES_AT + 4 * self._size] = position
            self._order()
        return self._available[_INDEX_AT] != position

    def _order(self) -> None:
        """A full barrier. Releasing and taking a lock is one on x86, as either is a locked instruction, and on ARM,
        where no access passes a release followed by an acquisition; it costs 0.1 microseconds.
        """
        self._fence.release()
        self._fence.acquire()


def check_size(size: int) -> None:
    """Raises `FormatError` if no ring can have ``size`` entries."""
    if not 0 < size <= MAX_SIZE or size & (size - 1):
        raise FormatError(f"ring size {size}: a power of two up to {MAX_SIZE} is needed")


def fill(writable: list[memoryview], data: bytes | bytearray | memoryview) -> int:
    """Copy ``data`` into the writable part of a chain, and return how many bytes it is.

    Raises `FormatError` if the driver has left too little room; what fits has then been written.
    """
    source = memoryview(data)
    size = len(source)
    at = 0
    for target in writable:
        if at == size:
            break
        piece = source[at : at + len(target)]
        target[: len(piece)] = piece
        at += len(piece)
    if at < size:
        raise FormatError(f"writable buffers: {size} bytes are needed, and there is room for {at}")
    return size


def skip(writable: list[memoryview], count: int) -> list[memoryview]:
    """The writable part of a chain without its first ``count`` bytes: where data goes that a system call reads.

    Raises `FormatError` if it has not as many.
    """
    for at, view in enumerate(writable):
        if count < len(view):
            return [view[count:], *writable[at + 1 :]]
        count -= len(view)
    if count:
        raise FormatError(f"writable buffers: {count} bytes too few")
    return []
