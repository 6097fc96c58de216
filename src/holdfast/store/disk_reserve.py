"""A file that only takes space: given up when the disk is full, so that what goes back or frees space has the little
that it needs.

To restore, to undo, to forget a checkpoint and to collect what is dead, the catalog has to be written, and on a full
disk that fails. Where there is room the ballast is laid; it lies in the home, as ``ballast``, mode 0600, and nothing is
in it.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

NAME = b"ballast"
MOST_BYTES = 4 << 20
LEAST_BYTES = 256 << 10
"""Less would be of no use."""
_SHARE = 8
"""It takes at most this part of what is free."""
_BLOCK = 4096


def create(home: bytes, *, again: bool = False) -> None:
    """Make the ballast, if there is none and the disk has room for it. Best effort: a failure is no failure.

    ``again``: it was given up a moment ago, and takes back what is left of its room, however full the disk is.
    """
    path = os.path.join(home, NAME)
    if os.path.lexists(path):
        return
    with suppress(OSError):
        size = min(MOST_BYTES, _free(home) // (1 if again else _SHARE))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while not _allocate(fd, size // _BLOCK * _BLOCK):
                size = size * 7 // 8  # (to name the blocks takes some as well)
        except OSError:
            os.unlink(path)
        finally:
            os.close(fd)


def _allocate(fd: int, size: int) -> bool:
    """Whether there was room; raises `OSError` where it is of no use to try with less."""
    if size < LEAST_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.ftruncate(fd, 0)
        return False
    return True


def release(home: bytes) -> bool:
    """Remove the ballast if the disk is too full to go on without it; True if that has freed something."""
    with suppress(OSError):
        if _free(home) < MOST_BYTES:
            os.unlink(os.path.join(home, NAME))
            return True
    return False


def _free(home: bytes) -> int:
    about = os.statvfs(home)
    return about.f_bavail * about.f_frsize
