"""Prunes a copy of a tree: removes all but the named files."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.files.directories.replication import remove_whole
from holdfast.files.linux import syscalls
from holdfast.files.linux.long_paths import open_below
from holdfast.model.paths import UNDO_LOG_IN_TREE

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES: Final = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_OWN: Final = UNDO_LOG_IN_TREE.split(b"/")[0]


def keep_only(directory: bytes, files: Collection[bytes]) -> None:
    """Remove everything below ``directory`` but ``files``, relative paths that need not exist, and Holdfast's own
    entries at its top. Directories that were empty stay; those that become empty are removed. The remaining entries
    keep their permissions and times. Follows no link, not even one made meanwhile. Not atomic. Raises `OSError`.
    """
    above = {b""}
    for path in files:
        while (path := path.rpartition(b"/")[0]) not in above:
            above.add(path)
    left = [b""]
    top = os.open(directory, _DIRECTORY)
    try:
        while left:
            at = left.pop()
            with _changeable(top, at) as fd:
                for name, is_directory in _entries(fd):
                    path = at + b"/" + name if at else name
                    if path == _OWN:
                        continue
                    if not is_directory:
                        if path not in files:
                            os.unlink(name, dir_fd=fd)
                    elif path in above:
                        left.append(path)
                    elif _holds_something(fd, name):
                        remove_whole(b"/proc/self/fd/%d/%b" % (fd, name))
    finally:
        os.close(top)


@contextmanager
def _changeable(top: int, path: bytes) -> Generator[int]:
    """A directory of the copy, with all permissions for its owner while it lasts."""
    fd, found, closed = _opened(top, path)
    try:
        yield fd
        if os.fstat(fd).st_mtime_ns != found.st_mtime_ns:
            os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        if closed:
            os.fchmod(fd, stat.S_IMODE(found.st_mode))
        os.close(fd)


def _opened(top: int, path: bytes) -> tuple[int, os.stat_result, bool]:
    """A directory, to be changed; its previous status; and whether its permissions were changed."""
    try:
        fd = open_below(top, path, _DIRECTORY, _RULES)
    except PermissionError:
        fd = -1
    else:
        found = os.fstat(fd)
        if found.st_mode & stat.S_IRWXU == stat.S_IRWXU:
            return fd, found, False
        os.close(fd)
    itself = open_below(top, path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, _RULES)
    try:
        found = os.fstat(itself)
        os.chmod(f"/proc/self/fd/{itself}", stat.S_IMODE(found.st_mode) | stat.S_IRWXU)
        try:
            fd = os.open(f"/proc/self/fd/{itself}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            os.chmod(f"/proc/self/fd/{itself}", stat.S_IMODE(found.st_mode))
            raise
    finally:
        os.close(itself)
    return fd, found, True


def _entries(fd: int) -> list[tuple[bytes, bool]]:
    """The entries of a directory, with whether each is a directory, as the listing says: no inode is read for that,
    which in a fresh snapshot would take longest.
    """
    with os.scandir(fd) as found:
        return [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]


def _holds_something(fd: int, name: bytes) -> bool:
    """Whether anything but directories is below a directory. True if one of them is unreadable."""
    left = [name]
    while left:
        path = left.pop()
        try:
            inner = open_below(fd, path, _DIRECTORY, _RULES)
        except PermissionError:
            return True
        try:
            for each, is_directory in _entries(inner):
                if not is_directory:
                    return True
                left.append(path + b"/" + each)
        finally:
            os.close(inner)
    return False
