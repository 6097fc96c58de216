"""The watcher's end of its private socket: who may speak, and how much, without any client ever holding it up.

Nothing here blocks: a client that sends half a line or garbage, or does not read its answer, costs a bounded buffer
until its time is up, and then its connection.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import WATCH_LOCK, WATCH_SOCKET
from holdfast.ipc.private_socket import address, peer_of
from holdfast.model.errors import FormatError, LockedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.wire.watch_messages import MAX_CALL_BYTES, encode_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.model.clock import Clock

_log = Log(__name__)
_PIECE = 1 << 16
_BACKLOG = 64


class ClientLimits(NamedTuple):
    """What one client may take; times in seconds."""

    clients: int = 64
    request: float = 10.0
    """From the first byte of a line to its end."""
    answer: float = 60.0
    """For taking in an answer."""
    idle: float = 60.0
    """Without a call, unless the client keeps something by being there."""


class ClientConnection:
    """One connection. ``keeps`` is for the answering side: True if the connection must not be ended for being idle."""

    __slots__ = ("deadline", "descriptors", "inbox", "keeps", "last", "outbox", "socket")

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.deadline = deadline
        self.keeps = False
        self.descriptors: list[int] = []
        """What came with the line, open until that is answered."""
        self.last = False
        """True if the connection ends when the outbox is empty."""


class SocketListener:
    """Serves the socket in ``folder``, as far as the caller's selector says that there is something to do.

    ``answer(client, line)`` gives the line to send back; ``left(client)`` is told of every end of a connection.
    """

    def __init__(
        self,
        folder: bytes,
        selector: selectors.BaseSelector,
        clock: Clock,
        answer: Callable[[ClientConnection, bytes], bytes],
        left: Callable[[ClientConnection], None],
        limits: ClientLimits,
        name: bytes = WATCH_SOCKET,
        *,
        descriptors: int = 0,
    ) -> None:
        """Bind the socket, mode 0600, in place of one that a dead process left. The caller holds the watcher's lock,
        or gives a name that no other socket has. ``descriptors`` is how many may come with a line.
        """
        self._path = folder + b"/" + name
        self._selector = selector
        self._clock = clock
        self._answer = answer
        self._left = left
        self._limits = limits
        self._descriptors = descriptors
        self._clients: set[ClientConnection] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            os.fchmod(self._socket.fileno(), 0o600)  # before it has a name: it never exists with another mode
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            with address(folder, name) as path:
                self._socket.bind(path)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            self._socket.close()
            raise StorageError(f"cannot open the socket {display(self._path)}: {error.strerror}") from error
        selector.register(self._socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        """Take in no more clients and remove the socket; connections stay until `hang_up`. Harmless a second time."""
        if self._socket.fileno() < 0:
            return
        self._selector.unregister(self._socket)
        # The name first: who connects now is refused rather than left waiting.
        try:
            os.unlink(self._path)
        except OSError:
            pass
        self._socket.close()

    def hang_up(self, last: bytes = b"") -> None:
        """End every connection, after one last try to deliver what is still to be sent, or else ``last``."""
        for client in list(self._clients):
            client.outbox = client.outbox or memoryview(last)
            client.last = True
            self._send(client)
            self._end(client)

    def serve(self, data: object) -> None:
        """Do what can be done for the object that the selector named: this listener, or a `ClientConnection`."""
        if data is self:
            self._accept()
        elif isinstance(data, ClientConnection) and data in self._clients:
            if data.outbox:
                self._send(data)
            else:
                self._receive(data)

    def expire(self) -> float | None:
        """End connections whose time is up; returns the seconds until the next one's is."""
        now = self._clock.monotonic()
        nearest: float | None = None
        for client in list(self._clients):
            if client.keeps and not client.inbox and not client.outbox:
                continue
            if client.deadline <= now:
                self._end(client)
            else:
                nearest = client.deadline if nearest is None else min(nearest, client.deadline)
        return None if nearest is None else nearest - now

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # no client is waiting, or it went away while waiting, or there are no descriptors left
                return
            if len(self._clients) >= self._limits.clients or not self._may_speak(connection):
                connection.close()
                continue
            connection.setblocking(False)
            client = ClientConnection(connection, self._clock.monotonic() + self._limits.idle)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)

    @staticmethod
    def _may_speak(connection: socket.socket) -> bool:
        """True for processes of the same user, and for root's."""
        other = peer_of(connection)
        if other.may_speak:
            return True
        _log.warning("refused a connection from user %d", other.uid)
        return False

    def _receive(self, client: ClientConnection) -> None:
        try:
            piece = self._take(client)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._end(client)
            return
        if not client.inbox:
            client.deadline = self._clock.monotonic() + self._limits.request
        client.inbox += piece
        end = client.inbox.find(b"\n")
        if end < 0 and len(client.inbox) <= MAX_CALL_BYTES:
            return
        line = bytes(client.inbox)
        client.inbox.clear()
        if end < 0 or end > MAX_CALL_BYTES:
            reply = encode_failure(FormatError(f"a line is longer than {MAX_CALL_BYTES} bytes"))
            client.last = True
        elif end != len(line) - 1:
            # No client can fill the watcher's time in advance.
            reply = encode_failure(FormatError("a call came before the last one was answered"))
            client.last = True
        else:
            reply = self._answer(client, line)
        _close(client.descriptors)
        client.outbox = memoryview(reply)
        client.deadline = self._clock.monotonic() + self._limits.answer
        self._send(client)

    def _take(self, client: ClientConnection) -> bytes:
        """Some bytes, with the descriptors that come with them; more of those than may are closed."""
        if not self._descriptors:
            return client.socket.recv(_PIECE)
        piece, found, _, _ = socket.recv_fds(client.socket, _PIECE, self._descriptors, socket.MSG_CMSG_CLOEXEC)
        client.descriptors += found
        more = client.descriptors[self._descriptors :]
        del client.descriptors[self._descriptors :]
        _close(more)
        return piece

    def _send(self, client: ClientConnection) -> None:
        """Send what can be sent; while something is left, nothing is read from this client."""
        try:
            while client.outbox:
                client.outbox = client.outbox[client.socket.send(client.outbox) :]
        except BlockingIOError:
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
            return
        except OSError:
            self._end(client)
            return
        if client.last:
            self._end(client)
            return
        client.deadline = self._clock.monotonic() + self._limits.idle
        if self._selector.get_key(client.socket).events != selectors.EVENT_READ:
            self._selector.modify(client.socket, selectors.EVENT_READ, client)

    def _end(self, client: ClientConnection) -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._selector.unregister(client.socket)
            client.socket.close()
            _close(client.descriptors)
            client.outbox = memoryview(b"")
            self._left(client)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


@contextmanager
def hold_watch_lock(folder: bytes) -> Generator[None]:
    """Be the one watcher of the workspace with this folder for the length of the block; `LockedError` if there is one.

    The kernel lets go of the lock when its holder dies, so that what a dead process left is never in the way.
    """
    path = folder + b"/" + WATCH_LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open {display(path)}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).strip().decode("ascii", "replace")
            raise LockedError(
                f"a watcher is at work in this workspace already (pid {pid})", hint="`holdfast watch --stop` stops it"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)
