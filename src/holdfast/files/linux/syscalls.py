"""The few Linux system calls that Python does not offer: ``openat2``, ``renameat2``, ``statx``, ``syncfs``,
``sync_file_range``, ``fstatfs``, ``faccessat`` with its error, and ``fchownat`` on a descriptor of a link.

Each raises `OSError` as the functions of `os` do; a kernel or C library without the call raises it with ENOSYS.
Sources: the Linux manual pages of the same names, section 2.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2

_SYS_OPENAT2 = 437  # one number on every architecture
_SYS_RENAMEAT2 = {
    "x86_64": 316,
    "aarch64": 276,
    "riscv64": 276,
    "armv7l": 382,
    "i686": 353,
    "ppc64le": 357,
    "s390x": 347,
}
_SYNC_FILE_RANGE_WRITE = 2

_STATFS_BYTES = 256

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EACCESS = 0x200
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_STATX_BTIME_AT = 80
_STATX_MNT_ID, _STATX_MNT_ID_AT = 0x1000, 144
_STATX_ATTRIBUTES_AT = 8
_STATX_ATTR_IMMUTABLE, _STATX_ATTR_APPEND = 0x10, 0x20

_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve
_OPEN_HOW_BYTES = _OPEN_HOW.size

_FALLOC_FL_KEEP_SIZE = 1
WRITES_ELSEWHERE = frozenset((0x9123683E, 0x2FC12FC1, 0xCA451A4E))
"""File systems (btrfs, ZFS, bcachefs) on which even overwriting takes new space, by the types of `file_system`."""

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_renameat2 = getattr(_libc, "renameat2", None)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    """Open ``path`` relative to ``dir_fd`` under the given ``RESOLVE_*`` rules; the descriptor is close-on-exec."""
    fd = _syscall(_SYS_OPENAT2, dir_fd, path, _OPEN_HOW.pack(flags | os.O_CLOEXEC, 0, resolve), _OPEN_HOW_BYTES)
    return fd if fd >= 0 else _check(fd)


def renameat2(src_fd: int, src: bytes, dst_fd: int, dst: bytes, flags: int) -> None:
    """Rename with `RENAME_NOREPLACE` or `RENAME_EXCHANGE`; EINVAL where the file system lacks the flag."""
    if _renameat2 is not None:
        if _renameat2(src_fd, src, dst_fd, dst, flags):
            _check(-1)
    elif number := _SYS_RENAMEAT2.get(os.uname().machine):
        _check(_libc.syscall(number, src_fd, src, dst_fd, dst, flags))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def check_changeable(dir_fd: int) -> None:
    """Raise the system's error if this thread may neither make nor remove names in the directory."""
    _check(_libc.faccessat(dir_fd, b".", os.W_OK | os.X_OK, _AT_EACCESS))


def birth_time(path: bytes) -> int | None:
    """When the file ``path`` was made, in nanoseconds since 1970; None where the file system or the system cannot
    tell.
    """
    return _birth_time(_AT_FDCWD, path, 0)


def birth_time_at(dir_fd: int, name: bytes) -> int | None:
    """As `birth_time`, of ``name`` in a directory (a link is not followed), or of ``dir_fd`` itself if it is empty."""
    return _birth_time(dir_fd, name, _AT_SYMLINK_NOFOLLOW | (0 if name else _AT_EMPTY_PATH))


def _birth_time(dir_fd: int, path: bytes, flags: int) -> int | None:
    if not _has_statx:
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    _check(_libc.statx(dir_fd, path, flags, _STATX_BTIME, found))
    (mask,) = struct.unpack_from("=I", found.raw)
    if not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", found.raw, _STATX_BTIME_AT)
    return seconds * 1_000_000_000 + nanoseconds


def mount_id(fd: int) -> int | None:
    """The kernel's id of the mount by which ``fd`` was opened; None where that is unknown (Linux 5.8)."""
    if not _has_statx:
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    _check(_libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID, found))
    (mask,) = struct.unpack_from("=I", found.raw)
    (number,) = struct.unpack_from("=Q", found.raw, _STATX_MNT_ID_AT)
    return number if mask & _STATX_MNT_ID else None


def only_grows(fd: int) -> bool:
    """True if the open directory takes new entries and gives none away again: chattr(1) ``+a``."""
    return bool(_attributes(fd, b"", _AT_EMPTY_PATH) & _STATX_ATTR_APPEND)


def protection(path: bytes, dir_fd: int = _AT_FDCWD) -> str:
    """The attributes of chattr(1) that prevent the removal of ``path``, not following a link: ``i``, ``a``, both or
    none. Raises `OSError`.
    """
    found = _attributes(dir_fd, path, _AT_SYMLINK_NOFOLLOW)
    return "i" * bool(found & _STATX_ATTR_IMMUTABLE) + "a" * bool(found & _STATX_ATTR_APPEND)


def _attributes(dir_fd: int, path: bytes, flags: int) -> int:
    if not _has_statx:
        return 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    _check(_libc.statx(dir_fd, path, flags, 0, found))
    (attributes,) = struct.unpack_from("=Q", found.raw, _STATX_ATTRIBUTES_AT)
    return attributes


def chown_opened(fd: int, uid: int, gid: int) -> None:
    """Change the owner of the object of an ``O_PATH`` descriptor, even a link: no name is looked up."""
    _check(_libc.fchownat(fd, b"", uid, gid, _AT_EMPTY_PATH))


def syncfs(fd: int) -> None:
    """Make all that was written to the file system that holds ``fd`` durable; reports write errors (Linux 5.8)."""
    if _has_syncfs:
        _check(_libc.syncfs(fd))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def file_system(fd: int) -> int:
    """The kind of the file system that holds ``fd``: its magic number, the low 32 bits."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    _check(_libc.fstatfs(fd, found))
    return ctypes.c_uint32.from_buffer(found).value


def reserve(fd: int, size: int) -> None:
    """Give the open file all the room that its first ``size`` bytes take, and leave its size as it is: fallocate(2).
    Nothing where the file system cannot. Raises `OSError`: ENOSPC or EDQUOT if there is not as much.
    """
    try:
        _check(_libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def start_writeback(fd: int) -> None:
    """Make the kernel begin to write the file's data, without waiting: a hint, without errors."""
    if _has_sync_file_range:
        _libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


_has_statx = hasattr(_libc, "statx")
_has_syncfs = hasattr(_libc, "syncfs")
_has_sync_file_range = hasattr(_libc, "sync_file_range")
