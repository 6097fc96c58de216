"""Private sockets in the folders of the home: an address however long the path is, and who is at the other end."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

_MAX_ADDRESS = 107
_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77


class SocketPeer(NamedTuple):
    """Who connected, at the moment of connecting."""

    pid: int
    """0 if it is in a pid namespace that ours cannot see."""
    uid: int

    @property
    def may_speak(self) -> bool:
        """True for processes of the same user, and for root's."""
        return self.uid in (os.geteuid(), 0)


def peer_of(connection: socket.socket) -> SocketPeer:
    """Who is at the other end of a connection of ``AF_UNIX``."""
    import socket  # who has a connection has paid for it already

    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return SocketPeer(pid, uid)


def peer_process(connection: socket.socket) -> int | None:
    """A pidfd of the process that connected, for the caller to close; None if that has ended.

    Before Linux 6.5 it is that of the process that has its number by now.
    """
    import socket

    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return None
    try:
        return os.pidfd_open(peer_of(connection).pid)
    except OSError:
        return None


def connect(folder: bytes, name: bytes, seconds: float | None = None) -> socket.socket:
    """A connection to the process that listens at the socket in ``folder``, for the caller to close.

    ``seconds`` are for connecting, and the connection's time limit afterwards. Raises `OSError`: `FileNotFoundError` or
    `ConnectionRefusedError` where no process listens.
    """
    import socket  # not before a connection is likely: it takes a third of Python's own start

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        with address(folder, name) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def try_connect(folder: bytes, name: bytes, seconds: float) -> socket.socket | None:
    """`connect`; None where no process answers: there is no socket, or that of a dead process, or the process accepts
    no connection for ``seconds``. To find no socket costs one look-up.
    """
    if not os.path.lexists(folder + b"/" + name):
        return None
    try:
        return connect(folder, name, seconds)
    except OSError:
        return None


def receive(connection: socket.socket, size: int, descriptors: int) -> tuple[bytes, list[int]]:
    """At most ``size`` bytes, and their descriptors, which the caller must close; the kernel closes excess ones.

    Empty when the other side has hung up. Raises `OSError`.
    """
    if not descriptors:
        return connection.recv(size), []
    import array
    import socket

    found = array.array("i")
    # (Not `socket.recv_fds`, which passes no flags on: a child started at that moment would inherit them.)
    piece, ancillary, _, _ = connection.recvmsg(
        size, socket.CMSG_LEN(descriptors * found.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return piece, found.tolist()


@contextmanager
def address(folder: bytes, name: bytes) -> Generator[bytes]:
    """The address of the socket in ``folder``, however long its path (unix(7): an address has 108 bytes at most)."""
    path = folder + b"/" + name
    if len(path) <= _MAX_ADDRESS:
        yield path
        return
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield b"/proc/self/fd/%d/%b" % (fd, name)
    finally:
        os.close(fd)
