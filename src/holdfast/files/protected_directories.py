"""Recognises Holdfast's own directories by a descriptor: no path from a peer leads there, by any name (I7, I14)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import EscapeError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_LEVELS = 10_000


class ProtectedDirectories(NamedTuple):
    """Directories that only Holdfast itself looks into or changes, as they are now."""

    places: frozenset[tuple[int, int]]
    """Device and inode."""

    def is_one(self, about: os.stat_result) -> bool:
        """Whether this is one of them."""
        return (about.st_dev, about.st_ino) in self.places

    def holds(self, directory: int) -> bool:
        """Whether the open directory is one of them, or lies in one: looked for from there upwards, so that it does not
        matter which names led to it. Raises `OSError`.
        """
        if not self.places:
            return False
        top = os.stat(b"/")
        at = os.dup(directory)
        try:
            for _ in range(_MOST_LEVELS):
                about = os.fstat(at)
                if self.is_one(about):
                    return True
                if os.path.samestat(about, top):
                    return False
                above = os.open(b"..", _DIRECTORY, dir_fd=at)
                os.close(at)
                at = above
            return True  # deeper than any path leads
        finally:
            os.close(at)

    def check(self, directory: int, path: bytes) -> None:
        """Raise `EscapeError`, which names ``path``, if it `holds` the directory. Raises `OSError`."""
        if self.holds(directory):
            raise EscapeError(f"refused path {display(path) or '.'!r}: Holdfast keeps its own things there")


def find_protected(directories: Iterable[bytes]) -> ProtectedDirectories:
    """The present identities of the directories, given by absolute paths; missing ones are left out."""
    places: set[tuple[int, int]] = set()
    for path in directories:
        try:
            about = os.stat(path)
        except OSError:
            continue
        places.add((about.st_dev, about.st_ino))
    return ProtectedDirectories(frozenset(places))
