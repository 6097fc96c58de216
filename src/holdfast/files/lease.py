"""Asks the kernel whether a file has a writer now, memory mappings included: by a read lease, taken and given back.

Source: fcntl(2), "Leases". A lease can be had only by the file's owner or with CAP_LEASE, and not on every file system.
"""

from __future__ import annotations

import errno
import fcntl
import signal

_READ = fcntl.F_RDLCK
_RELEASE = fcntl.F_UNLCK
_SET = fcntl.F_SETLEASE
_SET_SIGNAL = fcntl.F_SETSIG
_IGNORED_BY_DEFAULT = int(signal.SIGURG)


def has_writer(fd: int) -> bool | None:
    """True if somebody has the file open or mapped for writing, False if nobody has, None if we may not know.

    That is so for the files of others, without the privilege. Where the file system has no leases nobody can be told
    apart, and the answer is False.

    ``fd`` is a regular file opened for reading only. The lease is given back before this returns.
    """
    try:
        # The default signal for a broken lease, SIGIO, would kill this process.
        fcntl.fcntl(fd, _SET_SIGNAL, _IGNORED_BY_DEFAULT)
        fcntl.fcntl(fd, _SET, _READ)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        return None if error.errno in (errno.EACCES, errno.EPERM) else False
    fcntl.fcntl(fd, _SET, _RELEASE)
    return False
