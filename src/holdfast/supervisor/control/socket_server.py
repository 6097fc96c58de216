"""The keeper's private socket: clients ask for what `UndoService` offers, and runs join.

The server never blocks: a peer that sends half a frame or does not take its answer costs a bounded buffer, and no other
client any time; all that come from trees cost no more than `_UNREAD_BYTES` together. A connection has one request at a
time; what it holds (a pause, a run) ends with it.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from holdfast.files.linux.private_socket import SocketPeer, address, peer_of, peer_process
from holdfast.model.errors import FormatError, HoldfastError, RefusedError
from holdfast.model.log import Log
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.control._unsupervised_proof import take_proof
from holdfast.supervisor.control.frames import (
    LENGTH,
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    MOST_READ_ONLY,
    OUTSIDE_ONLY,
    SUPERVISED,
    WITH_PROOF,
    decode_request,
    encode_error,
    encode_result,
)
from holdfast.supervisor.process_tree.members import has_ended

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

_log = Log(__name__)

_FOR_OTHERS = {
    "answer": "allow or deny what is held",
    "configure": "change its own safeguards and limits",
    "discard": "forget steps",
    "redo": "bring steps forward",
    "undo": "take steps back",
}
"""Those of `OUTSIDE_ONLY` that people ask for, in their words."""

_CLIENTS = {True: 16, False: 64}
"""As many from inside of the trees, and as many others: no tree can keep a person from the keeper."""
_UNREAD_BYTES = {True: 1 << 26, False: 2 * MAX_ANSWER_BYTES}
"""So much of their answers may wait until those inside, and others, read it."""
_ALWAYS_BYTES = 1 << 12
"""There is room for an answer as short as this, also for an error, in any case."""
_BACKLOG = 64
_PIECE = 1 << 16
_DESCRIPTORS = 2 + 2 + MOST_READ_ONLY
"""As many as come with a `RemoteUndoService.join`: the proof, and its own."""
_END, _READ, _WRITE = 0, 1, 4  # (EPOLLHUP is always told of), EPOLLIN, EPOLLOUT

LATER = object()
"""What a method returns if `KeeperClient.send` will be called when the result is there."""


class AnswerBudget:
    """For the answers that several clients have not read yet, together."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size


class KeeperClient:
    """One connection."""

    __slots__ = (
        *("_room", "_selector", "fds", "inbox", "is_outside", "outbox", "peer", "process", "socket", "waits"),
        "was_inside",
    )

    def __init__(
        self,
        connection: socket.socket,
        selector: select.epoll,
        room: AnswerBudget,
        who: SocketPeer,
        process: int | None,
        *,
        was_inside: bool,
    ) -> None:
        self.socket = connection
        self.peer = who
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.fds: list[int] = []
        """Descriptors that came with the request; the handler that takes one removes it."""
        self.waits = False
        """A request is not answered yet. Until then it is not heard, and nothing but its end is noticed."""
        self.process = process
        """Of the peer, a pidfd; None if that had ended when it was taken in."""
        self.was_inside = was_inside
        """It belonged to a supervised tree, or might have, when it was taken in."""
        self.is_outside = False
        """It has shown with its request that it is in no tree, nor ever was, and is not known for it."""
        self._room = room
        self._selector = selector

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended, so that no client waits for an answer."""
        return self.socket.fileno() < 0

    def wait(self) -> None:
        """The answer takes its time: `send` will be called with it."""
        self.waits = True
        self._selector.modify(self.socket.fileno(), _END)

    def send(self, frame: bytes) -> None:
        """Answer the request; with an error instead if there is no room for the answer until it is read."""
        self.waits = False
        if len(frame) > max(self._room.left, _ALWAYS_BYTES):
            frame = encode_error(
                HoldfastError(
                    f"too many answers wait to be read for one of {len(frame):,} bytes to be kept beside them",
                    hint="read them, or ask from another terminal that is not supervised",
                    code="too_long",
                )
            )
        self.outbox = memoryview(frame)
        self._room.left -= len(frame)
        self.flush()

    def flush(self) -> None:
        """Send as much as goes now; the rest when the peer has made room. Until then it is not heard."""
        try:
            sent = self.socket.send(self.outbox, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self.outbox)  # it has gone, which is seen when it is read from
        self._room.left += sent
        self.outbox = self.outbox[sent:]
        self._selector.modify(self.socket.fileno(), _WRITE if self.outbox else _READ)

    def close(self) -> None:
        """Hang up."""
        self._room.left += len(self.outbox)
        self._selector.unregister(self.socket.fileno())
        self.socket.close()
        if self.process is not None:
            os.close(self.process)
        self.drop_fds()

    def drop_fds(self) -> None:
        """Close the descriptors that no handler has taken."""
        while self.fds:
            os.close(self.fds.pop())


class SocketServer:
    """The listening socket and its clients, for one thread."""

    def __init__(
        self,
        folder: bytes,
        selector: select.epoll,
        perform: Callable[[KeeperClient, str, tuple[Any, ...]], object],
        left: Callable[[KeeperClient], None],
        is_inside: Callable[[int], bool],
    ) -> None:
        """Bind the socket, mode 0600, in place of one that a dead keeper left; the caller holds the log.

        ``perform(client, method, arguments)`` does what is asked; ``left(client)`` is told of the end of a connection;
        ``is_inside(pid)`` says whether a process belongs to a supervised tree, or might.
        """
        self._folder = folder
        self._path = folder + b"/" + KEEPER_SOCKET
        self._selector = selector
        self._perform = perform
        self._left = left
        self._is_inside = is_inside
        self._clients: dict[int, KeeperClient] = {}
        self._rooms = {inside: AnswerBudget(size) for inside, size in _UNREAD_BYTES.items()}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        os.fchmod(self._socket.fileno(), 0o600)  # before it has a name: it never exists with another mode
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        with address(folder, KEEPER_SOCKET) as path:
            self._socket.bind(path)
        self._socket.listen(_BACKLOG)
        selector.register(self._socket.fileno(), _READ)

    def close(self) -> None:
        """Accept no more clients, hang up, and remove the socket."""
        os.unlink(self._path)
        self._selector.unregister(self._socket.fileno())
        self._socket.close()
        for client in list(self._clients.values()):
            self._end(client)

    def owns(self, fd: int) -> bool:
        """Whether the descriptor that the selector named is one of ours."""
        return fd == self._socket.fileno() or fd in self._clients

    def serve(self, fd: int) -> None:
        """Do what can be done for the descriptor."""
        if fd == self._socket.fileno():
            self._accept()
            return
        client = self._clients[fd]
        if client.outbox:
            client.flush()
        elif client.waits:
            self._end(client)
        else:
            self._receive(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return  # it went away, or there are no descriptors left
        who = peer_of(connection)
        process = peer_process(connection)
        was_inside = self._may_be_inside(who, process)
        alike = sum(client.was_inside is was_inside for client in self._clients.values())
        if not who.may_speak or alike >= _CLIENTS[was_inside]:
            _log.warning("refused a connection from process %d of user %d", *who)
            connection.close()
            if process is not None:
                os.close(process)
            return
        connection.setblocking(False)
        room = self._rooms[was_inside]
        client = KeeperClient(connection, self._selector, room, who, process, was_inside=was_inside)
        self._clients[connection.fileno()] = client
        self._selector.register(connection.fileno(), _READ)

    def _may_be_inside(self, who: SocketPeer, process: int | None) -> bool:
        """A connection outlives its maker in other hands, and the maker's number comes back as another process's."""
        # (In this order: if it has not ended after the look, what was looked at was that process.)
        return self._is_inside(who.pid) or process is None or has_ended(process)

    def _receive(self, client: KeeperClient) -> None:
        try:
            piece, fds, _, _ = socket.recv_fds(client.socket, _PIECE, _DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            piece, fds = b"", []
        client.fds += fds
        if not piece or len(client.fds) > _DESCRIPTORS:
            self._end(client)
            return
        client.inbox += piece
        if len(client.inbox) < LENGTH.size:
            return
        (length,) = LENGTH.unpack_from(client.inbox)
        if length > MAX_REQUEST_BYTES:
            self._end(client)
            return
        end = LENGTH.size + length
        if len(client.inbox) < end:
            return
        if len(client.inbox) > end:
            # (One request at a time: no client can fill the keeper's time in advance.)
            client.send(encode_error(FormatError("a request came before the last one was answered")))
            self._end(client)
            return
        body = bytes(client.inbox[LENGTH.size :])
        client.inbox.clear()
        self._answer(client, body)
        client.drop_fds()

    def _answer(self, client: KeeperClient, body: bytes) -> None:
        try:
            if _log.wants("trace"):
                _log.trace("request", process=client.peer.pid, bytes=body.hex(" "))
            method, arguments = decode_request(body)
            client.is_outside = method in WITH_PROOF and self._is_outside(client)
            if method in OUTSIDE_ONLY and not client.is_outside:
                raise RefusedError(
                    f"what runs supervised may not {_FOR_OTHERS.get(method, f'ask its keeper for {method}')}",
                    hint="do it from another terminal, which is not supervised, nor kept from writing the undo log",
                    code=SUPERVISED,
                )
            result = self._perform(client, method, arguments)
        except HoldfastError as error:
            client.send(encode_error(error))
        except OSError as error:
            client.send(encode_error(HoldfastError(f"{error.strerror}", code="storage")))
        except Exception as error:  # noqa: BLE001
            # A mistake of ours ends one request, and not everything that runs.
            _log.warning("a request failed by a mistake of Holdfast's own: %r", error)
            client.send(encode_error(HoldfastError(f"the keeper failed: {error!r}")))
        else:
            if result is LATER:
                client.wait()
            else:
                client.send(encode_result(result))

    def _is_outside(self, client: KeeperClient) -> bool:
        if not take_proof(client.fds, self._folder):
            return False
        # (A proof may have been handed on.)
        return not (client.was_inside or self._may_be_inside(client.peer, client.process))

    def _end(self, client: KeeperClient) -> None:
        del self._clients[client.socket.fileno()]
        client.close()
        self._left(client)
