"""Finds what the file handles in fanotify's events mean: the file systems that are marked, each held open."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.files.watch import system
from holdfast.model.errors import UnsupportedError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.files.watch.fanotify_events import Handle


class Mounts:
    """A descriptor on each of some file systems, by its id."""

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}

    def add(self, path: bytes) -> int:
        """Open the directory ``path``, on another file system than those before; returns the descriptor, kept here."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            key = system.filesystem_id(fd)
            if not any(key):
                raise UnsupportedError(f"the file system at {display(path)} has no id")
            if key in self._open:
                # One file system in two places: a handle has two paths, and only one of them would be found.
                raise UnsupportedError(
                    f"{display(path)} is a second mount of a file system that the tree holds already"
                )
        except BaseException:
            os.close(fd)
            raise
        self._open[key] = fd
        return fd

    def close(self) -> None:
        """Let go of all; harmless a second time."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def where(self, handle: Handle) -> bytes:
        """The absolute path of what ``handle`` means. Raises ESTALE if it is gone."""
        mount = self._open.get(handle[:8])
        if mount is None:
            # btrfs gives every subvolume an id of its own; any descriptor on the file system opens its handles.
            mount = next(iter(self._open.values()), -1)
        fd = system.open_by_handle(mount, handle[8:])
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
        """How many names a file has; more than one if that cannot be told."""
        mount = self._open.get(handle[:8], -1)
        try:
            fd = system.open_by_handle(mount, handle[8:])
        except OSError as error:
            return 0 if error.errno == errno.ESTALE else 2
        try:
            return os.fstat(fd).st_nlink
        finally:
            os.close(fd)
