"""Records the status of every file of a tree, including ignored ones, to find out later which of them were changed.

Unlike a scan this uses no ignore rules and reads no content: a write changes the time of change, a replacement the
inode. The root's own entry is left out, so that a tree may be renamed in between.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, TypeAlias

from holdfast.files.linux import syscalls
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from holdfast.files.protected_directories import ProtectedDirectories

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RULES = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


class FileStamp(NamedTuple):
    """The stamp of one entry, not following a link; of a directory, whose times vary, only mode and owner."""

    mode: int
    uid: int
    gid: int
    inode: int
    size: int
    mtime: int
    ctime: int

    @property
    def is_directory(self) -> bool:
        """Whether it is one."""
        return stat.S_ISDIR(self.mode)


Stamps: TypeAlias = dict[bytes, FileStamp]
"""By path from the root."""


def stamps(root: bytes, *, without: ProtectedDirectories) -> Stamps:
    """Take the stamps of all entries below ``root``, except the directories ``without``. Entries that vanish meanwhile
    are left out. Raises `OSError`.
    """
    found: Stamps = {}
    waiting = [b""]
    top = os.open(root, _DIRECTORY)
    try:
        while waiting:
            at = waiting.pop()
            try:
                fd = syscalls.openat2(top, at or b".", _DIRECTORY, _RULES)
            except OSError as error:
                if not at or error.errno not in _GONE:
                    raise OSError(error.errno, error.strerror, at) from error
                del found[at]
                continue
            try:
                if at and without.is_one(os.fstat(fd)):
                    del found[at]
                    continue
                for name in map(os.fsencode, os.listdir(fd)):
                    path = at + b"/" + name if at else name
                    try:
                        about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISSOCK(about.st_mode):
                        continue
                    if stat.S_ISDIR(about.st_mode):
                        found[path] = FileStamp(about.st_mode, about.st_uid, about.st_gid, about.st_ino, 0, 0, 0)
                        waiting.append(path)
                    else:
                        found[path] = stamp_of(about)
            finally:
                os.close(fd)
    finally:
        os.close(top)
    return found


def stamp_of(about: os.stat_result) -> FileStamp:
    """The stamp of anything but a directory."""
    return FileStamp(
        about.st_mode,
        about.st_uid,
        about.st_gid,
        about.st_ino,
        about.st_size,
        about.st_mtime_ns,
        about.st_ctime_ns,
    )


def changed_paths(before: Stamps, after: Stamps) -> list[bytes]:
    """The paths of changed, new and removed entries, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
