"""Room for the index of SQLite's write-ahead log, a file that is mapped into memory, on file systems of small blocks.

SQLite reserves a block in every 4 KiB of ``-shm`` by writing one byte there. With smaller blocks the rest are holes,
and a store into a hole of a full disk kills the process (SIGBUS) instead of failing. So this module fills the holes as
soon as the file exists, and nothing begins while there is no room for that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading

from holdfast.model.errors import StorageError
from holdfast.model.paths import display


class NoRoomError(StorageError):
    """The disk is too full for the catalog to be written, or even opened as usual."""


PAGE_BYTES = 4096
"""SQLite's assumed size of a memory page."""
HELD_BYTES = 128 << 10
"""The reserved size: the index of a log of 64 MiB."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BTRFS = 0x9123683E
_SET_FLAGS = 0x40086602  # FS_IOC_SETFLAGS
_IN_PLACE = struct.pack("@l", 0x00800000)  # FS_NOCOW_FL

_held: dict[tuple[int, int], int] = {}
"""Descriptors of the files that were filled, by device and inode. To close one would let go of the locks that SQLite
has on the file through another, as POSIX wants it; so they stay open until the file is gone."""
_lock = threading.Lock()


def check_room(catalog: bytes) -> None:
    """Raise `NoRoomError` if the disk is too full to open the database ``catalog`` without risk."""
    folder = os.path.dirname(catalog)
    about = os.statvfs(folder)
    if about.f_bavail * about.f_frsize >= HELD_BYTES:
        return
    if _is_written_anew(folder) or (about.f_bsize < PAGE_BYTES and not _is_filled(catalog)):
        raise no_room(catalog)


def _is_filled(catalog: bytes) -> bool:
    """Whether another process that has it open has filled the holes of its index."""
    try:
        about = os.stat(catalog + b"-shm")
    except FileNotFoundError:
        return False
    return min(about.st_size, about.st_blocks * 512) >= HELD_BYTES


def make(catalog: bytes) -> None:
    """Make the index of ``catalog``, which is about to be opened, if it is missing: empty, and from then on written in
    place, where the file system needs that flag. Raises `NoRoomError`.
    """
    try:
        fd = os.open(catalog + b"-shm", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(catalog) from error
        return  # it exists, or SQLite reports the fault
    try:
        # No process has locks on it yet that closing this descriptor would release.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _SET_FLAGS, _IN_PLACE)
    finally:
        os.close(fd)


def _is_written_anew(folder: bytes) -> bool:
    """Whether the file system never writes in place."""
    from holdfast.files.linux.syscalls import file_system

    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        return file_system(fd) == _BTRFS
    finally:
        os.close(fd)


def hold(catalog: bytes) -> None:
    """Fill the holes of the index that belongs to ``catalog``, which is open. Raises `StorageError` on a full disk."""
    if os.statvfs(os.path.dirname(catalog)).f_bsize >= PAGE_BYTES:
        return
    with _lock:
        for key, fd in list(_held.items()):
            if not os.fstat(fd).st_nlink:
                os.close(_held.pop(key))
        try:
            about = os.stat(catalog + b"-shm")
        except FileNotFoundError:
            return
        if (about.st_dev, about.st_ino) in _held:
            return
        fd = os.open(catalog + b"-shm", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        about = os.fstat(fd)
        _held[about.st_dev, about.st_ino] = fd
        _allocate(fd, catalog)


def no_room(catalog: bytes) -> NoRoomError:
    """The error of a disk that is too full for the catalog."""
    return NoRoomError(
        f"no space left to write the catalog {display(catalog)}",
        hint="free some space, then try again; `holdfast gc` can do with a little that is kept back for it",
    )


def _allocate(fd: int, catalog: bytes) -> None:
    """fallocate(2). Python's version writes into a file that others use if the file system lacks the call."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, 0, 0, HELD_BYTES) and ctypes.get_errno() in _FULL:
        raise no_room(catalog)
