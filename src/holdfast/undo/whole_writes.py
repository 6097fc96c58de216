"""Writing that is whole or an error, and that begins at once or not at all."""

from __future__ import annotations

import errno
import os

from holdfast.model.paths import display

AT_ONCE = os.O_NONBLOCK | os.O_CLOEXEC
"""For opening files while others wait: a lease on one (fcntl(2)) fails it with EAGAIN, so that the holder of the lease
does not decide how long. The kernel asks the holder to give it up by that.
"""
TRY_AGAIN = "it has been asked to give that up; try again in a moment"


def leased_reason(path: bytes) -> str:
    """Why a file that could not be opened `AT_ONCE` was not changed; `TRY_AGAIN` is the hint."""
    return f"a process has a lease on {display(path)}"


def write_whole(fd: int, content: bytes) -> None:
    """Make ``content`` what the file ``fd`` begins with. Raises `OSError`, also for a write that was cut short."""
    at = 0
    while at < len(content):
        count = os.pwrite(fd, content[at:], at)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        at += count
