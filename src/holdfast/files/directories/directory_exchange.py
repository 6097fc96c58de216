"""Two directories that change places in one step: no process ever finds neither, or half of one (renameat2(2))."""

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
"""What is said where two directories can never be exchanged: other file systems, mount points, no permission."""


class DirectoryIdentity(NamedTuple):
    """A directory, by what it is and not by its name. Inode numbers are used anew: the time of birth is not. All roots
    of subvolumes have one inode number, and a snapshot is born when its source was: they have numbers of their own.
    """

    device: int
    inode: int
    born: int | None
    """Nanoseconds since 1970; None where the file system does not say. Of a subvolume of btrfs: its number."""


def directory_identity(path: bytes) -> DirectoryIdentity | None:
    """What is at ``path``, a link itself; None if there is nothing. Raises `OSError`."""
    try:
        about = os.lstat(path)
        number = subvolume_number(path) if stat.S_ISDIR(about.st_mode) else None
        return DirectoryIdentity(about.st_dev, about.st_ino, syscalls.birth_time(path) if number is None else number)
    except FileNotFoundError:
        return None


def is_same_directory(one: DirectoryIdentity | None, other: DirectoryIdentity | None) -> bool:
    """Whether both are one directory, or both nothing. Devices may have other numbers after each mount (on btrfs, where
    each subvolume has one, it depends on which is looked at first): they count only where no time of birth is known.
    """
    if one is None or other is None or one.born is None or other.born is None:
        return one == other
    return one[1:] == other[1:]


def exchange(one: bytes, other: bytes) -> None:
    """Let two directories, absolute paths, change places: atomic, and durable when it returns.

    Neither name is resolved through a link at its end. Raises `OSError`; with an errno of `CANNOT` nothing has happened
    and never will.
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
    """Why the directory ``root`` cannot be exchanged for another one: a clause; None if it probably can.

    ``mounted`` are all mount points, ``own_inside`` what of Holdfast's lies in it and must stay what it is.
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
