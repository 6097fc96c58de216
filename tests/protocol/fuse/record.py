"""Records what this machine's kernel says over FUSE, and proves that it takes what is answered.

As root: ``python -m tests.protocol.fuse.record DIRECTORY`` writes ``DIRECTORY/SESSION/OPCODE.txt``; without a directory
it only tries. Everything is in a mount namespace of its own and has a deadline; nothing is left behind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from holdfast.model.errors import HoldfastError
from holdfast.wire.fuse import negotiation, notifications, replies
from holdfast.wire.fuse.negotiation import WANTED, Wishes
from holdfast.wire.fuse.protocol_constants import UNANSWERED, Init, Opcode
from holdfast.wire.fuse.request_bodies import Header, Lock
from holdfast.wire.fuse.request_errors import errno_of
from holdfast.wire.fuse.requests import Decoder, decode_header

from . import scenario
from .memory_server import MemoryServer, Pieces, shown
from .recording import Recording

SECONDS = 60
SESSIONS = {
    "all": (Wishes(flags=WANTED | Init.SECURITY_CTX), scenario.EVERYTHING, frozenset[Opcode]()),
    "none": (
        Wishes(flags=Init(0), max_write=8192),
        scenario.PLAIN,
        frozenset({Opcode.COPY_FILE_RANGE_64, Opcode.STATX}),
    ),
    "passthrough": (Wishes(flags=WANTED | Init.PASSTHROUGH), (scenario.passthrough,), frozenset[Opcode]()),
}
"""What the server wishes, what the client does, and what the server does not know."""
_CLONE_NEWNS, _MS_PRIVATE, _MS_REC, _MNT_DETACH = 0x20000, 1 << 18, 1 << 14, 2
_BACKING_OPEN = 0x4010E501
_libc = ctypes.CDLL(None, use_errno=True)


def mount(device: int, where: str) -> None:
    """Mount ``device`` in a namespace that goes with this process."""
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    for result in (
        _libc.unshare(_CLONE_NEWNS),
        _libc.mount(None, b"/", None, _MS_PRIVATE | _MS_REC, None),
        _libc.mount(b"holdfast-test", where.encode(), b"fuse", 0, options),
    ):
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Session:
    """Serves one client, which is ``parts`` of the scenario in a process of its own."""

    def __init__(
        self, wishes: Wishes, parts: tuple[Callable[[scenario.Control], None], ...], lacking: frozenset[Opcode]
    ) -> None:
        self.wishes = wishes
        self.recording = Recording()
        self.server = MemoryServer(self._notify_later, lambda: os.kill(self._client, signal.SIGUSR1))
        self.server.lacking = lacking
        self._parts = parts
        self._below = os.memfd_create("below")
        self._decoder: Decoder | None = None
        self._minor = 0
        self._buffer = bytearray(1 << 21)
        self._until: Callable[[], bool] | None = None
        """What the client waits for before its order is answered."""
        self._outbox: SimpleQueue[tuple[Pieces, bool] | None] = SimpleQueue()
        self._client = 0

    def run(self) -> None:
        """Raises `AssertionError` if the client failed or took too long."""
        where = tempfile.mkdtemp(prefix="fuse-recording-")
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        ours, theirs = socket.socketpair()
        self._control = ours
        mount(self._device, where)
        sender = Thread(target=self._send_notifications, daemon=True)
        sender.start()
        try:
            self._client = os.fork()
            if self._client == 0:
                self._be_the_client(where, ours, theirs)
            theirs.close()
            status = self._serve()
            self._end(where)
        finally:
            # Without its device the kernel answers whoever still waits: nothing can hang on this mount any more.
            self._outbox.put(None)
            os.close(self._device)
            os.close(self._below)
            _libc.umount2(where.encode(), _MNT_DETACH)
            ours.close()
            sender.join(10)
            os.rmdir(where)
        assert status == 0, "the client failed"
        assert self.server.excess == 0, "the kernel forgot more than it had looked up"

    def _be_the_client(self, where: str, ours: socket.socket, theirs: socket.socket) -> None:
        status = 1
        try:
            os.close(self._device)
            ours.close()
            os.chdir(where)
            scenario.run(self._parts, theirs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _serve(self) -> int:
        """Until the client has ended; returns how."""
        deadline = time.monotonic() + SECONDS
        client = os.pidfd_open(self._client)
        poll = select.poll()
        for descriptor in (self._device, self._control.fileno(), client):
            poll.register(descriptor, select.POLLIN)
        orders = self._control.makefile("r")
        try:
            while True:
                ready = dict(poll.poll(1000))
                if time.monotonic() > deadline:
                    os.kill(self._client, signal.SIGKILL)
                    raise AssertionError(f"not done after {SECONDS} seconds; waiting: {self.server.waiting}")
                if self._device in ready:
                    self._take_request()
                if self._control.fileno() in ready and self._until is None and (order := orders.readline()):
                    self._obey(*json.loads(order))
                if self._until is not None and self._until():
                    self._until = None
                    self._control.sendall(b"ok\n")
                if client in ready and self._device not in ready:
                    return os.waitstatus_to_exitcode(os.waitpid(self._client, 0)[1])
        finally:
            os.close(client)

    def _end(self, where: str) -> None:
        """Unmount, while whatever that makes the kernel say is answered."""
        unmounting = Thread(target=_libc.umount2, args=(where.encode(), 0), daemon=True)
        unmounting.start()
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        deadline = time.monotonic() + SECONDS
        while self._take_request():
            poll.poll(1000)
            assert time.monotonic() < deadline, "the mount does not end"
        unmounting.join(10)

    def _take_request(self) -> bool:
        """Answer what the kernel has to ask, if it has; false if it will never have again."""
        try:
            size = os.readv(self._device, [self._buffer])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return True
            if error.errno == errno.ENODEV:
                return False
            raise
        frame = memoryview(self._buffer)[:size]
        header = decode_header(frame)
        if header.opcode == Opcode.INIT:
            offer = negotiation.decode_offer(frame)
            terms = negotiation.negotiate(offer, self.wishes)
            assert terms is not None
            self._decoder, self._minor = Decoder(terms), terms.minor
            self._reply(header, bytes(frame), shown(offer), (negotiation.encode_terms(header.unique, terms),))
            if terms.flags & Init.PASSTHROUGH:
                os.write(self._below, b"from below")
                below = struct.pack("=iI8x", self._below, 0)
                self.server.backing = fcntl.ioctl(self._device, _BACKING_OPEN, bytearray(below))
            return True
        assert self._decoder is not None
        decoded = None
        try:
            body = self._decoder.decode(header, frame)
            decoded = shown(body)
            answer = self.server.answer(header, body)
        except HoldfastError as error:
            answer = (replies.error(header.unique, errno_of(error)),)
        if decoded is not None:
            anonymous = self.recording.anonymous(header, bytes(frame))
            decoded = shown(self._decoder.decode(header, memoryview(anonymous)))
        if header.opcode in UNANSWERED:
            answer = None
        self._reply(header, bytes(frame), decoded, answer)
        while self.server.ready:
            os.writev(self._device, self.server.ready.pop())
        return True

    def _reply(self, header: Header, frame: bytes, decoded: str | None, answer: Pieces | None) -> None:
        if answer is not None:
            assert os.writev(self._device, answer) == sum(map(len, answer))
        self.recording.add(header, frame, decoded, None if answer is None else b"".join(answer))

    def _notify_later(self, message: bytes) -> None:
        self._outbox.put(((message,), False))

    def _send_notifications(self) -> None:
        while (item := self._outbox.get()) is not None:
            pieces, is_asked_for = item
            result = "ok"
            try:
                os.writev(self._device, pieces)
            except OSError as error:
                result = errno.errorcode[error.errno or 0]
            if is_asked_for:
                self._control.sendall(result.encode() + b"\n")

    def _obey(self, order: str, *arguments: object) -> None:
        server, message = self.server, b""
        match order, *arguments:
            case "put", str(path), str(content):
                folder, _, name = path.rpartition("/")
                existing = server.find(folder).entries.get(name.encode())
                if existing is None:
                    server.make(server.find(folder), name.encode(), 0o100644, content.encode())
                else:
                    existing.content[:] = content.encode()
            case "fill", str(path), int(count):
                folder = server.make(server.root, path.encode(), 0o040755)
                for number in range(count):
                    server.make(folder, b"%04d" % number, 0o100644, b"abc")
            case "drop", str(path):
                folder, _, name = path.rpartition("/")
                del server.find(folder).entries[name.encode()]
            case ("retrieved",):
                self._until = None
                self._control.sendall((server.retrieved[-1][2] if server.retrieved else b"nothing") + b"\n")
                return
            case ("minor",):
                self._control.sendall(b"%d\n" % self._minor)
                return
            case ("below",):
                self._control.sendall(os.pread(self._below, 100, 0) + b"\n")
                return
            case ("wait for a lock",):
                self._until = lambda: any(isinstance(body, Lock) for _, body in server.waiting.values())
                return
            case "wait for forgets", int(count):
                self._until = lambda: len(server.nodes) < count
                return
            case "wait for forgets of", str(path):
                self._until = lambda: server.find(path) not in server.nodes._by_key
                return
            case "inval_inode", str(path), int(offset), int(length):
                message = notifications.invalidate_inode(server.node_of(path), offset, length)
            case "inval_entry", str(parent), str(name), bool(expire_only):
                message = notifications.invalidate_entry(server.node_of(parent), name.encode(), expire_only=expire_only)
            case "delete", str(parent), str(name):
                message = notifications.delete(
                    server.node_of(parent), server.node_of(f"{parent}/{name}"), name.encode()
                )
                del server.find(parent).entries[name.encode()]
            case "store", str(path), int(offset), str(content):
                pieces = notifications.store(server.node_of(path), offset, content.encode())
                self._outbox.put((pieces, True))
                return
            case "retrieve", str(path), int(offset), int(size):
                message = notifications.retrieve(99, server.node_of(path), offset, size)
            case ("new_epoch",):
                message = notifications.new_epoch()
            case "prune", str(path):
                message = notifications.prune([server.node_of(path)])
            case _:
                raise AssertionError(f"no such order: {order} {arguments}")
        if message:
            self._outbox.put(((message,), True))
        else:
            self._control.sendall(b"ok\n")


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for name, (wishes, parts, lacking) in SESSIONS.items():
        session = Session(wishes, parts, lacking)
        session.run()
        print(name, *sorted(opcode.name for opcode in session.recording.exchanges))
        if folder is not None:
            session.recording.write(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
