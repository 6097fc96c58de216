"""What tells one object of a file system from every other that ever had its inode number: its file handle.

Inode numbers are used anew at once; a handle holds a generation beside the number. Source: name_to_handle_at(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from typing import NewType

from holdfast.files import kernel

Identity = NewType("Identity", bytes)
"""``h``, the handle's type (4 bytes) and the handle; or, where there is none, ``b``, the inode number and the time of
birth in nanoseconds (8 bytes each, 0 if unknown)."""

_AT_EMPTY_PATH = 0x1000
_AT_HANDLE_FID = 0x200  # Linux 6.5: a handle to compare, also from file systems that cannot open one
_HEAD = struct.Struct("=Ii")
_MAX_HANDLE = 128

_LENGTH_AT = 0 if sys.byteorder == "little" else 3
_EMPTY = _HEAD.pack(_MAX_HANDLE, 0)
_Buffer = ctypes.c_char * (_HEAD.size + _MAX_HANDLE)
_mount = ctypes.byref(ctypes.c_int())  # written to by the kernel, and of no interest

_libc = ctypes.CDLL(None, use_errno=True)
_name_to_handle_at = getattr(_libc, "name_to_handle_at", None)
if _name_to_handle_at is not None:
    _name_to_handle_at.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class _Room(threading.local):
    """Where a thread has its handles written; made once."""

    def __init__(self) -> None:
        self.raw = bytearray(_HEAD.size + _MAX_HANDLE)
        self.buffer = _Buffer.from_buffer(self.raw)


_room = _Room()


def identity(dir_fd: int, name: bytes) -> Identity:
    """The identity of the object ``name`` in the directory (a link is not followed), or of ``dir_fd`` itself if
    ``name`` is empty.

    Raises `OSError` as `os.stat` does.
    """
    if _name_to_handle_at is not None:
        raw, buffer = _room.raw, _room.buffer
        raw[: _HEAD.size] = _EMPTY
        empty = 0 if name else _AT_EMPTY_PATH
        for flags in (empty, empty | _AT_HANDLE_FID):
            if _name_to_handle_at(dir_fd, name, buffer, _mount, flags) == 0:
                # (The length and the type as the kernel wrote them; both are small.)
                return Identity(b"h%b%b" % (_kind(raw), raw[_HEAD.size : _HEAD.size + raw[_LENGTH_AT]]))
            raw[: _HEAD.size] = _EMPTY
    return _by_birth(dir_fd, name)


def _by_birth(dir_fd: int, name: bytes) -> Identity:
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False) if name else os.fstat(dir_fd)
    born = kernel.birth_time_at(dir_fd, name)
    return Identity(b"b" + struct.pack("<QQ", found.st_ino, born or 0))


if sys.byteorder == "little":

    def _kind(raw: bytearray) -> bytearray:
        return raw[4:8]

else:

    def _kind(raw: bytearray) -> bytearray:
        return raw[7:3:-1]
