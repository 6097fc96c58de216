"""When a file holds still, where the kernel cannot tell who writes to it.

A store through a memory mapping changes a file's times once: as the first one to a page since that was last written
back. So what was written back before it is read, and has kept its times since, cannot change any more without telling.
Where nothing is ever written back, as on an overlay whose upper layer is in memory, this leaves the writers that
``/proc`` shows; those of other containers are not seen there.
"""

from __future__ import annotations

import errno
import os
import time

from holdfast.files.linux.file_writers import written_now


class Stillness:
    """What one scan knows of files whose writers it is not told. Each file system is written back once."""

    def __init__(self) -> None:
        """Nothing is asked or written back before a file needs it."""
        self.handing_on: dict[int, bool] = {}
        """See `holdfast.files.linux.file_lease.writer_of`."""
        self._since: dict[int, int] = {}
        self._written: set[tuple[int, int]] = set()

    def since(self, fd: int) -> int:
        """The moment (nanoseconds since 1970) from which on the times of the open file tell of every change, as long as
        they are older than it; 0 if nothing can be told, now or later. Call it before the file is read.
        """
        about = os.fstat(fd)
        since = self._since.get(about.st_dev)
        if since is None:
            since = self._since[about.st_dev] = _write_back(fd)
            self._written |= written_now()
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
