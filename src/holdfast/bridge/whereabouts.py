"""Where in the tree an object is that is open: as the kernel says, which knows of every rename, whoever made it."""

from __future__ import annotations

import os
import time
from typing import Final

from holdfast.files.kernel import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, openat2
from holdfast.files.metadata import through

_FRESH_NS: Final = 20_000_000
"""For so long the root is taken to be where it was: only somebody outside moves it."""
_DELETED: Final = b" (deleted)"
_RULES: Final = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_OBJECT: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Whereabouts:
    """Paths relative to a root. For any number of threads."""

    def __init__(self, root_fd: int) -> None:
        """``root_fd`` is borrowed."""
        self._root = root_fd
        self._known = 0, b""

    def path(self, fd: int) -> bytes | None:
        """The path of what ``fd`` refers to, empty for the root; None if it is not below the root, as what was removed.

        Raises `OSError`: ENAMETOOLONG if it is too deep for a path.
        """
        at, root = self._known
        now = time.monotonic_ns()
        if now - at > _FRESH_NS:
            root = _absolute(self._root)
            self._known = now, root
        path = _absolute(fd)
        if path == root:
            return b""
        above = root if root.endswith(b"/") else root + b"/"
        if not path.startswith(above):
            return None
        path = path[len(above) :]
        return None if path.endswith(_DELETED) and not self._is_there(path, fd) else path

    def _is_there(self, path: bytes, fd: int) -> bool:
        """Whether it is really called so."""
        try:
            found = openat2(self._root, path, _OBJECT, _RULES)
        except OSError:
            return False
        try:
            return os.path.samestat(os.fstat(found), os.fstat(fd))
        finally:
            os.close(found)


def _absolute(fd: int) -> bytes:
    return os.fsencode(os.readlink(through(fd)))
