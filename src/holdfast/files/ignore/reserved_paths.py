"""The paths of a tree that are neither captured nor ever changed: Holdfast's own (I14), and the Git directory.

The name ``.git`` is left out everywhere; but a Git directory may have any name, with a file ``.git`` that points there
(``git init --separate-git-dir``, work trees of a bare repository).
"""

from __future__ import annotations

import os

from holdfast.files.git.configuration import find_repository
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from collections.abc import Iterable


class ReservedPaths(NamedTuple):
    """Directories of a tree that are left alone, by path and by identity."""

    paths: frozenset[bytes]
    """From the root."""
    places: frozenset[tuple[int, int]]
    """Device and inode: the same directories may be reached by another name, as through a bind mount, or where names
    are not told apart by their case."""

    def is_one(self, fd: int) -> bool:
        """True if the open directory is one of them."""
        if not self.places:
            return False
        about = os.fstat(fd)
        return (about.st_dev, about.st_ino) in self.places

    def check(self, path: bytes, fd: int = -1) -> None:
        """Raise `RefusedError` if ``path`` is one of them or lies in one, or (given ``fd``) if that is open there."""
        if any(under(path, one) for one in self.paths) or (fd >= 0 and self.is_one(fd)):
            raise RefusedError(
                f"refused path {display(path)!r}: Holdfast keeps its own things there, or Git does", code="reserved"
            )


def find_reserved(root: bytes, never: Iterable[bytes]) -> ReservedPaths:
    """The reserved paths in the tree at ``root``: the directories ``never`` and those of Git, all absolute paths."""
    inside = root.rstrip(b"/") + b"/"
    paths: set[bytes] = set()
    places: set[tuple[int, int]] = set()
    for path in (*never, *_git_directories(root)):
        below = path.startswith(inside)
        if below:
            paths.add(path[len(inside) :].rstrip(b"/"))
        try:
            about = os.stat(path, follow_symlinks=not below)
        except OSError:
            continue
        places.add((about.st_dev, about.st_ino))
    return ReservedPaths(frozenset(paths), frozenset(places))


def _git_directories(root: bytes) -> list[bytes]:
    """Where Git keeps what belongs to the repository that ``root`` lies in, by real paths.

    A directory that holds the root is left out: it would take the whole tree with it.
    """
    repository = find_repository(root)
    if repository is None:
        return []
    found = (os.path.realpath(path) for path in (repository.common, repository.own))
    return [path for path in found if not under(root, path)]
