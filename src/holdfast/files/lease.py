"""Asks the kernel whether a file has a writer now, memory mappings included: by a read lease, taken and given back.

Source: fcntl(2), "Leases". A lease can be had only by the file's owner or with CAP_LEASE, and not on every file system.
On some it says too little: a file of an overlay hands its mappings on to a file of a layer, and once its descriptor is
closed nothing at the file itself tells of the mapping. FUSE may do the same (passthrough).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from enum import Enum

_READ = fcntl.F_RDLCK
_RELEASE = fcntl.F_UNLCK
_SET = fcntl.F_SETLEASE
_SET_SIGNAL = fcntl.F_SETSIG
_IGNORED_BY_DEFAULT = int(signal.SIGURG)
_OVERLAYFS, _FUSE = 0x794C7630, 0x65735546
_HAND_ON = frozenset((_OVERLAYFS, _FUSE))
"""Magic numbers of file systems whose files may be mapped through others (linux/magic.h)."""


class Writer(Enum):
    """What the kernel says of a file's writers."""

    NONE = "nobody has it open or mapped for writing"
    SOME = "somebody has"
    UNSAID = "we may not know: it belongs to others, and we lack the privilege"
    UNTOLD = "the file system has no leases, or they do not tell of every mapping"


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
    return Writer.UNTOLD if _hands_on(fd) else Writer.NONE


def _hands_on(fd: int) -> bool:
    """True if the file's mappings may be those of another file."""
    if os.major(os.fstat(fd).st_dev):
        return False  # it lies on a device of its own, as most do: no need to ask
    from holdfast.files import kernel

    return kernel.file_system(fd) in _HAND_ON
