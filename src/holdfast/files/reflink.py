"""Copying a file without copying its bytes, where the file system can share them."""

from __future__ import annotations

import errno
import fcntl
import os

_FICLONE = 0x40049409
"""``_IOW(0x94, 9, int)``: see ioctl_ficlonerange(2)."""

_CANNOT = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
_PIECE = 1 << 30


def clone_file(src_fd: int, dst_fd: int) -> bool:
    """Make the file ``dst_fd`` hold the content of ``src_fd``; True if the kernel did it, sharing blocks if it can.

    ``dst_fd`` is open for writing and empty; ``src_fd`` is open for reading; their offsets are left undefined. Tries
    ``FICLONE`` and then ``copy_file_range``, which is a copy inside the kernel on file systems that share nothing.
    False means that neither is possible between these two and ``dst_fd`` is still empty: copy the bytes. Other errors
    (disk full, I/O) raise `OSError`. Not durable until synced; a source that changes meanwhile gives a mixture, as
    any copy does.
    """
    try:
        fcntl.ioctl(dst_fd, _FICLONE, src_fd)
        return True
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    offset = 0
    try:
        while copied := os.copy_file_range(src_fd, dst_fd, _PIECE, offset, offset):
            offset += copied
    except OSError as error:
        if offset or error.errno not in _CANNOT:
            raise
        return False
    # Some kernels copy nothing from files whose size they do not know (procfs, FUSE): that is no copy.
    return offset > 0 or (os.fstat(src_fd).st_size == 0 and not os.pread(src_fd, 1, 0))
