"""Reads the arguments that a waiting call points to, once: what its threads write there afterwards changes nothing.

Source: process_vm_readv(2). A read never reaches into a page that might not be mapped unless what came before it did
not suffice.
"""

from __future__ import annotations

import ctypes
import errno
import os

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


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("length", ctypes.c_uint64))


def _upto(tid: int, address: int, size: int) -> bytes:
    """What is readable of ``size`` bytes at ``address``."""
    buffer = ctypes.create_string_buffer(size)
    local = _Vector(ctypes.addressof(buffer), size)
    remote = _Vector(address, size)
    got = _read(tid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:got]


def read(tid: int, address: int, size: int) -> bytes:
    """Exactly ``size`` bytes of the thread's memory. Raises `OSError`: EFAULT if not all of them are readable."""
    found = _upto(tid, address, size) if size else b""
    if len(found) != size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return found


def read_string(tid: int, address: int, limit: int, too_long: int) -> bytes:
    """The bytes before the zero byte at ``address``; one with that byte is at most ``limit`` long.

    Raises `OSError`: ``too_long`` if it is longer, EFAULT if it is not readable.
    """
    found = b""
    size = _FIRST
    while len(found) < limit:
        at = address + len(found)
        size = min(size, _PAGE - at % _PAGE, limit - len(found))
        piece = _upto(tid, at, size)
        end = piece.find(0)
        if end >= 0:
            return found + piece[:end] if found else piece[:end]
        if len(piece) != size:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        found += piece
        size = _PAGE
    raise OSError(too_long, os.strerror(too_long))


def read_path(tid: int, address: int) -> bytes:
    """The path at ``address``, perhaps empty. Raises `OSError`: ENAMETOOLONG, EFAULT."""
    return read_string(tid, address, PATH_MAX, errno.ENAMETOOLONG)
