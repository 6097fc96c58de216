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
"""The unit of ``st_blocks``, independent of the file system."""


class DirectorySize(NamedTuple):
    """The amount that `replicate` would copy."""

    files: int
    """All that is no directory; one with several names once."""
    bytes: int
    """The space that it takes on its disk: holes take none."""


def size_of(directory: bytes, *, without: ProtectedDirectories) -> DirectorySize:
    """Count the content of the directory, except sockets and the directories ``without``. Follows no link.

    Vanished or unreadable entries are left out. Raises `OSError` if the directory itself is one.
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
        """Count the entries of a directory, and return those that are directories themselves."""
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
