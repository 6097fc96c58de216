"""A file that only takes space: deleted when the disk is full, so that operations that go back or free space have the
little that they need.

Restore, undo, forgetting a checkpoint and collection all write to the catalog, which fails on a full disk. The ballast
is made while there is room; it is the file ``ballast`` in the home, mode 0600, without content.
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
"""It takes at most this share of the free space."""
_BLOCK = 4096


def create(home: bytes, *, again: bool = False) -> None:
    """Make the ballast, if it is missing and the disk has room for it. Best effort: a failure is ignored.

    ``again``: it was deleted a moment ago, and takes back its remaining room, however full the disk is.
    """
    path = os.path.join(home, NAME)
    if os.path.lexists(path):
        return
    with suppress(OSError):
        size = min(MOST_BYTES, _free(home) // (1 if again else _SHARE))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while not _allocate(fd, size // _BLOCK * _BLOCK):
                size = size * 7 // 8  # the list of blocks takes space as well
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
    """Remove the ballast if the disk is too full to continue without it; True if that has freed space."""
    with suppress(OSError):
        if _free(home) < MOST_BYTES:
            os.unlink(os.path.join(home, NAME))
            return True
    return False


def _free(home: bytes) -> int:
    about = os.statvfs(home)
    return about.f_bavail * about.f_frsize
