"""Finds out when a file no longer changes, where the kernel does not tell whether a process writes to it.

A store through a memory mapping changes a file's times only if it is the first one to its page since the page was last
written back. So a file that was written back before it is read cannot change afterwards and keep its times. Where a
file system writes nothing back, as an overlay whose upper layer is in memory, only the writers visible in ``/proc`` are
known, which excludes those of other containers.
"""

from __future__ import annotations

import errno
import os
import time

from holdfast.files.linux.file_writers import files_being_written


class WriteQuiescence:
    """The knowledge of one scan about files with unknown writers. It writes each file system back once."""

    def __init__(self) -> None:
        """Asks and writes back nothing before a file needs it."""
        self.handing_on: dict[int, bool] = {}
        """See `holdfast.files.linux.file_lease.writer_of`."""
        self._since: dict[int, int] = {}
        self._written: set[tuple[int, int]] = set()

    def since(self, fd: int) -> int:
        """The moment (nanoseconds since 1970) after which every change gives the open file new times, if its times are
        older than that; 0 if no such moment is known, now or later. Call it before the file is read.
        """
        about = os.fstat(fd)
        since = self._since.get(about.st_dev)
        if since is None:
            since = self._since[about.st_dev] = _write_back(fd)
            self._written |= files_being_written()
        return 0 if (about.st_dev, about.st_ino) in self._written else since


def _write_back(fd: int) -> int:
    """Have all of the file system written back; the moment before that, or 0 if it failed."""
    from holdfast.files.linux import syscalls

    moment = time.time_ns()
    try:
        syscalls.syncfs(fd)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            return 0
        os.sync()
    return moment
