"""Directories of a workspace by path, for the keeper, and their entries: opened from the root, without following links
(I7).

Unlike a checkpoint's, these paths include ``.git`` and everything else in the tree.
"""

from __future__ import annotations

import errno
import os
import stat

from holdfast.files.linux import syscalls
from holdfast.files.linux.long_paths import open_below
from holdfast.undo.interceptor import Place
from holdfast.undo.journal.preimages import is_empty_directory

_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST = 128
_TRIES = 16


class Directories:
    """The directories below a root, opened on demand; at most 128 stay open. For one thread at a time."""

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
        """Close the directories at or below ``path``, which no longer exists."""
        below = path + b"/"
        for known in [known for known in self._open if known == path or known.startswith(below)]:
            os.close(self._open.pop(known))

    def _resolve(self, path: bytes) -> int:
        for _ in range(_TRIES):
            try:
                return open_below(self._root, path, _DIRECTORY, _RULES)
            except BlockingIOError:
                continue  # a rename, anywhere, raced with the look-up
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


def lstat(place: Place) -> os.stat_result:
    """The `lstat` of the place. Raises `OSError`."""
    return os.stat(place.name, dir_fd=place.dir_fd, follow_symlinks=False)


def lstat_or_none(place: Place) -> os.stat_result | None:
    """The `lstat` of the place; None if it is empty."""
    try:
        return lstat(place)
    except FileNotFoundError:
        return None


def exists(place: Place) -> bool:
    """Whether the path exists."""
    # An exception takes longer than the system call.
    return os.access(place.name, os.F_OK, dir_fd=place.dir_fd, follow_symlinks=False)


def is_at(place: Place, found: os.stat_result) -> bool:
    """Whether the object is at the place."""
    try:
        return os.path.samestat(lstat(place), found)
    except OSError:
        return False


def is_empty_at(place: Place) -> bool | None:
    """Whether the directory is empty; None if we may not look."""
    try:
        return is_empty_directory(place.dir_fd, place.name)
    except PermissionError:
        return None


def may_replace(found: os.stat_result, victim: os.stat_result, target: Place) -> bool:
    """Whether the system would let ``found`` replace ``victim``."""
    if stat.S_ISDIR(victim.st_mode):
        return stat.S_ISDIR(found.st_mode) and is_empty_at(target) is not False
    return not stat.S_ISDIR(found.st_mode)
