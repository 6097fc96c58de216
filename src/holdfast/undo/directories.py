"""Directories of a workspace by path, for the keeper: reached from the root, following no link (I7).

Unlike what a checkpoint may name, the paths here include ``.git`` and everything else that is in the tree.
"""

from __future__ import annotations

import errno
import os

from holdfast.files import kernel
from holdfast.files.deep import open_below
from holdfast.undo.interceptor import Place

_RULES = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST = 128
_TRIES = 16


class Directories:
    """The directories below a root, opened when they are asked for; at most 128 stay open. For one thread at a time."""

    def __init__(self, root_fd: int) -> None:
        """``root_fd`` is borrowed."""
        self._root = root_fd
        self._open: dict[bytes, int] = {}
        self.device = os.fstat(root_fd).st_dev
        """The root's."""

    def close(self) -> None:
        """Close them all: the next use looks again."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def place(self, path: bytes) -> Place:
        """Where ``path``, which is not the root, is; only its directory need exist. Raises `OSError`."""
        parent, _, name = path.rpartition(b"/")
        if name in (b"", b".", b"..") or b"\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))
        return Place(self.directory(parent), name, path)

    def directory(self, path: bytes) -> int:
        """The descriptor of the directory ``path``, borrowed until the next call. Raises `OSError`."""
        if not path:
            return self._root
        if b"\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))
        fd = self._open.pop(path, -1)
        if fd < 0:
            fd = self._resolve(path)
            if len(self._open) >= _MOST:
                os.close(self._open.pop(next(iter(self._open))))
        self._open[path] = fd
        return fd

    def forget(self, path: bytes) -> None:
        """Close what was opened at or below ``path``: it is not there any more."""
        below = path + b"/"
        for known in [known for known in self._open if known == path or known.startswith(below)]:
            os.close(self._open.pop(known))

    def _resolve(self, path: bytes) -> int:
        for _ in range(_TRIES):
            try:
                return open_below(self._root, path, _DIRECTORY, _RULES)
            except BlockingIOError:
                continue  # a rename elsewhere raced with the look-up
            except OSError as error:
                if error.errno != errno.ENOSYS:
                    raise
                break
        return self._walk(path)

    def _walk(self, path: bytes) -> int:
        at = os.dup(self._root)
        for name in path.split(b"/"):
            if name in (b"", b".", b".."):
                os.close(at)
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))
            try:
                inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            finally:
                os.close(at)
            at = inner
        return at
