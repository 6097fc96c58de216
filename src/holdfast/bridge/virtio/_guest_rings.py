"""The rings of a device, as far as they run, and the guest's memory that they are in."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import select
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.syscalls import file_system
from holdfast.model.errors import FormatError
from holdfast.model.log import Log
from holdfast.wire.fuse.replies import HEAD_BYTES
from holdfast.wire.virtio.guest_memory import GuestMemory, MappedRegion
from holdfast.wire.virtio.split_queue import SplitQueue, fill, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.bridge.server.transport import Reply
    from holdfast.wire.vhost_user.messages import MemoryRegion
    from holdfast.wire.vhost_user.session import Vring
    from holdfast.wire.virtio.split_queue import Chain

_LOG = Log(__name__)
_HEADER: Final = struct.Struct("<II Q")
"""How a request begins: length, opcode, ``unique``."""
_HEADER_BYTES: Final = 40
_EVENT: Final = "anon_inode:[eventfd]"
_TMPFS: Final = 0x01021994


class Taken(NamedTuple):
    """A request that was taken from a ring and has no answer yet."""

    ring: Ring
    chain: Chain
    unique: int
    opcode: int


_new_taken: Final = cast(
    "Callable[[type[Taken], tuple[Ring, Chain, int, int]], Taken]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)


class Ring:
    """A ring. For one thread at a time."""

    def __init__(self, vring: Vring, memory: GuestMemory, features: int, limit: int) -> None:
        """Begin. Raises `FormatError` where there is no ring that can be used."""
        self.vring = vring
        self._limit = limit
        self.is_broken = False
        self.is_stopped = False
        """The guest's memory is not to be touched, as in a machine that is paused."""
        self.in_flight = 0
        self._late: list[tuple[Chain, Reply]] = []
        """Replies that have come while it was stopped."""
        self._begin(memory, features)

    def _begin(self, memory: GuestMemory, features: int) -> None:
        vring, layout = self.vring, self.vring.layout
        if layout is None:
            raise FormatError(f"vring {vring.index} has no size or addresses")
        self._queue = SplitQueue(
            memory, layout, features, max_readable=self._limit, position=vring.base, in_flight=self.in_flight
        )
        self.kick = -1 if vring.kick is None else vring.kick

    def stop(self) -> None:
        """Take and write nothing until `resume`."""
        self.is_stopped = True
        self.vring.base = self._queue.position

    def resume(self, memory: GuestMemory, features: int) -> None:
        """Resume where it was stopped, with the unanswered requests. Raises `FormatError` if the ring has changed."""
        self._begin(memory, features)
        self.is_stopped = False
        late, self._late = self._late, []
        for chain, reply in late:
            self.answer(chain, reply)

    @property
    def position(self) -> int:
        """The index of the next chain."""
        return self._queue.position

    def remap(self, memory: GuestMemory) -> None:
        """Continue in memory that has replaced the old one."""
        try:
            self._queue.remap(memory)
        except FormatError as error:
            self._break(error)

    def take(self) -> Taken | None:
        """The next request; None if there is none now."""
        if self.is_broken or self.is_stopped:
            return None
        queue = self._queue
        try:
            chain = queue.pop()
            if chain is None:
                return None
            queue.suppress_kicks()
            if len(chain.readable) < _HEADER_BYTES:
                raise FormatError(f"a request of {len(chain.readable)} bytes has no header")
            length, opcode, unique = _HEADER.unpack_from(chain.readable)
            if length != len(chain.readable):
                raise FormatError(f"a request of {len(chain.readable)} bytes says that it has {length}")
        except FormatError as error:
            self._break(error)
            return None
        self.in_flight += 1
        return _new_taken(Taken, (self, chain, unique, opcode))

    def has_more(self) -> bool:
        """Whether there is a request, as far as it can be seen at a glance."""
        return not (self.is_broken or self.is_stopped) and self._queue.has_more()

    def request_kicks(self) -> bool:
        """Have a kick tell of the next request. Whether there is one already."""
        return not (self.is_broken or self.is_stopped) and self._queue.request_kicks()

    def answer(self, chain: Chain, reply: Reply) -> None:
        """Answer a chain, with nothing if even an error does not fit; later, if the ring is stopped."""
        if self.is_stopped:
            self._late.append((chain, reply))
            return
        try:
            written = write_reply(chain, reply)
        except OSError:
            written = 0
        self.give_back(chain, written)

    def give_back(self, chain: Chain, written: int) -> None:
        """Return a chain to the guest with an answer of ``written`` bytes in it."""
        self.in_flight -= 1
        if self.is_broken:
            return
        self._queue.push(chain.head, written)
        call = self.vring.call
        if call is not None and self._queue.wants_call():
            signal(call)

    def _break(self, error: FormatError) -> None:
        """The guest has broken its ring: nothing more is taken from it until it is started anew."""
        self.is_broken = True
        _LOG.warning("a guest's file system stops: vring %d: %s", self.vring.index, error.message)
        if self.vring.error is not None:
            signal(self.vring.error)


class SharedMemory:
    """The memory that a front end shares."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int, int], MappedRegion] = {}
        self.memory = GuestMemory(())

    def replace(self, regions: Iterable[tuple[MemoryRegion, int]]) -> None:
        """There are these alone. Descriptors are closed. Raises `FormatError`."""
        left = list(regions)
        self._mapped.clear()
        try:
            while left:
                self._map(*left.pop(0))
        finally:
            for _, descriptor in left:
                os.close(descriptor)
        self.memory = GuestMemory(self._mapped.values())

    def add(self, region: MemoryRegion, descriptor: int) -> None:
        """There is one more. The descriptor is closed. Raises `FormatError`."""
        self._map(region, descriptor)
        self.memory = GuestMemory(self._mapped.values())

    def remove(self, region: MemoryRegion) -> None:
        """One no longer exists."""
        self._mapped.pop(region[:3], None)
        self.memory = GuestMemory(self._mapped.values())

    def _map(self, region: MemoryRegion, descriptor: int) -> None:
        try:
            _check_keeps_size(descriptor)
            mapping = mmap.mmap(descriptor, region.mapping_offset + region.size)
        except (OSError, ValueError, OverflowError) as error:
            raise FormatError(f"memory at {region.guest_address:#x} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        view = memoryview(mapping)[region.mapping_offset :]
        self._mapped[region[:3]] = MappedRegion(region.guest_address, region.user_address, view)


def _check_keeps_size(descriptor: int) -> None:
    """Raises `OSError` or `FormatError` unless the file can never shrink, nor huge pages run out: access to a lost page
    of a mapping would end this process (SIGBUS), which serves others too.
    """
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or file_system(descriptor) != _TMPFS:
        raise FormatError("a guest's memory has to be a memfd that is sealed against shrinking, of usual pages")


def write_reply(chain: Chain, reply: Reply) -> int:
    """Write a reply into a chain; returns the number of bytes, 0 if even an error does not fit. Raises `OSError`
    (EMSGSIZE) if only an error fits.
    """
    if reply is None or sum(map(len, chain.writable)) < HEAD_BYTES:
        return 0
    try:
        if isinstance(reply, bytes):
            return fill(chain.writable, reply)
        written = 0
        for piece in reply:
            written += fill(skip(chain.writable, written) if written else chain.writable, piece)
    except FormatError as error:
        raise OSError(errno.EMSGSIZE, error.message) from error
    return written


def check_event(descriptor: int) -> None:
    """Raises `FormatError` if a descriptor is no event (eventfd(2)): to write to anything else might do anything."""
    if os.readlink(proc_path(descriptor)) != _EVENT:
        raise FormatError("an event of a vring is no eventfd")


def let_go(descriptor: int) -> None:
    """Have a thread go on that waits in `signal`, as the front end has counted the event up to its limit."""
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    if asked.poll(0):
        return  # it is writable, and the front end must still see the count
    try:
        os.preadv(descriptor, [bytearray(8)], -1, os.RWF_NOWAIT)
    except BlockingIOError:
        pass  # the front end has read it


def signal(descriptor: int) -> None:
    """Signal an event of the front end. Returns only after `let_go` if that has counted it up to its limit; how it
    blocks is not changed, as both share that.
    """
    try:
        os.eventfd_write(descriptor, 1)
    except BlockingIOError:
        pass  # it is signalled
    except OSError as error:
        _LOG.warning("a virtual machine cannot be told of an answer: %s", error.strerror)
