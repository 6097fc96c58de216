"""Reads whole regular files, and no others: it opens no device, and waits for no pipe."""

from __future__ import annotations

import errno
import os
import stat

from holdfast.model.errors import StorageError
from holdfast.model.paths import display

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
_NO_FILE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG))


def read_bounded(path: bytes, limit: int) -> bytes | None:
    """As `read_regular`; None also if the file cannot be read."""
    try:
        return read_regular(path, limit)
    except OSError:
        return None


def read_regular(path: bytes, limit: int, *, dir_fd: int | None = None, follow: bool = True) -> bytes | None:
    """At most ``limit`` bytes of the regular file ``path``; None if there is none. Never blocks, and opens no device.

    Raises `OSError` if it cannot be read, and `StorageError` if this process lacks descriptors or memory: that is no
    fault of the file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        if not stat.S_ISREG(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow).st_mode):
            return None
        fd = os.open(path, flags if follow else flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    except ValueError:
        return None
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise StorageError(f"{display(path)} cannot be read: {error.strerror}") from error
        if error.errno in _NO_FILE:
            return None
        raise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return None
        size = min(info.st_size, limit) + 1
        found = bytearray()
        while len(found) < limit and (piece := os.read(fd, size)):
            found += piece
        return bytes(found[:limit])
    finally:
        os.close(fd)
