"""The entries of a directory, with the offset of each: ``getdents64``, which Python lacks.

An entry's offset is the place of the next one. It stays valid when entries are made or removed, as far as the file
system supports telldir(3). Source: getdents64(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from typing import Final, NamedTuple

_SYS_GETDENTS64: Final = {
    "x86_64": 217,
    "aarch64": 61,
    "riscv64": 61,
    "armv7l": 217,
    "i686": 220,
    "ppc64le": 202,
    "s390x": 220,
}
_HEAD: Final = struct.Struct("=QqHB")
"""Inode, offset, length of the record, type; the name follows, and ends with a NUL."""
_ROOM_BYTES: Final = 1 << 15

_libc = ctypes.CDLL(None, use_errno=True)
_getdents64 = getattr(_libc, "getdents64", None)


class Dirent(NamedTuple):
    """An entry of a directory."""

    name: bytes
    inode: int
    type: int
    """``DT_*``; 0 where the file system does not say it here."""
    offset: int
    """Where the next one is."""


class _Buffer(threading.local):
    """Where a thread has entries written; made once."""

    def __init__(self) -> None:
        self.raw = bytearray(_ROOM_BYTES)
        self.pointer = ctypes.byref((ctypes.c_char * _ROOM_BYTES).from_buffer(self.raw))


_room = _Buffer()


def dirents(fd: int) -> list[Dirent]:
    """The entries from where ``fd`` is in its directory, ``.`` and ``..`` among them, as many as one call gives;
    nothing is the end. Raises `OSError`.
    """
    room = _room
    count = _call(fd, room)
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    raw, found, at, head = bytes(memoryview(room.raw)[:count]), list[Dirent](), 0, _HEAD
    while at < count:
        inode, offset, length, type_ = head.unpack_from(raw, at)
        start = at + head.size
        found.append(Dirent(raw[start : raw.index(0, start)], inode, type_, offset))
        at += length
    return found


def _call(fd: int, room: _Buffer) -> int:
    if _getdents64 is not None:
        return _getdents64(fd, room.pointer, _ROOM_BYTES)
    number = _SYS_GETDENTS64.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return _libc.syscall(number, fd, room.pointer, _ROOM_BYTES)
