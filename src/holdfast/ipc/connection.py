"""An end of a private socket that waits: for a client, one request, then its answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from holdfast.ipc import messages, private_socket
from holdfast.model.errors import FormatError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

MAX_ANSWER_BYTES = 1 << 28
_PIECE = 1 << 16


class Connection:
    """For one thread at a time. The state kept for it by the other process (a pause, a run) ends when it is closed."""

    def __init__(
        self,
        connected: socket.socket,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the socket over."""
        self._socket = connected
        self.peer = private_socket.peer_of(connected)
        """The process at the other end."""
        self._max_answer_bytes = max_answer_bytes
        self._monotonic = monotonic

    def __enter__(self) -> Self:
        """Return itself; leaving closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Hang up. Harmless a second time."""
        self._socket.close()

    def fileno(self) -> int:
        """To wait until the other process ends."""
        return self._socket.fileno()

    def ask(self, body: bytes, descriptors: Sequence[int] = (), seconds: float | None = None) -> bytes:
        """Send a request, with borrowed descriptors, and return the body of the answer.

        Raises `TimeoutError` if that does not arrive in ``seconds``, `ConnectionError` if the other process has ended
        or hung up, `FormatError` if it uses another protocol or sends too much. After any of these the connection is of
        no more use, and closed.
        """
        deadline = None if seconds is None else self._monotonic() + seconds
        try:
            try:
                self._send(messages.frame(body), descriptors, deadline)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has hung up, and may have said why
            return self._receive_frame(deadline, _PIECE)
        except BaseException:
            self.close()
            raise

    def send(self, body: bytes) -> None:
        """Send without waiting for an answer. Raises `ConnectionError`."""
        self._send(messages.frame(body), (), None)

    def receive(self) -> bytes:
        """The body of the next message. Raises `ConnectionError`, `FormatError`."""
        return self._receive_frame(None, 0)  # (no bytes ahead: they may belong to the next message)

    def wait_for_end(self, seconds: float | None = None) -> None:
        """Return when the other process has hung up. Raises `TimeoutError`."""
        deadline = None if seconds is None else self._monotonic() + seconds
        try:
            while self._receive(1, deadline):
                pass
        except ConnectionError:
            return

    def _receive_frame(self, deadline: float | None, ahead: int) -> bytes:
        found = self._receive(messages.HEADER_BYTES, deadline, ahead)
        left = messages.HEADER_BYTES + messages.body_bytes(found, self._max_answer_bytes) - len(found)
        if left < 0:
            raise FormatError("the other process says more than it was asked")
        return found[messages.HEADER_BYTES :] + self._receive(left, deadline)

    def _send(self, frame: bytes, descriptors: Sequence[int], deadline: float | None) -> None:
        import socket

        try:
            self._limit(deadline)
            sent = socket.send_fds(self._socket, [frame], descriptors) if descriptors else 0
            self._socket.sendall(frame[sent:] if sent else frame)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise ConnectionError(*error.args) from error

    def _receive(self, length: int, deadline: float | None, ahead: int = 0) -> bytes:
        """``length`` bytes, and at most ``ahead`` more that have arrived by then."""
        found = bytearray()
        while len(found) < length:
            try:
                self._limit(deadline)
                piece = self._socket.recv(min(length + ahead - len(found), _PIECE))
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                raise ConnectionError(*error.args) from error
            if not piece:
                raise ConnectionResetError
            found += piece
        return bytes(found)

    def _limit(self, deadline: float | None) -> None:
        """Let the next call wait until ``deadline`` at most. Raises `TimeoutError`."""
        left = None if deadline is None else deadline - self._monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        if left != self._socket.gettimeout():
            self._socket.settimeout(left)
