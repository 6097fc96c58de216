"""An end of a private socket that waits: for a client, one request, then its answer."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from holdfast.ipc import messages, private_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Sequence

MAX_ANSWER_BYTES = 1 << 28
_PIECE = 1 << 20


class Connection:
    """For one thread at a time. What the other process holds for it (a pause, a run) ends when it is closed."""

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

        Raises `TimeoutError` if that is not there in ``seconds``, `ConnectionError` if the other process has ended or
        hung up, `FormatError` if it speaks another protocol or says too much. After any of these the connection is of
        no more use, and closed.
        """
        deadline = None if seconds is None else self._monotonic() + seconds
        try:
            try:
                self._send(messages.frame(body), descriptors, deadline)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has hung up, and may have said why
            return self._receive_frame(deadline)
        except BaseException:
            self.close()
            raise

    def send(self, body: bytes) -> None:
        """Send without waiting for an answer. Raises `ConnectionError`."""
        self._send(messages.frame(body), (), None)

    def receive(self) -> bytes:
        """The body of the next message. Raises `ConnectionError`, `FormatError`."""
        return self._receive_frame(None)

    def wait_for_end(self, seconds: float | None = None) -> None:
        """Return when the other process has hung up. Raises `TimeoutError`."""
        deadline = None if seconds is None else self._monotonic() + seconds
        try:
            while self._receive(1, deadline):
                pass
        except ConnectionError:
            return

    def _receive_frame(self, deadline: float | None) -> bytes:
        header = self._receive(messages.HEADER_BYTES, deadline)
        return self._receive(messages.body_bytes(header, self._max_answer_bytes), deadline)

    def _send(self, frame: bytes, descriptors: Sequence[int], deadline: float | None) -> None:
        import socket

        with self._limited(deadline):
            sent = socket.send_fds(self._socket, [frame], descriptors) if descriptors else 0
            self._socket.sendall(frame[sent:] if sent else frame)

    def _receive(self, length: int, deadline: float | None) -> bytes:
        found = bytearray()
        while len(found) < length:
            with self._limited(deadline):
                piece = self._socket.recv(min(length - len(found), _PIECE))
            if not piece:
                raise ConnectionResetError
            found += piece
        return bytes(found)

    @contextmanager
    def _limited(self, deadline: float | None) -> Generator[None]:
        """Raise `TimeoutError` where the block takes longer, and all else that the system says as `ConnectionError`."""
        left = None if deadline is None else deadline - self._monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        try:
            self._socket.settimeout(left)
            yield
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise ConnectionError(*error.args) from error
