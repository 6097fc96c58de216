"""The Unix socket that lets in clients with the token, and the relay that reaches it from standard input and output.

The socket has mode 0600, in a directory that no other user can enter. A client must be a process of the same user or of
root, as the kernel reports it. Its first line must be the token, which is in a file of mode 0600 beside the socket.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import secrets
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from holdfast.ipc import private_socket
from holdfast.ipc.listener import listen, remove_socket
from holdfast.model.errors import NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import ExitStack

_log = Log(__name__)

MOST_CLIENTS: Final = 16
MOST_STRANGERS: Final = 64
"""Who have come, and not said the token yet."""
_BACKLOG = 16
_TOKEN_BYTES = 32
_MOST_TOKEN = 1024
_TOKEN = re.compile(b"[0-9a-f]{%d}\n" % (2 * _TOKEN_BYTES))


class TokenSocket:
    """A socket that listens."""

    def __init__(self, path: bytes, listener: socket.socket, token: bytes) -> None:
        self.path = path
        self.listener = listener
        self._token = token

    def fits(self, line: bytes) -> bool:
        """Whether a client's first line is the token."""
        return hmac.compare_digest(line.rstrip(b"\r"), self._token)

    def accept(self) -> socket.socket | None:
        """The next client of this user or of root, which has not shown the token yet; None if there is none."""
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return None
        connection.setblocking(False)
        who = private_socket.peer_of(connection)
        if who.may_speak:
            return connection
        _log.warning("refused a client of another user", uid=who.uid, pid=who.pid)
        connection.close()
        return None


@contextmanager
def listen_with_token(path: bytes) -> Generator[TokenSocket]:
    """Listen at ``path`` for the length of the block; then the socket and its token are gone.

    The directory is made if it is missing. Raises `RefusedError` if others can enter it or another kind of file has one
    of the two names, `LockedError` if another process listens there, `StorageError`.
    """
    path = os.path.abspath(path)
    token = secrets.token_hex(_TOKEN_BYTES).encode()

    def write_token(context: ExitStack) -> None:
        _remove_token(token_file(path))
        file = context.enter_context(_new_token(token_file(path)))
        context.callback(remove_socket, token_file(path), os.fstat(file.fileno()))
        file.write(token + b"\n")

    with listen(path, _BACKLOG, write_token) as listener:
        yield TokenSocket(path, listener, token)


def token_file(path: bytes) -> bytes:
    """Where the token of the socket ``path`` lies."""
    return path + b".token"


def connect(path: bytes) -> socket.socket:
    """Come in at the socket ``path``. Raises `NotFoundError`, `StorageError`."""
    path = os.path.abspath(path)
    try:
        with open(token_file(path), "rb") as file:
            token = file.read(_MOST_TOKEN)
        connection = private_socket.connect(*os.path.split(path))
        try:
            connection.sendall(token.strip() + b"\n")
        except BaseException:
            connection.close()
            raise
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotFoundError(
            f"no server listens at {display(path)}", hint="`holdfast mcp --socket PATH` starts one", code="no_server"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot connect to {display(path)}: {error.strerror}") from error
    return connection


def _new_token(path: bytes) -> BinaryIO:
    """The file, empty. While it is open no other one gets its number."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return open(fd, "wb", buffering=0)


def _remove_token(path: bytes) -> None:
    """Remove the token that a dead process has left."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        content = b""
    else:
        with open(fd, "rb") as file:
            content = file.read(_MOST_TOKEN) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    if not _TOKEN.fullmatch(content):
        raise RefusedError(
            f"{display(path)} is there already, and no token of Holdfast's",
            hint="move it away, or name another path for the socket",
            code="exists",
        )
    os.unlink(path)


# Standard input and output joined to a server's socket: for clients that can start a command, and no more.

_PIECE = 1 << 16


def relay(path: bytes) -> None:
    """Copy bytes in both directions until either side has ended. Raises as `connect` does."""
    with connect(path) as connection:
        sender = threading.Thread(target=_send, args=(connection,), daemon=True)
        sender.start()
        try:
            while data := connection.recv(_PIECE):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(1, rest) :]
        except OSError:
            return  # the client is gone, or the server


def _send(connection: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _PIECE):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
