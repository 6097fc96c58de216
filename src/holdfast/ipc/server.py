"""A private socket that answers requests: mode 0600, of the same user's processes and root's, one request at a time.

Nothing here blocks. A client that sends half a frame or garbage, or does not read its answer, costs a bounded buffer
until its time is up, and then its connection; other clients are unaffected. The server has one descriptor for its loop
to wait for.
"""

from __future__ import annotations

import math
import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.ipc import messages
from holdfast.ipc.listener import bind
from holdfast.ipc.private_socket import peer_of, peer_process, receive
from holdfast.model.errors import FormatError, HoldfastError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ipc.private_socket import SocketPeer
    from holdfast.model.clock import Clock

_LOG = Log(__name__)
_BACKLOG = 64
_PIECE = 1 << 16
_NONE, _READ, _WRITE = 0, 1, 4
"""Of epoll (EPOLLHUP is always told of), EPOLLIN, EPOLLOUT."""
_ALWAYS_BYTES = 1 << 12
"""There is room for an answer as short as this in any case, also for an error."""


class Limits(NamedTuple):
    """Limits for one client; times in seconds."""

    request_bytes: int = 1 << 16
    answer_bytes: int = 1 << 26
    descriptors: int = 0
    """How many may come with a request; more are closed."""
    request: float = 10.0
    """From the first byte of a request to its end."""
    answer: float = 60.0
    """For taking in an answer."""
    idle: float = 60.0
    """Without a request, unless the server keeps state for the connected client."""


class ClientGroup:
    """Clients that share their limits."""

    __slots__ = ("clients", "unread")

    def __init__(self, clients: int = 64, unread: int = 1 << 28) -> None:
        """``clients``: limit of clients; ``unread``: bytes of answers that they have not read yet."""
        self.clients = clients
        self.unread = unread


class Client:
    """One connection."""

    __slots__ = (
        *("_server", "deadline", "descriptors", "group", "inbox", "is_last", "is_outside", "keeps", "outbox", "peer"),
        *("events", "process", "socket", "waits"),
    )

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.socket = connection
        self.peer: SocketPeer = peer_of(connection)
        self.process = peer_process(connection)
        """A pidfd; None if the process had ended when it was taken in."""
        self.group = server.group_of(self)
        self.descriptors: list[int] = []
        """Descriptors that came with the request; remove one to keep it. The others are closed with the answer."""
        self.is_outside = False
        """For the server's owner: a fact about the client, found out with this request."""
        self.keeps = False
        """True while the connection must not be ended for being idle."""
        self.deadline = math.inf
        self._server = server
        self.events = _READ
        """The events that the server waits for, in the terms of epoll."""
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.waits = False
        """A request is not answered yet: until then the client is not read from, and ends if it sends more."""
        self.is_last = False
        """The connection ends when the outbox is empty."""

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended, so that no client waits for an answer."""
        return self.socket.fileno() < 0

    @property
    def due(self) -> float:
        """When the connection ends, unless an event comes first."""
        return math.inf if self.keeps and not (self.inbox or self.outbox) else self.deadline

    def send(self, body: bytes) -> None:
        """Send a delayed answer. Harmless if the client has gone."""
        self._server.answer_to(self, body)


class Server:
    """The socket and its clients, for one thread: wait for `fileno` to be readable, or for `due_in`, then `serve`."""

    def __init__(
        self,
        folder: bytes,
        name: bytes,
        clock: Clock,
        answer: Callable[[Client, bytes], bytes | None],
        *,
        left: Callable[[Client], object] = lambda _: None,
        group_of: Callable[[Client], ClientGroup] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - a value
        epoll: select.epoll | None = None,
    ) -> None:
        """Bind the socket in place of one that a dead process left: the caller holds a lock, or the name is its own.

        ``answer(client, body)`` gives the body of the answer, or None if `Client.send` will be called with it; a
        `HoldfastError` that it raises is the answer. ``left(client)`` is called at the end of every connection.
        ``group_of(client)`` is the group whose limits a new client shares; by default all do. With ``epoll``, its owner
        waits, and calls `serve_ready` for descriptors that the server `owns`: one wait less for each request. Raises
        `StorageError`.
        """
        self._path = folder + b"/" + name
        self._clock = clock
        self._answer = answer
        self._left = left
        self._limits = limits
        all_clients = ClientGroup()
        self.group_of: Callable[[Client], ClientGroup] = group_of or (lambda _: all_clients)
        self._clients: dict[int, Client] = {}
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._socket = bind(folder, name)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise StorageError(f"cannot open the socket {display(self._path)}: {error.strerror}") from error
        self._owns_epoll = epoll is None
        self._epoll = epoll or select.epoll()
        self._epoll.register(self._socket.fileno(), _READ)

    def fileno(self) -> int:
        """Readable when there is work for `serve`."""
        return self._epoll.fileno()

    def serve(self, most: int = 1) -> None:
        """Perform one possible action, or one each for ``most`` clients, and end connections whose time is up.

        The action may call this again, and end other clients. `fileno` stays readable while there is more.
        """
        for fd, _ in self._epoll.poll(0, most):
            self.serve_ready(fd)
        now = self._clock.monotonic()
        for client in [one for one in self._clients.values() if one.due <= now]:
            self._end(client)

    def owns(self, fd: int) -> bool:
        """Whether the descriptor is the socket, or that of a client."""
        return fd == self._socket.fileno() or fd in self._clients

    def serve_ready(self, fd: int) -> None:
        """Do what can be done for one of its descriptors."""
        if fd == self._socket.fileno():
            self._accept()
        elif (client := self._clients.get(fd)) is not None:
            if client.outbox:
                self._flush(client)
            elif client.waits:
                self._end(client)
            else:
                self._receive(client)

    def due_in(self) -> float | None:
        """Seconds until the time of a client is up; None if none's will be."""
        nearest = min((client.due for client in self._clients.values()), default=math.inf)
        return None if nearest == math.inf else max(0.0, nearest - self._clock.monotonic())

    def close(self) -> None:
        """Take no client in any more, and remove the socket; connections stay until `hang_up`. Harmless twice."""
        if self._socket.fileno() < 0:
            return
        self._epoll.unregister(self._socket.fileno())
        # The name first: a client that connects now is refused rather than left waiting.
        with suppress(OSError):
            os.unlink(self._path)
        self._socket.close()

    def hang_up(self, last: bytes = b"") -> None:
        """End every connection, after one last try to deliver the unsent data, or otherwise the body ``last``."""
        for client in list(self._clients.values()):
            client.is_last = True
            if client.outbox:
                self._flush(client)
            elif last:
                self.answer_to(client, last)
            self._end(client)
        if self._owns_epoll:
            self._epoll.close()

    def answer_to(self, client: Client, body: bytes) -> None:
        """Send the body of an answer; of an error instead if there is no room for it until it is read."""
        if client.is_gone:
            return
        if len(body) > self._limits.answer_bytes or len(body) > max(client.group.unread, _ALWAYS_BYTES):
            _LOG.warning("an answer of %d bytes to process %d is too long", len(body), client.peer.pid)
            body = messages.encode_error(
                HoldfastError(
                    f"an answer of {len(body):,} bytes is too long, or too many wait to be read",
                    hint="read the others first, or ask for less",
                    code="too_long",
                )
            )
        client.waits = False
        client.outbox = memoryview(messages.frame(body))
        client.group.unread -= len(client.outbox)
        self._flush(client)
        if client.outbox:
            client.deadline = self._clock.monotonic() + self._limits.answer

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # it went away, or there are no descriptors left
        client = Client(self, connection)
        if not client.peer.may_speak or client.group.clients <= 0:
            _LOG.warning("refused a connection from process %d of user %d", *client.peer)
            _close(client)
            return
        client.group.clients -= 1
        connection.setblocking(False)
        self._clients[connection.fileno()] = client
        self._epoll.register(connection.fileno(), _READ)
        self._rest(client)

    def _rest(self, client: Client) -> None:
        client.deadline = self._clock.monotonic() + self._limits.idle

    def _receive(self, client: Client) -> None:
        try:
            piece, found = receive(client.socket, _PIECE, self._limits.descriptors)
        except BlockingIOError:
            return
        except OSError:
            piece, found = b"", []
        client.descriptors += found
        while len(client.descriptors) > self._limits.descriptors:
            os.close(client.descriptors.pop())
        if not piece:
            self._end(client)
            return
        begins = not client.inbox
        client.inbox += piece
        try:
            is_whole = self._is_whole(client.inbox)
        except FormatError as error:
            client.is_last = True
            self.answer_to(client, messages.encode_error(error))
            return
        if not is_whole:
            if begins:
                client.deadline = self._clock.monotonic() + self._limits.request
            return
        body = bytes(client.inbox[messages.HEADER_BYTES :])
        client.inbox.clear()
        client.waits, client.deadline = True, math.inf
        answer = self._answered(client, body)
        _drop(client.descriptors)
        if answer is not None:
            self.answer_to(client, answer)
        elif not client.is_gone:
            self._await(client, _NONE)

    def _is_whole(self, inbox: bytearray) -> bool:
        """Whether it holds one request. Raises `FormatError` if it can become none."""
        if len(inbox) < messages.HEADER_BYTES:
            return False
        end = messages.HEADER_BYTES + messages.body_bytes(inbox, self._limits.request_bytes)
        if len(inbox) > end:
            # (No client can queue requests, and take the server's time in advance.)
            raise FormatError("a request came before the last one was answered")
        return len(inbox) == end

    def _answered(self, client: Client, body: bytes) -> bytes | None:
        if _LOG.wants("trace"):
            _LOG.trace("request", process=client.peer.pid, bytes=body.hex(" "))
        try:
            return self._answer(client, body)
        except HoldfastError as error:
            return messages.encode_error(error)
        except OSError as error:
            return messages.encode_error(HoldfastError(f"{error.strerror or error}", code="storage"))
        except Exception as error:  # noqa: BLE001
            # A mistake of ours ends one request, and not everything that the process does.
            _LOG.warning("a request failed by a mistake of Holdfast's own: %r", error)
            return messages.encode_error(HoldfastError(f"it failed there: {error!r}", code="internal"))

    def _flush(self, client: Client) -> None:
        """Send as much as goes now; the rest when the client has made room. Until then it is not read from."""
        try:
            sent = client.socket.send(client.outbox, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(client)
            return
        client.group.unread += sent
        client.outbox = client.outbox[sent:]
        if client.outbox:
            self._await(client, _WRITE)
        elif client.is_last:
            self._end(client)
        else:
            self._rest(client)
            self._await(client, _READ)

    def _await(self, client: Client, events: int) -> None:
        if events != client.events:
            client.events = events
            self._epoll.modify(client.socket.fileno(), events)

    def _end(self, client: Client) -> None:
        if client.is_gone:
            return
        del self._clients[client.socket.fileno()]
        self._epoll.unregister(client.socket.fileno())
        client.group.unread += len(client.outbox)
        client.group.clients += 1
        client.outbox = memoryview(b"")
        _close(client)
        self._left(client)


def _close(client: Client) -> None:
    client.socket.close()
    if client.process is not None:
        os.close(client.process)
        client.process = None
    _drop(client.descriptors)


def _drop(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
