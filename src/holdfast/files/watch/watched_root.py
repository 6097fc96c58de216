"""The directory that is watched, as a place that may be moved, deleted, made again, and mounted upon."""

from __future__ import annotations

import os
import select

from holdfast.files.linux.mount_table import Mount, parse_mounts
from holdfast.model.errors import NotFoundError, StorageError
from holdfast.model.paths import display

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class WatchedRoot:
    """A root directory, held open: as long as it is, no other directory can have its inode number.

    Raises `NotFoundError` if it is not there to begin with.
    """

    def __init__(self, path: bytes) -> None:
        self.path = os.path.abspath(path)
        self.fd = -1
        self.real = b""
        """The path by which the kernel knows it, without links."""
        self.mounts_below: tuple[Mount, ...] = ()
        try:
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"cannot read the mount table: {error.strerror}") from error
        self._poll = select.poll()
        self._poll.register(self._mounts, select.POLLPRI)
        if not self.reopen():
            self.close()
            raise NotFoundError(f"there is no directory {display(self.path)}")

    def close(self) -> None:
        """Release the directory; a second call does nothing."""
        for fd in (self.fd, self._mounts):
            if fd >= 0:
                os.close(fd)
        self.fd = self._mounts = -1

    def reopen(self) -> bool:
        """Use the directory that is now at the path as the root; False if there is none."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        try:
            self.fd = os.open(self.path, _DIRECTORY)
            self.real = os.readlink(b"/proc/self/fd/%d" % self.fd)
            if self.real != self.path:
                raise NotADirectoryError  # a link has replaced it: its target is not the workspace
        except OSError:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            return False
        self.mounts_below = self._below()
        return True

    def same(self) -> bool:
        """True if the path still leads to the directory that is held open, by the path it had."""
        if self.fd < 0:
            return False
        try:
            now = os.stat(self.path)
            held = os.fstat(self.fd)
            return (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino) and self.real == os.readlink(
                b"/proc/self/fd/%d" % self.fd
            )
        except OSError:
            return False

    def mounts_changed(self) -> bool:
        """True once after a mount or unmount below the root; otherwise it costs one system call."""
        if not self._poll.poll(0):
            return False
        before, self.mounts_below = self.mounts_below, self._below()
        return before != self.mounts_below

    def mount(self) -> Mount:
        """The mount that the root itself is on."""
        best = Mount(0, b"", b"/", b"/", b"", b"")
        for mount in self._table():
            if _under(self.real, mount.point) and len(mount.point) >= len(best.point):
                best = mount
        return best

    def _below(self) -> tuple[Mount, ...]:
        return tuple(m for m in self._table() if m.point != self.real and _under(m.point, self.real))

    def _table(self) -> list[Mount]:
        os.lseek(self._mounts, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._mounts), "rb") as file:
            return parse_mounts(file.read())


def _under(path: bytes, above: bytes) -> bool:
    return path == above or path.startswith(above.rstrip(b"/") + b"/")
