"""The Linux system calls of watching that Python does not offer: fanotify, inotify, file handles, timers.

Each raises `OSError` as the functions of `os` do. Sources: the manual pages fanotify_init(2), fanotify_mark(2),
fanotify(7), inotify(7), open_by_handle_at(2), timerfd_create(2), and the kernel's ``include/uapi/linux/fanotify.h``.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


READ_BYTES = 1 << 18
"""How much of a queue of events is read at once."""
FULL_READ = READ_BYTES - 4096
"""A shorter read has emptied the queue: events come whole, as many as fit, and the longest is shorter than 4 KiB.
Reading until nothing is left would not end while a process makes an event for each read.
"""

_libc = ctypes.CDLL(None, use_errno=True)
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_CLOCK_MONOTONIC = 1


class _Interval(ctypes.Structure):
    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _call(name: str, *types: object) -> Callable[..., int]:
    """The C library's function ``name`` with its argument types; AttributeError is what a library without it raises."""
    function: Any = getattr(_libc, name)
    function.argtypes = types
    function.restype = ctypes.c_int
    return function


def fanotify_init(flags: int, event_flags: int) -> int:
    """A new notification group. EPERM without CAP_SYS_ADMIN, EINVAL for flags unknown to the kernel."""
    return _check(_call("fanotify_init", ctypes.c_uint, ctypes.c_uint)(flags, event_flags))


def fanotify_mark(fd: int, flags: int, mask: int, dir_fd: int, path: bytes | None) -> None:
    """Add, change or remove a mark; ``path`` None means ``dir_fd`` itself."""
    function = _call("fanotify_mark", ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)
    _check(function(fd, flags, mask, dir_fd, path))


def open_by_handle(mount_fd: int, handle: bytes) -> int:
    """An ``O_PATH`` descriptor of what ``handle`` (a whole ``struct file_handle``) means; ESTALE if it is gone."""
    return _check(_open_by_handle_at(mount_fd, handle, os.O_PATH | os.O_CLOEXEC))


def file_handle(fd: int) -> bytes:
    """The whole ``struct file_handle`` of the object of ``fd``; EOPNOTSUPP where the file system has none."""
    size = 128
    handle = ctypes.create_string_buffer(8 + size)
    ctypes.memmove(handle, size.to_bytes(4, "little" if _LITTLE else "big"), 4)
    mount = ctypes.c_int()
    function = _call("name_to_handle_at", ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    _check(function(fd, b"", handle, ctypes.byref(mount), _AT_EMPTY_PATH))
    used = int.from_bytes(handle.raw[:4], "little" if _LITTLE else "big")
    return handle.raw[: 8 + used]


def filesystem_id(fd: int) -> bytes:
    """The 8 bytes of ``f_fsid`` of the file system that ``fd`` is on, as fanotify's events carry them."""
    buffer = ctypes.create_string_buffer(256)
    _check(_call("fstatfs", ctypes.c_int, ctypes.c_void_p)(fd, buffer))
    word = ctypes.sizeof(ctypes.c_long)
    offset = 7 * word  # f_type, f_bsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree come before it
    return buffer.raw[offset : offset + 8]


def inotify_init() -> int:
    """A new inotify instance, not blocking. EMFILE at the limit of ``fs.inotify.max_user_instances``."""
    return _check(_call("inotify_init1", ctypes.c_int)(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(fd: int, path: bytes, mask: int) -> int:
    """Watch ``path``; the same inode gives the same descriptor. ENOSPC at ``fs.inotify.max_user_watches``."""
    return _check(_inotify_add_watch(fd, path, mask))


def inotify_rm_watch(fd: int, wd: int) -> None:
    """End a watch; EINVAL if it has ended already."""
    _check(_inotify_rm_watch(fd, wd))


def timer(interval: float) -> int:
    """A descriptor that becomes readable every ``interval`` seconds (more than 0), not blocking."""
    fd = _check(_call("timerfd_create", ctypes.c_int, ctypes.c_int)(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
    seconds = int(interval)
    parts = (ctypes.c_long * 2)(seconds, max(int((interval - seconds) * 1e9), 0 if seconds else 1))
    spec = _Interval(parts, parts)
    try:
        _check(
            _call("timerfd_settime", ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
                fd, 0, ctypes.byref(spec), None
            )
        )
    except OSError:
        os.close(fd)
        raise
    return fd


_AT_EMPTY_PATH = 0x1000
_LITTLE = (1).to_bytes(2, "little") == bytes(ctypes.c_uint16(1))
_open_by_handle_at = _call("open_by_handle_at", ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
_inotify_add_watch = _call("inotify_add_watch", ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
_inotify_rm_watch = _call("inotify_rm_watch", ctypes.c_int, ctypes.c_int)


def why(choice: str, error: Exception) -> str:
    """Why a means cannot be had, and what would help, in one sentence."""
    import errno

    if not isinstance(error, OSError):
        return str(error)
    match choice, error.errno:
        case "fanotify", errno.EPERM:
            return "it needs the capabilities CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH"
        case "fanotify", errno.EINVAL | errno.ENOSYS:
            return "this kernel is too old (5.17 is needed)"
        case "fanotify", errno.ENODEV | errno.EXDEV | errno.EOPNOTSUPP:
            return "this file system cannot report names"
        case "inotify", errno.ENOSPC:
            return (
                "the tree has more directories than fs.inotify.max_user_watches allows"
                " (`sysctl fs.inotify.max_user_watches=1048576` raises it)"
            )
        case "inotify", errno.EMFILE:
            return (
                "there are as many instances as fs.inotify.max_user_instances allows"
                " (`sysctl fs.inotify.max_user_instances=1024` raises it)"
            )
        case _:
            return error.strerror or str(error)
