"""Two directories that change places in one step: every process finds one of them, complete (renameat2(2))."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.directories.btrfs_subvolume import subvolume_number
from holdfast.files.linux import syscalls
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CANNOT = frozenset(
    (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EBUSY, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EROFS)
)
"""Errors for directories that can never be exchanged: other file systems, mount points, no permission."""


class DirectoryIdentity(NamedTuple):
    """The identity of a directory, independent of its name. Inode numbers are reused: the time of birth is not. All
    roots of subvolumes have the same inode number, and a snapshot has the time of birth of its source: these have
    subvolume numbers.
    """

    device: int
    inode: int
    born: int | None
    """Nanoseconds since 1970; None where the file system does not say. Of a subvolume of btrfs: its number."""


def directory_identity(path: bytes) -> DirectoryIdentity | None:
    """The identity of ``path``, not following a link; None if nothing is there. Raises `OSError`."""
    try:
        about = os.lstat(path)
        number = subvolume_number(path) if stat.S_ISDIR(about.st_mode) else None
        return DirectoryIdentity(about.st_dev, about.st_ino, syscalls.birth_time(path) if number is None else number)
    except FileNotFoundError:
        return None


def is_same_directory(one: DirectoryIdentity | None, other: DirectoryIdentity | None) -> bool:
    """Whether both are the same directory, or both None. Device numbers may change with each mount (on btrfs, where
    each subvolume has one, they depend on the order of access): they count only where no time of birth is known.
    """
    if one is None or other is None or one.born is None or other.born is None:
        return one == other
    return one[1:] == other[1:]


def exchange(one: bytes, other: bytes) -> None:
    """Exchange two directories, given by absolute paths: atomic, and durable when it returns.

    A link at the end of a path is not followed. Raises `OSError`; with an errno of `CANNOT` nothing has happened, and a
    retry is useless.
    """
    above = [os.open(os.path.dirname(path), _DIRECTORY) for path in (one, other)]
    try:
        syscalls.renameat2(above[0], os.path.basename(one), above[1], os.path.basename(other), syscalls.RENAME_EXCHANGE)
        for fd in above:
            os.fsync(fd)
    finally:
        for fd in above:
            os.close(fd)


def hindrance(root: bytes, mounted: Iterable[bytes], own_inside: Iterable[bytes]) -> str | None:
    """The reason why the directory ``root`` cannot be exchanged, as a clause; None if it probably can.

    ``mounted`` are all mount points, ``own_inside`` Holdfast's own directories in it, which must stay there.
    """
    inside = root.rstrip(b"/") + b"/"
    points = list(mounted)
    if root in points:
        return "it is a mount point"
    if any(point.startswith(inside) for point in points):
        return "something is mounted in it"
    if any(os.path.lexists(path) for path in own_inside):
        return "Holdfast keeps its undo log in it"
    parent = os.path.dirname(root)
    if not os.access(parent, os.W_OK | os.X_OK):
        return "nothing may be made in the directory that it is in"
    return None
