"""The loop that answers a kernel, over each transport: what is answered, whatever becomes of a request."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
from collections import deque
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from holdfast.bridge.server import request_threads
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
from holdfast.model.errors import HeldError, IntegrityError, StorageError, UnsupportedError
from holdfast.testing.memory_transport import MemoryTransport
from holdfast.testing.vhost_user_frontend import Frontend
from holdfast.vfs.file_system import TooManyError
from holdfast.wire.fuse import replies
from holdfast.wire.fuse.negotiation import Wishes
from holdfast.wire.fuse.protocol_constants import Opcode

from ....protocol.fuse import structures as c
from ....protocol.fuse.structures import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.bridge.server.loop import Operation
    from holdfast.bridge.server.transport import Reply, Transport
    from holdfast.wire.fuse.negotiation import Terms
    from holdfast.wire.fuse.request_bodies import Header

_LIMIT: Final = 20.0


class Operations:
    """A file system of a few operations."""

    def __init__(self, **operations: Callable[[Header, Any], Reply]) -> None:
        self._operations = {int(Opcode[name]): operation for name, operation in operations.items()}

    def wishes(self) -> Wishes:
        return Wishes()

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        return self._operations


class Kernel:
    """The other end of a server."""

    def __init__(self, line: Line, file_system: Operations) -> None:
        self.line = line
        self._file_system = file_system

    @cached_property
    def server(self) -> FuseServer:
        """Made when INIT was said already: in a guest, it is that which makes a mount."""
        return FuseServer(self.line.transport(), self._file_system)

    def start(self, major: int = 7, minor: int = 45) -> None:
        self.say(Opcode.INIT, bytes(c.InitIn(major=major, minor=minor, max_readahead=1 << 17)), unique=1)
        self.server.start()
        assert self.answer()[:2] == (0, 1)

    def say(self, opcode: int, body: bytes = b"", unique: int = 7) -> None:
        self.line.send(bytes(request(opcode, body, unique=unique)))

    def answer(self) -> tuple[int, int, bytes]:
        """The errno, the id, and the rest of the next reply."""
        data = self.line.answer()
        length, error, unique = struct.unpack_from("=IiQ", data)
        assert length == len(data)
        return -error, unique, data[16:]

    def ask(self, opcode: int, body: bytes = b"") -> int:
        self.say(opcode, body)
        error, unique, _ = self.answer()
        assert unique == 7
        return error


class Line(Protocol):
    """A transport with its kernel's end."""

    def transport(self) -> Transport: ...

    def send(self, frame: bytes) -> None: ...

    def answer(self) -> bytes: ...

    def close(self) -> None: ...


class DeviceLine:
    """A socket takes the part of the kernel behind the device."""

    def __init__(self) -> None:
        self._socket, self._device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_LIMIT)

    def transport(self) -> Transport:
        return DeviceTransport(self._device.fileno())

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def answer(self) -> bytes:
        return self._socket.recv(1 << 20)

    def close(self) -> None:
        self._socket.close()
        self._device.close()


class MemoryLine:
    def __init__(self) -> None:
        self.memory = MemoryTransport()

    def transport(self) -> Transport:
        return self.memory

    def send(self, frame: bytes) -> None:
        self.memory.send(frame)

    def answer(self) -> bytes:
        return self.memory.answer(_LIMIT)

    def close(self) -> None:
        assert not self.memory.unanswered


class GuestLine:
    """A guest's memory and rings, without a virtual machine."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.backend = VhostUserBackend(ours)
        self.frontend = Frontend(theirs, seconds=_LIMIT)
        self.frontend.negotiate()
        self.frontend.start(0)
        self._requests = self.frontend.start(1)
        self._answers: deque[bytes] = deque()

    def transport(self) -> Transport:
        found = self.backend.accept(_LIMIT)
        assert found is not None
        return found

    def send(self, frame: bytes) -> None:
        self._requests.add([frame], [1 << 12], indirect=True)
        self.frontend.kick(1)

    def answer(self) -> bytes:
        while not self._answers:
            used = self._requests.take_used()
            self._answers.extend(chain.data[: chain.written] for chain in used if chain.written)
            if not used:
                self.frontend.wait_for_call(1)
        return self._answers.popleft()

    def close(self) -> None:
        self.backend.close()
        self.frontend.close()


@pytest.fixture(name="serve", params=[DeviceLine, MemoryLine, GuestLine], ids=["device", "memory", "guest"])
def _serve(request: pytest.FixtureRequest) -> Iterator[Callable[..., Kernel]]:
    kernels: list[Kernel] = []

    def serve(**operations: Callable[[Header, Any], Reply]) -> Kernel:
        kernels.append(Kernel(request.param(), Operations(**operations)))
        return kernels[-1]

    yield serve
    for kernel in kernels:
        assert kernel.server.stop()
        kernel.line.close()


def failing(error: Exception) -> Callable[[Header, Any], Reply]:
    def fail(_: Header, __: object) -> Reply:
        raise error

    return fail


def test_what_is_asked_is_answered_and_what_is_not_known_is_not_there(serve: Callable[..., Kernel]) -> None:
    kernel = serve(READLINK=lambda header, _: replies.data(header.unique, b"tar", b"get"))
    kernel.start()
    kernel.say(Opcode.READLINK)
    assert kernel.answer() == (0, 7, b"target")
    assert kernel.ask(Opcode.STATFS) == errno.ENOSYS
    assert kernel.ask(4711) == errno.ENOSYS
    assert kernel.ask(Opcode.LOOKUP, b"a/b\0") == errno.EINVAL
    assert kernel.ask(Opcode.LOOKUP, b"n" * 300 + b"\0") == errno.ENAMETOOLONG


def test_nobody_waits_for_forgets_and_interrupts_are_told_never_to_come(serve: Callable[..., Kernel]) -> None:
    kernel = serve()
    kernel.start()
    kernel.say(Opcode.FORGET, bytes(c.ForgetIn(1)), unique=8)
    kernel.say(Opcode.FORGET, b"garbage", unique=8)
    assert kernel.ask(Opcode.INTERRUPT, bytes(c.InterruptIn(3))) == errno.ENOSYS


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "number", "said"),
    [
        (IsADirectoryError(errno.EISDIR, "x"), errno.EISDIR, None),
        (OSError("without a number"), errno.EIO, None),
        (IntegrityError("a: blob x is damaged"), errno.EIO, "blob x is damaged"),
        (StorageError("no network"), errno.EIO, "no network"),
        (caused(StorageError("no log"), OSError(errno.EDQUOT, "x")), errno.EDQUOT, "no log"),
        (caused(StorageError("no log"), OSError(errno.EACCES, "x")), errno.EIO, "no log"),
        (TooManyError(), errno.ENFILE, None),
        (ValueError("oops"), errno.EIO, "mistake"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_fails_is_an_error_of_that_request_alone(
    serve: Callable[..., Kernel],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    number: int,
    said: str | None,
) -> None:
    kernel = serve(STATFS=failing(error), READLINK=lambda header, _: replies.done(header.unique))
    kernel.start()
    with caplog.at_level(logging.WARNING):
        assert kernel.ask(Opcode.STATFS) == number
        assert kernel.ask(Opcode.READLINK) == 0
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (said is not None)
    assert all(said in message for message in messages if said is not None)


def test_one_that_takes_long_holds_up_nobody_else(serve: Callable[..., Kernel]) -> None:
    ready, go = os.pipe()

    def slow(header: Header, _: object) -> Reply:
        os.read(ready, 1)
        return replies.done(header.unique)

    kernel = serve(STATFS=slow, READLINK=lambda header, _: replies.done(header.unique))
    kernel.start()
    kernel.say(Opcode.STATFS, unique=2)
    assert [kernel.ask(Opcode.READLINK) for _ in range(20)] == [0] * 20
    os.write(go, b"x")
    assert kernel.answer()[:2] == (0, 2)
    os.close(ready)
    os.close(go)


def test_what_takes_no_time_is_answered_by_one_thread(
    serve: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_threads, "TICK_SECONDS", 60.0)  # on a busy machine everything may take long
    by: list[int] = []

    def note(header: Header, _: object) -> Reply:
        by.append(threading.get_ident())
        return replies.done(header.unique)

    kernel = serve(READLINK=note)
    kernel.start()
    for _ in range(20):
        for unique in range(2, 12):
            kernel.say(Opcode.READLINK, unique=unique)
        assert sorted(kernel.answer()[1] for _ in range(10)) == list(range(2, 12))
    assert len(set(by)) == 1


def test_those_that_take_long_hold_up_nobody_else_though_all_but_one_thread_have_one(
    serve: Callable[..., Kernel],
) -> None:
    ready, go = os.pipe()

    def slow(header: Header, _: object) -> Reply:
        os.read(ready, 1)
        return replies.done(header.unique)

    kernel = serve(STATFS=slow, FSYNC=slow, READLINK=lambda header, _: replies.done(header.unique))
    kernel.start()
    for unique in (2, 3):
        kernel.say(Opcode.STATFS, unique=unique)
    kernel.say(Opcode.FSYNC, struct.pack("=QI4x", 1, 0), unique=4)
    assert [kernel.ask(Opcode.READLINK) for _ in range(20)] == [0] * 20
    os.write(go, b"xxx")
    assert sorted(kernel.answer()[1] for _ in range(3)) == [2, 3, 4]
    os.close(ready)
    os.close(go)


def test_all_is_answered_when_the_thread_that_has_done_what_lasts_takes_nothing_more(
    serve: Callable[..., Kernel],
) -> None:
    ready, go = os.pipe()

    def slow(header: Header, _: object) -> Reply:
        os.read(ready, 1)
        return replies.done(header.unique)

    kernel = serve(SYNCFS=slow, READLINK=lambda header, _: replies.done(header.unique))
    kernel.start()
    kernel.say(Opcode.SYNCFS, bytes(8), unique=2)
    assert kernel.ask(Opcode.READLINK) == 0, "by another one"
    os.write(go, b"x")
    assert kernel.answer()[:2] == (0, 2)
    os.close(ready)
    os.close(go)
    assert kernel.server.settle(5, lambda: 0)


def test_a_kernel_that_is_too_old_is_told_and_refused(serve: Callable[..., Kernel]) -> None:
    kernel = serve()
    kernel.say(Opcode.INIT, bytes(c.InitIn(major=7, minor=30)), unique=1)
    with pytest.raises(UnsupportedError):
        kernel.server.start()
    assert kernel.answer() == (errno.EPROTO, 1, b"")


def test_a_kernel_of_a_newer_major_version_asks_again(serve: Callable[..., Kernel]) -> None:
    kernel = serve()
    kernel.say(Opcode.INIT, bytes(c.InitIn(major=8, minor=1)), unique=1)
    kernel.say(Opcode.INIT, bytes(c.InitIn(major=7, minor=45)), unique=2)
    kernel.server.start()
    assert [struct.unpack_from("=II", kernel.answer()[2])[0] for _ in range(2)] == [7, 7]


def test_it_can_be_ended_while_nobody_asks_anything(serve: Callable[..., Kernel]) -> None:
    kernel = serve()
    kernel.start()
    assert not kernel.server.wait(0)
    assert kernel.server.stop()
    assert kernel.server.wait(0)


def test_when_nothing_is_mounted_any_more_it_ends() -> None:
    line = MemoryLine()
    kernel = Kernel(line, Operations())
    kernel.start()
    line.memory.hang_up()
    assert kernel.server.wait(_LIMIT)
    assert kernel.server.stop()


def test_a_mount_that_is_gone_before_it_is_served_is_refused() -> None:
    line = MemoryLine()
    kernel = Kernel(line, Operations())
    line.memory.hang_up()
    with pytest.raises(StorageError, match="gone before"):
        kernel.server.start()
    assert kernel.server.stop()


def test_of_what_a_safeguard_holds_there_is_a_limit(
    serve: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_threads, "MOST_HELD", 3)
    allowed = threading.Event()
    held: SimpleQueue[int] = SimpleQueue()

    def unlink(header: Header, _: Any) -> Reply:
        if not allowed.is_set():
            held.put(int(header.unique))
            raise HeldError(1, "a safeguard holds it")
        return replies.done(header.unique)

    kernel = serve(UNLINK=unlink, STATFS=lambda header, _: replies.done(header.unique))
    kernel.start()
    for unique in (10, 11, 12):
        kernel.say(Opcode.UNLINK, b"name\0", unique=unique)
        asked = 0
        while asked < 2:  # (the second time by a thread of its own)
            asked += held.get(timeout=_LIMIT) == unique
    kernel.say(Opcode.UNLINK, b"name\0", unique=13)
    assert kernel.answer()[:2] == (errno.ENOSPC, 13)
    assert kernel.ask(Opcode.STATFS) == 0, "others are served"
    allowed.set()
    assert sorted(kernel.answer()[:2] for _ in range(3)) == [(0, 10), (0, 11), (0, 12)]
    kernel.say(Opcode.UNLINK, b"name\0", unique=14)
    assert kernel.answer()[:2] == (0, 14)
