"""The metadata of an object: mode bits, owner, mtime, extended attributes.

Access control lists are extended attributes. Access time and change time are neither saved nor restored.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, TypeAlias

from holdfast.model.fast_namedtuple import NamedTuple

Xattrs: TypeAlias = tuple[tuple[str, bytes], ...]
"""Extended attributes: names with values, sorted by name."""

UNREAD: Final[Xattrs] = (("", b""),)
"""Stands for attributes that the mode bits forbid even the owner to read: they are left unchanged."""

_ABSENT = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EOPNOTSUPP})
_FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 64) - 1
DERIVED = frozenset({"security.selinux", "security.ima", "security.evm"})
"""Set by the kernel's own policy; to write them back is not ours."""


class Metadata(NamedTuple):
    """The metadata of one object."""

    mode: int
    """The 12 bits of `stat.S_IMODE`."""
    uid: int
    gid: int
    mtime: int
    """As `mtime_of` tells it."""
    xattrs: Xattrs = ()


def mtime_of(found: os.stat_result) -> int:
    """The mtime in nanoseconds since 1970-01-01 UTC. A time before 1677 or after 2554, as some file systems have, is
    clamped to the first or last one that fits in the 64 bits of records.
    """
    return max(_FIRST_TIME, min(found.st_mtime_ns, _LAST_TIME))


def read_metadata(fd: int, found: os.stat_result | None = None, *, readable: bool = False) -> Metadata:
    """The metadata of the object that ``fd`` refers to (``O_PATH`` is enough, also of a link itself).

    ``found`` saves the call if the caller has just made it; ``readable`` says that ``fd`` is open for reading, which
    is cheaper. Raises `OSError`.
    """
    found = found or os.fstat(fd)
    return Metadata(
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        mtime_of(found),
        read_xattrs(fd, readable=readable),
    )


def read_xattrs(fd: int, *, readable: bool = False) -> Xattrs:
    """The extended attributes of the object that ``fd`` refers to, sorted. Raises `OSError`."""
    return _read_xattrs(fd if readable else proc_path(fd))


def read_xattrs_at(dir_fd: int, name: bytes) -> Xattrs:
    """The same for a name in a directory, without opening it or following a link. Raises `OSError`."""
    return _read_xattrs(os.fsencode(proc_path(dir_fd)) + b"/" + name, follow_symlinks=False)


def _read_xattrs(path: int | str | bytes, *, follow_symlinks: bool = True) -> Xattrs:
    try:
        names = os.listxattr(path, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno in _ABSENT:
            return ()
        raise
    found: list[tuple[str, bytes]] = []
    for name in sorted(names):
        if name in DERIVED:
            continue
        try:
            found.append((name, os.getxattr(path, name, follow_symlinks=follow_symlinks)))
        except OSError as error:
            if error.errno == errno.EINVAL:
                # (A ``security.capability`` without a value can be set and removed, but not read.)
                found.append((name, b""))
            elif error.errno not in _ABSENT:  # (otherwise this one was just removed)
                raise
    return tuple(found)


def apply_metadata(fd: int, wanted: Metadata) -> None:
    """Give the object that ``fd`` refers to the metadata ``wanted``; only what differs is set, the mtime last.

    Raises `OSError` for the first thing that the system refuses; a second call continues.
    """
    found = os.fstat(fd)
    path = proc_path(fd)
    if (found.st_uid, found.st_gid) != (wanted.uid, wanted.gid):
        os.chown(path, wanted.uid, wanted.gid)
        found = os.fstat(fd)  # a change of owner takes the set-id bits away
    if wanted.xattrs != UNREAD:
        _apply_xattrs(path, dict(read_xattrs(fd)), dict(wanted.xattrs))
    if not stat.S_ISLNK(found.st_mode):
        found = os.fstat(fd)  # an access control list changes the mode
        if stat.S_IMODE(found.st_mode) != wanted.mode:
            os.chmod(path, wanted.mode)
    if mtime_of(found) != wanted.mtime:
        os.utime(path, ns=(found.st_atime_ns, wanted.mtime))


def _apply_xattrs(path: str, have: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    for name in have.keys() - wanted.keys():
        os.removexattr(path, name)
    for name, value in wanted.items():
        if have.get(name) != value:
            os.setxattr(path, name, value)


def proc_path(fd: int) -> str:
    """A path to the very object that ``fd`` refers to, for calls that take no ``O_PATH`` descriptor."""
    return f"/proc/self/fd/{fd}"
