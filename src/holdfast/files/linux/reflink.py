"""Copying a file: by sharing its blocks where the file system can, else by its bytes."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import Hasher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from holdfast.model.entries import Entry

_FICLONE = 0x40049409
"""``_IOW(0x94, 9, int)``: see ioctl_ficlonerange(2)."""

_CANNOT = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
_PIECE = 1 << 30
_NO_SUCH_FILES = frozenset((errno.EOPNOTSUPP, errno.EISDIR))
"""Errors of file systems and kernels without unnamed files."""
_PROBE_BYTES = 1 << 16
"""More than any block."""


def share_blocks(src_fd: int, dst_fd: int) -> bool:
    """Share the blocks of ``src_fd`` with ``dst_fd``, without copying; False where the file system cannot.

    The content of ``dst_fd`` beyond the size of ``src_fd`` stays. Raises `OSError` for other failures (disk full, I/O).
    """
    try:
        fcntl.ioctl(dst_fd, _FICLONE, src_fd)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def clone_file(src_fd: int, dst_fd: int) -> bool:
    """Make the file ``dst_fd`` hold the content of ``src_fd``; True if the kernel did it, sharing blocks if it can.

    ``dst_fd`` is open for writing and empty; ``src_fd`` is open for reading; their offsets are left undefined. Tries
    ``FICLONE`` and then ``copy_file_range``, which is a copy inside the kernel on file systems that share nothing.
    False means that neither is possible between these two and ``dst_fd`` is still empty: copy the bytes. Other errors
    (disk full, I/O) raise `OSError`. Not durable until synced; a source that changes meanwhile gives a mixture, as
    any copy does.
    """
    if share_blocks(src_fd, dst_fd):
        return True
    offset = 0
    try:
        while copied := os.copy_file_range(src_fd, dst_fd, _PIECE, offset, offset):
            offset += copied
    except OSError as error:
        if offset or error.errno not in _CANNOT:
            raise
        return False
    # Some kernels copy nothing from files of unknown size (procfs, FUSE): that is no copy.
    return offset > 0 or (os.fstat(src_fd).st_size == 0 and not os.pread(src_fd, 1, 0))


def can_share(one: bytes, other: bytes) -> bool:
    """Whether a file in the directory ``other`` can share blocks with one in ``one``: tried, with files without a name.

    Raises `OSError`.
    """
    with ExitStack() as stack:
        opened: list[int] = []
        for where in (one, other):
            try:
                opened.append(os.open(where, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except OSError as error:
                if error.errno in _NO_SUCH_FILES:
                    return False
                raise
            stack.callback(os.close, opened[-1])
        source, target = opened
        os.write(source, bytes(_PROBE_BYTES))
        return share_blocks(source, target)


class SharedFile:
    """The content of an open file, whose blocks a new file may share; ``stored`` gives the same content, verified.

    For users that want only its pieces it is a `Content` like any other. `close`, or the end of the pieces, closes the
    descriptor.
    """

    def __init__(self, fd: int, stored: Iterator[bytes]) -> None:
        self._fd = fd
        self.stored = stored

    def __iter__(self) -> Self:
        """Itself: the pieces are the stored ones."""
        return self

    def __next__(self) -> bytes:
        """The next piece of the stored content."""
        return next(self.stored)

    def close(self) -> None:
        """Close the descriptor. Harmless a second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def share_with(self, fd: int, entry: Entry) -> bool:
        """Share the content with the new, empty file ``fd`` (open for reading too); True if that is the content of
        ``entry``.

        Otherwise it is empty again. The shared content is read back and verified: the file may have changed since it
        was opened.
        """
        try:
            if os.fstat(self._fd).st_size == entry.size and clone_file(self._fd, fd) and _holds(fd, entry):
                return True
        finally:
            self.close()
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        return False


def _holds(fd: int, entry: Entry) -> bool:
    if os.fstat(fd).st_size != entry.size:
        return False
    hasher, at = Hasher(), 0
    while piece := os.pread(fd, CHUNK_BYTES, at):
        hasher.update(piece)
        at += len(piece)
    return hasher.hash() == entry.hash


# A copy of a file's content, holes included, made the cheapest way that the file system offers.

_READ_BYTES = 1 << 20
_CANNOT_COPY = frozenset(
    {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)


def copy_content(src_fd: int, dst_fd: int) -> int:
    """Give the file ``dst_fd`` (open for writing) exactly the content of ``src_fd`` (open for reading).

    The content of ``dst_fd`` is replaced in place: its inode and names stay. Returns the number of copied bytes; 0 if
    the two share their blocks. Raises `OSError`; the content of ``dst_fd`` is then undefined. Not durable until synced.
    """
    size = os.fstat(src_fd).st_size
    if size and share_blocks(src_fd, dst_fd):
        # (If truncated to its present size, XFS reads a file's last block and rewrites it: it would no longer be
        # shared.)
        if os.fstat(dst_fd).st_size != size:
            os.ftruncate(dst_fd, size)
        return 0
    os.ftruncate(dst_fd, 0)
    copied = copy_data(src_fd, dst_fd)
    os.ftruncate(dst_fd, size)
    return copied


def copy_data(src_fd: int, dst_fd: int) -> int:
    """Copy all but the holes of the file ``src_fd`` to the same places of ``dst_fd``, which holds nothing yet. Returns
    the number of bytes. Raises `OSError`.
    """
    size = os.fstat(src_fd).st_size
    copied, at = 0, 0
    while at < size:
        try:
            at = os.lseek(src_fd, at, os.SEEK_DATA)
            end = os.lseek(src_fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole to the end
            if error.errno != errno.EINVAL:
                raise
            end = size
        copied += _copy(src_fd, dst_fd, at, end)
        at = end
    return copied


def _copy(src_fd: int, dst_fd: int, start: int, end: int) -> int:
    at = start
    try:
        while at < end and (count := os.copy_file_range(src_fd, dst_fd, end - at, at, at)):
            at += count
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
    while at < end and (piece := os.pread(src_fd, min(_READ_BYTES, end - at), at)):
        view = memoryview(piece)
        while view:
            count = os.pwrite(dst_fd, view, at)
            view = view[count:]
            at += count
    return at - start
