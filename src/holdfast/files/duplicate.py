"""A copy of a file's content, holes included, made the cheapest way that the file system offers."""

from __future__ import annotations

import errno
import os

from holdfast.files.reflink import share_blocks

_PIECE = 1 << 20
_CANNOT = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)


def duplicate(src_fd: int, dst_fd: int) -> int:
    """Make the file ``dst_fd`` (open for writing) hold exactly the content of ``src_fd`` (open for reading).

    Whatever ``dst_fd`` held is replaced in place: its inode and names stay. Returns the number of bytes that were
    copied; 0 if the two share their blocks. Raises `OSError`; the content of ``dst_fd`` is then undefined. Not durable
    until synced.
    """
    size = os.fstat(src_fd).st_size
    if size and share_blocks(src_fd, dst_fd):
        # (Told its own size, XFS reads the last block of a file, and writes it anew: it would not be shared any more.)
        if os.fstat(dst_fd).st_size != size:
            os.ftruncate(dst_fd, size)
        return 0
    os.ftruncate(dst_fd, 0)
    copied, at = 0, 0
    while at < size:
        try:
            at = os.lseek(src_fd, at, os.SEEK_DATA)
            end = os.lseek(src_fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing but a hole to the end
            if error.errno != errno.EINVAL:
                raise
            end = size
        copied += _copy(src_fd, dst_fd, at, end)
        at = end
    os.ftruncate(dst_fd, size)
    return copied


def _copy(src_fd: int, dst_fd: int, start: int, end: int) -> int:
    at = start
    try:
        while at < end and (count := os.copy_file_range(src_fd, dst_fd, end - at, at, at)):
            at += count
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    while at < end and (piece := os.pread(src_fd, min(_PIECE, end - at), at)):
        view = memoryview(piece)
        while view:
            count = os.pwrite(dst_fd, view, at)
            view = view[count:]
            at += count
    return at - start
