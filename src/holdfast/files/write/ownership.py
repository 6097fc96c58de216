"""Who owns the files and directories that Holdfast creates in a workspace."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from holdfast.files.linux import syscalls
from holdfast.model.fast_namedtuple import NamedTuple


class Owner(NamedTuple):
    """The user and group that a created file or directory is given to."""

    uid: int
    gid: int

    def take_fd(self, fd: int, info: os.stat_result) -> bool:
        """Give the open file ``fd``, whose `os.fstat` is ``info``, to this owner; True if that changed anything.

        Raises `OSError` if the kernel refuses, so that nothing is left to root by accident.
        """
        if (info.st_uid, info.st_gid) == self:
            return False
        os.fchown(fd, self.uid, self.gid)
        return True

    def take_link(self, dir_fd: int, name: bytes, target: bytes) -> None:
        """Give the symbolic link ``name`` itself, which this process has just made, to this owner.

        The owner of the directory may have put another object under that name meanwhile. So the name is opened once,
        and the opened object is given away if it is our own link to ``target``; otherwise `PermissionError`.
        """
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            info = os.fstat(fd)
            if (info.st_uid, info.st_gid) == self:
                return
            ours = stat.S_ISLNK(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.geteuid()
            if not ours or os.readlink(b"", dir_fd=fd) != target:
                raise PermissionError(errno.EPERM, "another process has put another file in its place")
            syscalls.chown_opened(fd, self.uid, self.gid)
        finally:
            os.close(fd)

    def take_directory(self, fd: int) -> None:
        """Give the open directory ``fd``, which this process has just made, to this owner.

        Raises `PermissionError` if it is another directory: not empty, or not our own.
        """
        info = os.fstat(fd)
        if (info.st_uid, info.st_gid) == self:
            return
        if info.st_uid != os.geteuid() or os.listdir(fd):
            raise PermissionError(errno.EPERM, "another process has put another directory in its place")
        os.fchown(fd, self.uid, self.gid)


def give_fd(fd: int, info: os.stat_result, owner: Owner | None, kept: Owner | None) -> bool:
    """Give the open file ``fd``, whose `os.fstat` is ``info``, to ``kept``, the owner of the file it replaces; where
    the system refuses that, only to the group, or to ``owner``. True if that changed anything; the caller compares.
    """
    if kept is not None:
        for one in (kept, Owner(info.st_uid, kept.gid)) if owner is None else (kept,):
            with suppress(OSError):
                return one.take_fd(fd, info)
    return owner is not None and owner.take_fd(fd, info)


def give_link(dir_fd: int, name: bytes, target: bytes, owner: Owner | None, kept: Owner | None) -> None:
    """The same of a symbolic link that this process has just made. Raises as `Owner.take_link` for ``owner``."""
    if kept is not None:
        with suppress(OSError):
            kept.take_link(dir_fd, name, target)
            return
    if owner is not None:
        owner.take_link(dir_fd, name, target)


def owner_for(
    root_fd: int, *, uid: int | None = None, gid: int | None = None, privileged: bool | None = None
) -> Owner | None:
    """The owner for files created below the workspace's root directory ``root_fd``.

    It is the configured ``uid`` and ``gid``, each replaced by that of the root directory if None. None when this
    process is not privileged: then the kernel gives its files to its own user, and does not let it give them away.
    ``privileged`` is for tests; by default the kernel is asked.
    """
    if not (os.geteuid() == 0 if privileged is None else privileged):
        return None
    info = os.fstat(root_fd)
    return Owner(info.st_uid if uid is None else uid, info.st_gid if gid is None else gid)


def inherited_mode(above: os.stat_result) -> int:
    """The permissions for a directory that is made in the directory ``above``, where no others are known. No user may
    do more in it than in that; below a sticky one, where all users may make files, only its owner may.
    """
    return 0o700 | stat.S_IMODE(above.st_mode) & (0o755 if above.st_mode & stat.S_ISVTX else 0o777)


def make_directories(path: bytes, *, uid: int | None = None, gid: int | None = None) -> None:
    """Make the directory ``path`` and the missing directories above it; existing ones stay unchanged.

    Each belongs to ``uid`` and ``gid``, by default to the owner of the directory above it: never by accident to root.
    Its permissions are `inherited_mode`, reduced by the umask. Raises `OSError`.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directories(above)
    os.mkdir(path, inherited_mode(os.stat(above)))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        above_fd = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            owner = owner_for(above_fd, uid=uid, gid=gid)
        finally:
            os.close(above_fd)
        if owner is not None:
            owner.take_directory(fd)
    finally:
        os.close(fd)
