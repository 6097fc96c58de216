"""``/dev/fuse``: getting a file system mounted on a directory, and gone again.

As root by mount(2); for other users by `holdfast.bridge.mount._fusermount`.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final

from holdfast.bridge.mount._fusermount import MOUNTING_NEEDS
from holdfast.files.directories.removal_obstacles import type_mounted_at
from holdfast.model.errors import RefusedError, StorageError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.paths import display

_LOG = Log(__name__)
DEVICE: Final = "/dev/fuse"
FILE_SYSTEM: Final = b"fuse.holdfast"
"""As the table of mounts calls it."""
_SOURCE: Final = b"holdfast"
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
READ_ONLY: Final = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV
_OPTIONS: Final = {os.ST_RDONLY: b"ro", os.ST_NOSUID: b"nosuid", os.ST_NODEV: b"nodev", os.ST_NOEXEC: b"noexec"}


class FuseDevice:
    """A mounted device. Its server reads requests from `descriptor` and writes replies to it."""

    def __init__(self, descriptor: int, directory: bytes, *, helped: bool) -> None:
        self.descriptor = descriptor
        self.directory = directory
        self._helped = helped

    def unmount(self) -> None:
        """Remove the mount, at once for its path; harmless if it is gone. Logs failures.

        Files that are open in it stay usable while the device is served.
        """
        try:
            detach(self.directory, helped=self._helped)
        except OSError as error:
            _LOG.error("%s cannot be unmounted: %s", display(self.directory), error.strerror)

    def close(self) -> None:
        """Give the device up: processes that still use the file system get an error (ENOTCONN, ECONNABORTED)."""
        os.close(self.descriptor)


def mount(directory: bytes, *, allow_other: bool = False, flags: int = READ_ONLY) -> FuseDevice:
    """Mount a file system on ``directory``, a real path, without serving it yet.

    ``flags`` are ``ST_RDONLY``, ``ST_NOSUID``, ``ST_NODEV`` and ``ST_NOEXEC`` of `os`. Only the user who mounts it can
    use it, unless ``allow_other``; the kernel checks permissions by the modes and owners that it is told. Raises
    `UnsupportedError` where mounting is impossible, with the remedy.
    """
    if os.geteuid() == 0:
        with suppress(PermissionError):
            return FuseDevice(mount_directly(directory, allow_other=allow_other, flags=flags), directory, helped=False)
    from holdfast.bridge.mount import _fusermount

    chosen = [name for flag, name in _OPTIONS.items() if flags & flag]
    options = [*chosen, b"fsname=" + _SOURCE, b"subtype=holdfast", _options(allow_other=allow_other)]
    return FuseDevice(_fusermount.mount(directory, options), directory, helped=True)


def _options(*, allow_other: bool) -> bytes:
    return b"default_permissions" + (b",allow_other" if allow_other else b"")


def mount_directly(directory: bytes, *, allow_other: bool, flags: int) -> int:
    """`mount` by mount(2), as root or in a user namespace of one's own; returns the device.

    Raises `PermissionError` where this process may not mount, `UnsupportedError`, `StorageError`.
    """
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UnsupportedError(f"{DEVICE} cannot be opened: {error.strerror}", hint=MOUNTING_NEEDS) from error
    try:
        options = _options(allow_other=allow_other)
        told = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d,%b" % (descriptor, os.getuid(), os.getgid(), options)
        if _libc.mount(_SOURCE, directory, FILE_SYSTEM, flags, told):
            number = ctypes.get_errno()
            if number in (errno.EPERM, errno.EACCES):
                raise PermissionError(number, os.strerror(number))
            if number == errno.ENODEV:
                raise UnsupportedError("this kernel has no FUSE", hint="load its module: modprobe fuse")
            raise StorageError(f"{display(directory)} cannot be mounted on: {os.strerror(number)}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def detach(directory: bytes, *, helped: bool) -> None:
    """Unmount ``directory``, lazily. Nothing if it is no mount of ours. Raises `OSError`."""
    if not is_mounted(directory):
        return
    if not helped and os.geteuid() == 0:
        if _libc.umount2(directory, _MNT_DETACH):
            number = ctypes.get_errno()
            if number != errno.EINVAL:  # it was unmounted just before
                raise OSError(number, os.strerror(number))
        return
    from holdfast.bridge.mount import _fusermount

    why = _fusermount.unmount(directory, lazily=True)
    if why and is_mounted(directory):
        raise OSError(errno.EBUSY, why)


def unmount(directory: bytes) -> None:
    """Unmount ``directory``, on which a file system of ours is mounted. Raises `RefusedError` while it is in use."""
    if os.geteuid() == 0:
        number = ctypes.get_errno() if _libc.umount2(directory, 0) else 0
        why = os.strerror(number) if number else ""
    else:
        from holdfast.bridge.mount import _fusermount

        why = _fusermount.unmount(directory)
    if why:
        raise RefusedError(
            f"{display(directory)} cannot be unmounted: {why}",
            hint=f"`fuser -vm {display(directory)}` names who uses it",
            code="in_use",
        )


def is_mounted(directory: bytes) -> bool:
    """True if the last mount on ``directory`` is a file system of ours."""
    return type_mounted_at(directory) == FILE_SYSTEM


def clear_dead(directory: bytes) -> bool:
    """Detach a mount of ours that is served no more, as after its server was killed; True if there was one.

    Raises `RefusedError` if it is another program's that is dead.
    """
    try:
        # (The kernel may answer stat(2) of the root from its cache.)
        os.statvfs(directory)
        return False
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
            return False
    try:
        detach(directory, helped=os.geteuid() != 0)
        os.statvfs(directory)
    except OSError as error:
        raise RefusedError(
            f"{display(directory)} is a mount that no process serves any more",
            hint=f"unmount it: umount -l {display(directory)}",
        ) from error
    return True
