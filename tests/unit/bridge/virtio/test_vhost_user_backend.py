"""A guest's file system without a guest: mounts that come and go, rings that stop, and what is hostile."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
from holdfast.testing.vhost_user_frontend import (
    BrokenVringError,
    Frontend,
    RefusedRequestError,
    mem_region,
    mem_table,
    vring_event,
)
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import Wishes
from holdfast.wire.fuse.protocol_constants import Opcode
from holdfast.wire.vhost_user.messages import MemoryRegion
from holdfast.wire.vhost_user.protocol_constants import Request

from ....protocol.fuse import structures as c
from ....protocol.fuse.structures import request
from ....waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply
    from holdfast.testing.virtqueue_driver import DriverQueue
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Header

LIMIT: Final = 20.0
ROOM: Final = 4096
FLOODS: Final = 20
IN_A_FLOOD: Final = 50


class Echo:
    """A file system that answers READLINK; a STATFS waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()

    def wishes(self) -> Wishes:
        return Wishes()

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        return {Opcode.READLINK: self._readlink, Opcode.STATFS: self._statfs, Opcode.FORGET: self._forget}

    def _readlink(self, header: Header, _: Any) -> Reply:
        return replies.data(header.unique, b"tar", b"get")

    def _statfs(self, header: Header, _: Any) -> Reply:
        self.begun.set()
        assert self.go.wait(LIMIT)
        return replies.data(header.unique, b"late")

    def _forget(self, _: Header, __: Any) -> Reply:
        return None


class Guest:
    """A guest with its monitor, and the device that serves it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.device = VhostUserBackend(ours)
        self.frontend = Frontend(theirs, seconds=LIMIT)
        self.frontend.negotiate()
        self.queue: DriverQueue = self.start()
        self.echo = Echo()
        self.server: FuseServer | None = None

    def start(self, base: int = 0) -> DriverQueue:
        self.frontend.start(0)
        return self.frontend.start(1, base=base)

    def mount(self) -> None:
        """Mount, and serve that; the mount before is gone."""
        self.ask_later(Opcode.INIT, bytes(c.InitIn(major=7, minor=38, max_readahead=1 << 17)), unique=1)
        if self.server is not None:
            assert self.server.wait(LIMIT), "the mount before is over"
            assert self.server.stop()
        transport = self.device.accept(LIMIT)
        assert transport is not None
        self.server = FuseServer(transport, self.echo)
        self.server.start()
        assert self.answer()[:2] == (0, 1)

    def ask_later(self, opcode: int, body: bytes = b"", unique: int = 7) -> None:
        self.queue.add([bytes(request(opcode, body, unique=unique))], [ROOM], indirect=True)
        self.frontend.kick(1)

    def answer(self) -> tuple[int, int, bytes]:
        while not (used := self.queue.take_used()):
            self.frontend.wait_for_call(1)
        (chain,) = used
        data = chain.data[: chain.written]
        length, error, unique = struct.unpack_from("=IiQ", data)
        assert length == len(data)
        return -error, unique, data[16:]

    def readlink(self) -> bytes:
        self.ask_later(Opcode.READLINK)
        error, _, target = self.answer()
        assert not error
        return target

    def close(self) -> None:
        self.echo.go.set()
        self.frontend.close()
        if self.server is not None:
            assert self.server.wait(LIMIT), "the front end has hung up"
            assert self.server.stop()
        assert self.device.accept(LIMIT) is None
        self.device.close()


@pytest.fixture(name="guest")
def _guest() -> Iterator[Guest]:
    before = set(os.listdir("/proc/self/fd"))
    guest = Guest()
    yield guest
    guest.close()
    del guest
    left = set(os.listdir("/proc/self/fd")) - before
    assert len(left) <= 1, "descriptors of the connection are left open"


def test_a_guest_mounts_again_after_it_has_booted_anew(guest: Guest) -> None:
    guest.mount()
    assert guest.readlink() == b"target"
    guest.mount()
    assert guest.readlink() == b"target"


def test_what_is_asked_before_a_mount_is_refused(guest: Guest) -> None:
    guest.ask_later(Opcode.READLINK)
    assert guest.device.accept(0.2) is None
    assert guest.answer()[:2] == (errno.ENOTCONN, 7)
    guest.mount()
    assert guest.readlink() == b"target"


def test_a_paused_machine_goes_on_where_it_was(guest: Guest) -> None:
    guest.mount()
    assert guest.readlink() == b"target"
    base = guest.frontend.stop(1)
    assert base == 2
    guest.frontend.stop(0)
    guest.start(base)
    assert guest.readlink() == b"target"


def test_what_is_kept_while_the_machine_pauses_is_answered_when_it_goes_on(guest: Guest) -> None:
    guest.mount()
    guest.ask_later(Opcode.STATFS, unique=9)
    assert guest.echo.begun.wait(LIMIT)
    base = guest.frontend.stop(1)
    guest.echo.go.set()
    assert not guest.queue.take_used(), "nothing is written into a machine that is paused"
    guest.frontend.start(1, base=base)
    assert guest.answer() == (0, 9, b"late")
    assert guest.readlink() == b"target"


def test_what_wants_no_answer_gives_its_chain_back(guest: Guest) -> None:
    guest.mount()
    high = guest.frontend.transact(0, [bytes(request(Opcode.FORGET, bytes(c.ForgetIn(1))))])
    assert high == b""


def test_a_number_that_is_used_twice_is_refused(guest: Guest) -> None:
    guest.mount()
    guest.ask_later(Opcode.STATFS, unique=9)
    assert guest.echo.begun.wait(LIMIT)
    guest.ask_later(Opcode.READLINK, unique=9)
    assert guest.answer()[:2] == (errno.EINVAL, 9)
    guest.echo.go.set()
    assert guest.answer() == (0, 9, b"late")


def test_a_flood_of_one_number_keeps_no_other_from_being_answered(guest: Guest) -> None:
    """Nor does it give the one that has the number another's answer, or keep a thread that looks at the rings."""
    guest.mount()
    guest.ask_later(Opcode.STATFS, unique=9)
    assert guest.echo.begun.wait(LIMIT)
    same, other = bytes(request(Opcode.READLINK, unique=9)), bytes(request(Opcode.READLINK, unique=10))
    answers: Counter[tuple[int, int]] = Counter()
    for _ in range(FLOODS):
        for _ in range(IN_A_FLOOD):
            guest.queue.add([same], [ROOM], indirect=True)
        guest.queue.add([other], [ROOM], indirect=True)
        guest.frontend.kick(1)
        assert guest.server is not None
        guest.server.settle(0.0, lambda: 1)
        left = IN_A_FLOOD + 1
        while left:
            used = guest.queue.take_used()
            answers.update((-error, unique) for error, unique in (_answered(chain.data) for chain in used))
            left -= len(used)
            if left and not used:
                guest.frontend.wait_for_call(1)
    assert answers == {(errno.EINVAL, 9): FLOODS * IN_A_FLOOD, (0, 10): FLOODS}
    guest.echo.go.set()
    assert guest.answer() == (0, 9, b"late")


@pytest.mark.parametrize(
    "frame",
    [b"short", struct.pack("=II32x", 41, Opcode.READLINK), struct.pack("=II32x", 0, Opcode.READLINK)],
    ids=["short", "longer than it is", "no length"],
)
def test_a_request_that_is_none_breaks_its_ring(guest: Guest, frame: bytes) -> None:
    guest.mount()
    with pytest.raises(BrokenVringError):
        guest.frontend.transact(1, [frame], [ROOM])


def test_an_answer_without_room_is_none(guest: Guest) -> None:
    guest.mount()
    frame = bytes(request(Opcode.READLINK, unique=7))
    assert guest.frontend.transact(1, [frame], [17])[:16] == bytes(replies.error(7, errno.EIO))
    assert guest.frontend.transact(1, [frame], [15]) == b""
    assert guest.frontend.transact(1, [frame]) == b""
    assert guest.readlink() == b"target"


def test_one_that_hangs_up_ends_its_mount(guest: Guest) -> None:
    guest.mount()
    guest.frontend.close()
    assert guest.server is not None
    assert guest.server.wait(LIMIT)


def _answered(data: bytes) -> tuple[int, int]:
    _, error, unique = struct.unpack_from("=IiQ", data)
    return error, unique


def _memory(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    memory = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory


def _file(directory: Path) -> int:
    path = directory / "memory"
    path.write_bytes(bytes(1 << 20))
    return os.open(path, os.O_RDWR)


@pytest.mark.parametrize("kind", ["memfd that may shrink", "file"])
def test_memory_that_can_be_made_shorter_is_refused(guest: Guest, kind: str, tmp_path: Path) -> None:
    memory = _file(tmp_path) if kind == "file" else _memory(1 << 20, fcntl.F_SEAL_GROW)
    region = MemoryRegion(0x1_0000_0000, 1 << 20, 0x7000_0000_0000, 0)
    with pytest.raises(RefusedRequestError):
        guest.frontend.command(mem_region(Request.ADD_MEM_REG, region, [memory]))
    os.close(memory)
    guest.mount()
    assert guest.readlink() == b"target"


def test_an_event_that_is_none_is_refused(guest: Guest) -> None:
    guest.mount()
    reading, writing = os.pipe()
    for request_ in (Request.SET_VRING_CALL, Request.SET_VRING_ERR, Request.SET_VRING_KICK):
        with pytest.raises(RefusedRequestError):
            guest.frontend.command(vring_event(request_, 1, writing))
    os.close(reading)
    os.close(writing)
    assert guest.readlink() == b"target"


@pytest.mark.parametrize("hangs_up", [False, True], ids=["stopped", "hangs up"])
def test_an_event_that_is_counted_up_to_its_limit_keeps_no_thread(guest: Guest, hangs_up: bool) -> None:
    """(The fixture has everything closed, and would wait for ever.)"""
    guest.mount()
    assert guest.readlink() == b"target"
    full = os.eventfd(0, os.EFD_CLOEXEC)
    guest.frontend.command(vring_event(Request.SET_VRING_CALL, 1, full))
    os.eventfd_read(full)  # (signalled when it was set)
    os.eventfd_write(full, (1 << 64) - 2)
    guest.ask_later(Opcode.READLINK)
    wait_until(lambda: bool(guest.queue.take_used()))
    assert guest.server is not None
    if hangs_up:
        guest.frontend.close()
        assert guest.server.wait(LIMIT)
    assert guest.server.stop()
    os.close(full)


def test_memory_that_is_not_there_is_refused(guest: Guest) -> None:
    small = _memory(4096)
    region = MemoryRegion(0x1_0000_0000, 1 << 20, 0x7000_0000_0000, 0)
    with pytest.raises(RefusedRequestError):
        guest.frontend.command(mem_region(Request.ADD_MEM_REG, region, [small]))
    os.close(small)
    guest.mount()
    assert guest.readlink() == b"target"


def test_a_table_of_memory_that_is_not_there_leaves_no_descriptor_open(guest: Guest) -> None:
    """(The fixture counts them.)"""
    small = _memory(4096)
    regions = [MemoryRegion(number << 32, 1 << 20, 0x7000_0000_0000 + (number << 32), 0) for number in range(1, 4)]
    with pytest.raises(RefusedRequestError):
        guest.frontend.command(mem_table(regions, [small] * 3))
    os.close(small)
