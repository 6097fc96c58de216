"""overlayfs: a directory in which everything of a lower one can be changed, while the changes lie in an upper one."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final, Literal

from holdfast.files.directories.removal_obstacles import refuse_others
from holdfast.model.errors import RefusedError, StorageError, UnsupportedError
from holdfast.model.paths import display

Attributes = Literal["trusted", "user"]
"""Where overlayfs stores its data about the upper layer: in extended attributes that only the administrator of the
machine can set, or (in a user namespace, which has no such administrator) in those of users.
"""

FILE_SYSTEM: Final = b"overlay"
_SOURCE: Final = b"holdfast"
_MNT_DETACH: Final = 2
_MOST_OPTIONS: Final = 4095
"""Bytes: mount(2) takes a page."""
_NEEDED: Final = (
    "a fork by mount needs root, overlayfs, and a home on ext4, XFS, Btrfs or tmpfs (not an overlay "
    "of a container); `holdfast fork` without --mount works anywhere"
)
_libc = ctypes.CDLL(None, use_errno=True)


def attributes_for(upper: bytes) -> Attributes:
    """Which attributes an overlay with this upper layer can have here. Raises `UnsupportedError` if none."""
    why = ""
    for kind in ("trusted", "user"):
        name = f"{kind}.holdfast.probe"
        try:
            os.setxattr(upper, name, b"")
            os.removexattr(upper, name)
        except OSError as error:
            why = error.strerror
            continue
        return kind
    raise UnsupportedError(
        f"{display(upper)} cannot be an upper layer: its file system has no extended attributes ({why})",
        hint=_NEEDED,
    )


def mount_overlay(
    lower: bytes,
    upper: bytes,
    work: bytes,
    directory: bytes,
    attributes: Attributes,
    *,
    index: bool = False,
    flags: int = 0,
) -> None:
    """Mount the content of ``lower`` on ``directory``, with the changes in ``upper``; all are real paths.

    The overlay stays usable if ``lower`` is unmounted. With the attributes ``user`` a directory of the lower layer
    cannot be renamed (EXDEV). With an ``index`` the lower layer must stay the same directory, and two mounts cannot
    share an upper layer (`RefusedError`, ``in_use``); unless the attributes are ``user``, hard links stay links to one
    file. ``flags`` are those of mount(2). Raises `UnsupportedError` where it is impossible.
    """
    # (xino: inode numbers stay the same when a file is copied up. Without an index only paths identify the lower file
    # system, so that it may be mounted anew.)
    kind = b"redirect_dir=on" if attributes == "trusted" else b"userxattr"
    layers = b"lowerdir=%b,upperdir=%b,workdir=%b" % tuple(map(_escaped, (lower, upper, work)))
    indexed = b"on" if index else b"off"
    options = layers + b",index=" + indexed + b",metacopy=off,xino=on," + kind
    if len(options) > _MOST_OPTIONS:
        raise UnsupportedError(f"{display(directory)} cannot be mounted on: the path of the home is too long")
    if _libc.mount(_SOURCE, directory, FILE_SYSTEM, flags, options):
        number = ctypes.get_errno()
        text = f"{display(directory)} cannot be mounted on by overlayfs: {os.strerror(number)}"
        if number == errno.EBUSY and index:
            raise RefusedError(
                f"the changes of {display(directory)} are mounted elsewhere already",
                hint="end the processes that use it there",
                code="in_use",
            )
        if number in (errno.EPERM, errno.EACCES, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP):
            raise UnsupportedError(text, hint=_NEEDED)
        raise StorageError(text)


def inode_of_lower(inode: int) -> int:
    """The inode number that a file of the lower layer, where it has the number ``inode``, has in an overlay.

    The highest bit tells that it is not of the upper layer's file system.
    """
    return inode | 1 << 63


def refuse_without_privilege() -> None:
    """Raise `UnsupportedError` unless this user might mount an overlay."""
    if os.geteuid():
        raise UnsupportedError(
            "a fork by mount needs root, or a namespace of its own in which you are root",
            hint="`unshare --user --map-root-user --mount` starts a shell in one; "
            "`holdfast fork` without --mount works anywhere",
        )


def unmount_overlay(directory: bytes) -> None:
    """Unmount the mount on ``directory``. Raises `RefusedError` while a process uses it."""
    if _libc.umount2(directory, 0):
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            raise RefusedError(
                f"{display(directory)} is in use: a process has files open in it, or its working directory",
                hint=f"`fuser -vm {display(directory)}` names them; end them, or have them go elsewhere",
                code="in_use",
            )
        raise StorageError(f"{display(directory)} cannot be unmounted: {os.strerror(number)}")


def detach_overlays(directory: bytes) -> None:
    """Remove our own mounts on ``directory``: at once for its path, later for processes that use them. Harmless if
    there are none. Raises `RefusedError` (``mounted_over``), and removes nothing, if there are others.
    """
    refuse_others(directory)
    while not _libc.umount2(directory, _MNT_DETACH):
        refuse_others(directory)  # a process may have mounted just now


def detach_all(directory: bytes) -> None:
    """Take away all that is mounted on ``directory``, by any process: at once for its path, later for its users."""
    while not _libc.umount2(directory, _MNT_DETACH):
        pass


def _escaped(path: bytes) -> bytes:
    for special in (b"\\", b",", b":"):
        path = path.replace(special, b"\\" + special)
    return path
