"""Finds the objects of the file handles in fanotify's events, on the marked file systems.

That needs a descriptor on the file system, which prevents an unmount: those on mounts in the tree are opened when
needed, and closed when the watcher is idle.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.files.watch import event_syscalls
from holdfast.model.errors import UnsupportedError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.files.watch._fanotify_events import Handle


class Mounts:
    """Where each of some file systems is mounted, by its id."""

    def __init__(self) -> None:
        self._places: dict[bytes, bytes] = {}
        self._open: dict[bytes, int] = {}

    def add(self, path: bytes) -> int:
        """Open the directory ``path``, on another file system than those before; the descriptor is kept until `rest`.
        The first is that of the root.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            key = event_syscalls.filesystem_id(fd)
            if not any(key):
                raise UnsupportedError(f"the file system at {display(path)} has no id")
            if key in self._places:
                # One file system in two places: a handle has two paths, and only one of them would be found.
                raise UnsupportedError(
                    f"{display(path)} is a second mount of a file system that the tree holds already"
                )
        except BaseException:
            os.close(fd)
            raise
        self._places[key] = path
        self._open[key] = fd
        return fd

    def rest(self) -> None:
        """Allow unmounts of all file systems until the next question, except the first: the root stays open in any
        case, and is found wherever it is moved.
        """
        for key in list(self._open)[1:]:
            os.close(self._open.pop(key))

    def close(self) -> None:
        """Forget all; harmless a second time."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        self._places.clear()

    def _descriptor(self, key: bytes) -> int:
        """A descriptor on the file system ``key``. Raises `OSError`, ESTALE if it is not where it was."""
        fd = self._open.get(key)
        if fd is None:
            fd = os.open(self._places[key], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if event_syscalls.filesystem_id(fd) != key:
                os.close(fd)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            self._open[key] = fd
        return fd

    def where(self, handle: Handle) -> bytes:
        """The absolute path of what ``handle`` means. Raises ESTALE if it is gone."""
        key = handle[:8]
        if key not in self._places:
            # btrfs gives every subvolume its own id; any descriptor on the file system opens its handles.
            key = next(iter(self._places), b"")
        fd = event_syscalls.open_by_handle(self._descriptor(key) if key else -1, handle[8:])
        try:
            real = os.readlink(b"/proc/self/fd/%d" % fd)
            if real.endswith(b" (deleted)"):
                about = os.fstat(fd)
                try:
                    named = os.lstat(real)
                except OSError:
                    named = None
                if named is None or (named.st_dev, named.st_ino) != (about.st_dev, about.st_ino):
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real
        finally:
            os.close(fd)

    def names_left(self, handle: Handle) -> int:
        """The number of names of a file; more than one if that is unknown."""
        if handle[:8] not in self._places:
            return 2
        try:
            fd = event_syscalls.open_by_handle(self._descriptor(handle[:8]), handle[8:])
        except OSError as error:
            return 0 if error.errno == errno.ESTALE else 2
        try:
            return os.fstat(fd).st_nlink
        finally:
            os.close(fd)
