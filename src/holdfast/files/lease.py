"""Asks the kernel whether a file has a writer now, memory mappings included: by a read lease, taken and given back.

Source: fcntl(2), "Leases". A lease can be had only by the file's owner or with CAP_LEASE, and not on every file system.
"""

from __future__ import annotations

import errno
import fcntl
import signal
from enum import Enum

_READ = fcntl.F_RDLCK
_RELEASE = fcntl.F_UNLCK
_SET = fcntl.F_SETLEASE
_SET_SIGNAL = fcntl.F_SETSIG
_IGNORED_BY_DEFAULT = int(signal.SIGURG)


class Writer(Enum):
    """What the kernel says of a file's writers."""

    NONE = "nobody has it open or mapped for writing"
    SOME = "somebody has"
    UNSAID = "we may not know: it belongs to others, and we lack the privilege"
    UNTOLD = "the file system has no leases, so nobody can be told apart"


def writer_of(fd: int) -> Writer:
    """Whether somebody has the file open or mapped for writing.

    ``fd`` is a regular file opened for reading only. The lease is given back before this returns.
    """
    try:
        # The default signal for a broken lease, SIGIO, would kill this process.
        fcntl.fcntl(fd, _SET_SIGNAL, _IGNORED_BY_DEFAULT)
        fcntl.fcntl(fd, _SET, _READ)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return Writer.SOME
        return Writer.UNSAID if error.errno in (errno.EACCES, errno.EPERM) else Writer.UNTOLD
    fcntl.fcntl(fd, _SET, _RELEASE)
    return Writer.NONE


def has_writer(fd: int) -> bool | None:
    """As `writer_of`: True if somebody has, None if we may not know, and otherwise False."""
    found = writer_of(fd)
    return None if found is Writer.UNSAID else found is Writer.SOME
