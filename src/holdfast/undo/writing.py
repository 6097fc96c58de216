"""Writing that is whole or an error."""

from __future__ import annotations

import errno
import os


def write_whole(fd: int, content: bytes) -> None:
    """Make ``content`` what the file ``fd`` begins with. Raises `OSError`, also for a write that was cut short."""
    at = 0
    while at < len(content):
        count = os.pwrite(fd, content[at:], at)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        at += count
