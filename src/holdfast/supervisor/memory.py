"""Reads the arguments that a waiting call points to, once: what its threads write there afterwards changes nothing.

Source: process_vm_readv(2). Who may read it is `holdfast.supervisor.reach`'s subject, and every function here raises
also what that does. A read never reaches into a page that might not be mapped unless what came before it did
not suffice.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.supervisor.call import Call

PATH_MAX = 4096
"""Of a path with its final zero byte."""

_PAGE = 4096
"""The smallest page there is: what ends here does not reach into another, whatever the real size."""
_FIRST = 256
"""Nearly every path is shorter; a second read is cheaper than always reading more."""

_libc = ctypes.CDLL(None, use_errno=True)
_read = _libc.process_vm_readv
_read.restype = ctypes.c_ssize_t
_read.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


_VECTORS = struct.Struct("=QQQQ")
"""Two ``struct iovec``: ours, and the other's."""
_VECTOR_BYTES = 16


class _Room(threading.local):
    """Where a thread puts what it reads; made once."""

    def __init__(self) -> None:
        self.found = bytearray(_PAGE)
        self.address = ctypes.addressof((ctypes.c_char * _PAGE).from_buffer(self.found))
        self.vectors = bytearray(_VECTORS.size)
        self.local = ctypes.addressof((ctypes.c_char * _VECTORS.size).from_buffer(self.vectors))
        self.remote = self.local + _VECTOR_BYTES


_room = _Room()


def look(tid: int, address: int, size: int) -> tuple[bytearray, int]:
    """What is readable of ``size`` bytes, at most a page, at ``address``: until the thread looks again, and how many it
    is. Raises `OSError`: EPERM if the kernel does not let this process.
    """
    room = _room
    _VECTORS.pack_into(room.vectors, 0, room.address, size, address, size)
    got = _read(tid, room.local, 1, room.remote, 1, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return room.found, got


def read(call: Call, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes of the caller's memory. Raises `OSError`: EFAULT if not all of them are readable."""
    found = b""
    while len(found) < size:
        wanted = min(size - len(found), _PAGE)
        piece, got = call.reach.memory(call, address + len(found), wanted)
        if got != wanted:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        found += piece[:got]
    return found


def read_string(call: Call, address: int, limit: int, too_long: int) -> bytes:
    """The bytes before the zero byte at ``address``; one with that byte is at most ``limit`` long.

    Raises `OSError`: ``too_long`` if it is longer, EFAULT if it is not readable.
    """
    found = b""
    size = _FIRST
    while len(found) < limit:
        at = address + len(found)
        size = min(size, _PAGE - at % _PAGE, limit - len(found))
        piece, got = call.reach.memory(call, at, size)
        end = piece.find(0, 0, got)
        if end >= 0:
            return found + piece[:end]
        if got != size:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        found += piece[:got]
        size = _PAGE
    raise OSError(too_long, os.strerror(too_long))


def read_path(call: Call, address: int) -> bytes:
    """The path at ``address``, perhaps empty. Raises `OSError`: ENAMETOOLONG, EFAULT."""
    return read_string(call, address, PATH_MAX, errno.ENAMETOOLONG)
