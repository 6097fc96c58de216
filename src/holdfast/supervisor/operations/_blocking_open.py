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
"""A file cannot be opened at once: a process has a lease on it (fcntl(2)), which has now been asked to release it."""
NOBODY_READS = errno.ENXIO
"""A named pipe cannot be opened at once, as it has no reader."""
NOTHING = 0
"""It is opened at once or not at all: no call waits as a device might, such as a modem."""


def _pipe(fd: int) -> Pipe:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def reopen_in_time(resolver: PathResolver, fd: int, flags: int, waits: int) -> int:
    """Open the file of ``fd`` again, with the caller's credentials.

    If that fails with ``waits``, a caller with ``O_NONBLOCK`` gets the error, and for others it is tried again later.
    The keeper never waits in the kernel: another process would decide how long, even after the caller's death. A
    waiting caller costs neither a thread nor a descriptor, so there may be any number. Raises `OSError`, and
    `LaterError`.
    """
    try:
        with resolver.caller_credentials():
            resolver.check_waiting()  # it may truncate the file
            opened = reopen(fd, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != waits or flags & os.O_NONBLOCK:
            raise
        raise LaterError(_pipe(fd) if waits == NOBODY_READS else None) from error
    if not flags & os.O_NONBLOCK:
        os.set_blocking(opened, True)
    return opened
