"""Opening what may keep the caller waiting, so that no other caller waits."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.supervisor.resolution.territory import reopen
from holdfast.supervisor.syscalls.pending_call import LaterError

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.path_resolver import PathResolver
    from holdfast.supervisor.syscalls.retries import Pipe

LEASED = errno.EAGAIN
"""A file cannot be opened at once, as a process has a lease on it (fcntl(2)), and has now been asked to let go."""
NOBODY_READS = errno.ENXIO
"""A named pipe cannot be opened at once, as it has no reader."""
NOTHING = 0
"""It is opened at once or not at all: no call waits for what a device waits for, such as a modem."""


def _pipe(fd: int) -> Pipe:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def reopen_in_time(resolver: PathResolver, fd: int, flags: int, waits: int) -> int:
    """Open what ``fd`` refers to again, with the caller's credentials.

    Where that fails with ``waits``, a caller that asked for ``O_NONBLOCK`` gets the error, and for others it is tried
    again later. The keeper never waits in the kernel: that would last for as long as another process likes, whether the
    caller still lives or not. A caller that waits costs neither a thread nor a descriptor: there may be any number.
    Raises `OSError`, and `LaterError`.
    """
    try:
        with resolver.caller_credentials():
            resolver.check_waiting()  # (it may cut the file short)
            opened = reopen(fd, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != waits or flags & os.O_NONBLOCK:
            raise
        raise LaterError(_pipe(fd) if waits == NOBODY_READS else None) from error
    if not flags & os.O_NONBLOCK:
        os.set_blocking(opened, True)
    return opened
