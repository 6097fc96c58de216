"""The few calls by which the local object store changes a disk, behind a port.

So a test can record writes and syncs (`holdfast.testing.powerloss`), or make the third sync fail
(`holdfast.testing.faulty_disk`).
"""

from __future__ import annotations

import os
import stat

from holdfast.model.fast_typing import Protocol

MARKED = 0o1700
"""The mode of a directory with the note of `Disk.mark_durable`."""


class Disk(Protocol):
    """Changes to a file system. Every method raises `OSError` as the system call does."""

    def create(self, path: str) -> int:
        """Create a file that is not there yet, mode 0600, and return a descriptor to write it with."""
        ...

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        """Write some of ``data`` and return how many bytes that was."""
        ...

    def sync(self, fd: int) -> None:
        """Make the content of the file durable. Its directory entry is not."""
        ...

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory, mode 0700."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing one at the target."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file's name."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the entries of a directory durable."""
        ...

    def mark_durable(self, path: str) -> None:
        """Note on a directory that its own name, and those above it, are durable; `is_marked_durable` reads that."""
        ...


class SystemDisk:
    """The operating system's own calls."""

    def create(self, path: str) -> int:
        """See `Disk.create`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        """See `Disk.write`."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """See `Disk.sync`."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """See `Disk.close`."""
        os.close(fd)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        os.mkdir(path, 0o700)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        os.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mark_durable(self, path: str) -> None:
        """See `Disk.mark_durable`. The note is the sticky bit, which means nothing in a directory of one owner."""
        os.chmod(path, MARKED)


def is_marked_durable(path: str) -> bool:
    """Whether there is a directory that bears the note of `Disk.mark_durable`. Raises no error."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)


SYSTEM_DISK = SystemDisk()
