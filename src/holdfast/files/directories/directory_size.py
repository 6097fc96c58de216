"""How much room a whole directory takes, with everything in it: for a word before it is copied."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.long_paths import opened_below
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.files.protected_directories import ProtectedDirectories

_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system's is."""


class DirectorySize(NamedTuple):
    """What `replicate` would copy."""

    files: int
    """All that is no directory; one with several names once."""
    bytes: int
    """The room that it takes where it lies: holes take none."""


def size_of(directory: bytes, *, without: ProtectedDirectories) -> DirectorySize:
    """Count what is in the directory and below, but for sockets, and the directories ``without``. Follows no link.

    What is gone, or cannot be looked into, is left out. Raises `OSError` if that is the directory itself.
    """
    counted = _Counted(without)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        left = [b""]
        while left:
            at = left.pop()
            try:
                with opened_below(top, at) as fd, os.scandir(fd) as entries:
                    left += [at + b"/" + name if at else name for name in counted.directories(entries)]
            except OSError:
                if not at:
                    raise
    finally:
        os.close(top)
    return DirectorySize(counted.files, counted.bytes)


class _Counted:
    def __init__(self, without: ProtectedDirectories) -> None:
        self.files = self.bytes = 0
        self._without = without
        self._linked: set[tuple[int, int]] = set()

    def directories(self, entries: Iterable[os.DirEntry[str]]) -> Iterator[bytes]:
        """Count what is in a directory, and tell which of it are directories themselves."""
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            identity = (about.st_dev, about.st_ino)
            if stat.S_ISDIR(about.st_mode):
                if not self._without.is_one(about):
                    yield os.fsencode(entry.name)
            elif not stat.S_ISSOCK(about.st_mode) and identity not in self._linked:
                self.files += 1
                self.bytes += about.st_blocks * _BLOCK
                if about.st_nlink > 1:
                    self._linked.add(identity)
