"""File handles, which distinguish an object of a file system from all others that ever had its inode number.

Inode numbers are reused at once; a handle holds a generation beside the number. Source: name_to_handle_at(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from typing import NewType

from holdfast.files.linux import syscalls

Identity = NewType("Identity", bytes)
"""``h``, the handle's type (4 bytes) and the handle; or, if there is none, ``b``, the inode number and the time of
birth in nanoseconds (8 bytes each, 0 if unknown).
"""

_AT_EMPTY_PATH = 0x1000
_AT_HANDLE_FID = 0x200  # Linux 6.5: a handle to compare, also from file systems that cannot open one
_HEAD = struct.Struct("=Ii")
_KIND = struct.Struct("<i")
_MAX_HANDLE = 128

_LITTLE = sys.byteorder == "little"
_LENGTH_AT = 0 if _LITTLE else 3
_HEAD_BYTES = _HEAD.size
_EMPTY = _HEAD.pack(_MAX_HANDLE, 0)
_Buffer = ctypes.c_char * (_HEAD.size + _MAX_HANDLE)

_name_to_handle_at = getattr(ctypes.CDLL(None, use_errno=True), "name_to_handle_at", None)
# (Undeclared: its arguments are an ``int``, bytes, or a pointer as it is.)


class _HandleBuffer(threading.local):
    """Where a thread has its handles written; made once."""

    def __init__(self) -> None:
        self.raw = bytearray(_HEAD.size + _MAX_HANDLE)
        self.pointer = ctypes.byref(_Buffer.from_buffer(self.raw))
        self.mount = ctypes.c_int()
        self.mount_pointer = ctypes.byref(self.mount)


_room = _HandleBuffer()


def identity(dir_fd: int, name: bytes) -> Identity:
    """The identity of the object ``name`` in the directory (a link is not followed), or of ``dir_fd`` itself if
    ``name`` is empty.

    Raises `OSError` as `os.stat` does.
    """
    if _name_to_handle_at is not None:
        room = _room
        raw = room.raw
        flags = 0 if name else _AT_EMPTY_PATH
        raw[:_HEAD_BYTES] = _EMPTY
        mount = room.mount_pointer
        result = _name_to_handle_at(dir_fd, name, room.pointer, mount, flags)
        if result:
            raw[:_HEAD_BYTES] = _EMPTY
            result = _name_to_handle_at(dir_fd, name, room.pointer, mount, flags | _AT_HANDLE_FID)
        if not result:
            # (The length and the type as the kernel wrote them; both are small.)
            end = _HEAD_BYTES + raw[_LENGTH_AT]
            return b"h" + (raw[4:end] if _LITTLE else raw[7:3:-1] + raw[_HEAD_BYTES:end])  # type: ignore[return-value]
    return _by_birth(dir_fd, name)


def identity_and_mount(fd: int) -> tuple[Identity, int | None]:
    """The `identity` of an open object, and the kernel's id of the mount by which it was opened; None if unknown."""
    found = identity(fd, b"")
    return found, _room.mount.value if found[:1] == b"h" else syscalls.mount_id(fd)


def handle_of(object_: Identity) -> bytes | None:
    """The ``struct file_handle`` for open_by_handle_at(2); None if the identity is no handle. (A file system may have
    handles without being able to open them.)
    """
    if object_[:1] != b"h":
        return None
    (kind,) = _KIND.unpack_from(object_, 1)
    return _HEAD.pack(len(object_) - 1 - _KIND.size, kind) + object_[1 + _KIND.size :]


def identity_of(handle: bytes) -> Identity:
    """The identity of what a ``struct file_handle`` of the kernel's means."""
    length, kind = _HEAD.unpack_from(handle)
    return Identity(b"h" + _KIND.pack(kind) + handle[_HEAD_BYTES : _HEAD_BYTES + length])


def _by_birth(dir_fd: int, name: bytes) -> Identity:
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False) if name else os.fstat(dir_fd)
    born = syscalls.birth_time_at(dir_fd, name)
    return Identity(b"b" + struct.pack("<QQ", found.st_ino, born or 0))
