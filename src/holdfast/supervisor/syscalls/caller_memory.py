"""Reads the memory that a waiting call's arguments point to, once: later writes of its threads have no effect.

Source: process_vm_readv(2). `holdfast.supervisor.syscalls.caller_access` provides the access, and every function here
also raises its errors. A read enters a page that may be unmapped only if the data before it was not enough.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.supervisor.syscalls.pending_call import PendingCall

PATH_MAX = 4096
"""Of a path with its final zero byte."""

_PAGE = 4096
"""The smallest page size: a read that ends here stays in its page for every real size."""
_FIRST = 256
"""Nearly every path is shorter; a second read is cheaper than always reading more."""

_libc = ctypes.CDLL(None, use_errno=True)
_read = _libc.process_vm_readv
_read.restype = ctypes.c_ssize_t
# Its argument types are not declared: their conversion takes a third of the call. The pointers are made once, and the
# numbers fit into an ``int``.

_VECTORS = struct.Struct("=QQQQ")
"""Two ``struct iovec``: ours, and the other's."""
_VECTOR = struct.Struct("=QQ")
_VECTOR_BYTES = 16


class _Room(threading.local):
    """A thread's buffer for reads; made once."""

    def __init__(self) -> None:
        self.found = bytearray(_PAGE)
        self.address = ctypes.addressof((ctypes.c_char * _PAGE).from_buffer(self.found))
        self.vectors = bytearray(_VECTORS.size + _VECTOR.size)
        vectors = (ctypes.c_char * len(self.vectors)).from_buffer(self.vectors)
        self.local, self.remote = ctypes.byref(vectors), ctypes.byref(vectors, _VECTOR_BYTES)


_room = _Room()


def peek(tid: int, address: int, size: int) -> tuple[bytearray, int]:
    """The readable part of ``size`` bytes, at most a page, at ``address``, with its length; valid until the thread's
    next read. Raises `OSError`: EPERM if the kernel does not permit it.
    """
    room = _room
    _VECTORS.pack_into(room.vectors, 0, room.address, size, address, size)
    got = _read(tid, room.local, 1, room.remote, 1, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return room.found, got


def read(call: PendingCall, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes of the caller's memory. Raises `OSError`: EFAULT if not all of them are readable."""
    found = b""
    while len(found) < size:
        wanted = min(size - len(found), _PAGE)
        piece, got = call.reach.memory(call, address + len(found), wanted)
        if got != wanted:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        found += piece[:got]
    return found


def read_structure(call: PendingCall, address: int, size: int, least: int) -> bytes:
    """A structure whose size the caller tells, because later kernels know a longer one.

    Raises `OSError`: EINVAL if it is shorter than ``least``, E2BIG if it is longer than a page, and as `read`.
    """
    if size < least:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if size > mmap.PAGESIZE:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return read(call, address, size)


def read_string(call: PendingCall, address: int, limit: int, too_long: int) -> bytes:
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


def read_path(call: PendingCall, address: int) -> bytes:
    """The path at ``address``, perhaps empty. Raises `OSError`: ENAMETOOLONG, EFAULT."""
    found, got = call.reach.memory(call, address, min(_FIRST, _PAGE - address % _PAGE))
    end = found.find(0, 0, got)
    if end >= 0:
        return bytes(found[:end])
    return read_string(call, address, PATH_MAX, errno.ENAMETOOLONG)


def read_paths(call: PendingCall, first: int, second: int) -> tuple[bytes, bytes]:
    """`read_path` of two; by one system call if both are short, and the kernel lets this process."""
    found = peek_two(call.tid, first, second) if call.reach.is_own else None
    return found or (read_path(call, first), read_path(call, second))


def peek_two(tid: int, first: int, second: int) -> tuple[bytes, bytes] | None:
    """Two short paths by one system call; None if that does not give both."""
    room = _room
    size, more = min(_FIRST, _PAGE - first % _PAGE), min(_FIRST, _PAGE - second % _PAGE)
    _VECTORS.pack_into(room.vectors, 0, room.address, size + more, first, size)
    _VECTOR.pack_into(room.vectors, _VECTORS.size, second, more)
    got = _read(tid, room.local, 1, room.remote, 2, 0)
    found = room.found
    end, other = found.find(0, 0, size), found.find(0, size, size + more)
    if got != size + more or end < 0 or other < 0:
        return None
    return bytes(found[:end]), bytes(found[size:other])
