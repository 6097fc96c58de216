"""Calls that change what an object is like: mode, owner, times, size."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

from holdfast.files.linux.metadata import proc_path
from holdfast.files.linux.unreadable_file import takes_long
from holdfast.supervisor.operations._blocking_open import LEASED, reopen_in_time
from holdfast.supervisor.operations._caller_limits import check_size
from holdfast.supervisor.operations.registers import check_flags, integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver, ResolvedObject
from holdfast.supervisor.syscalls.caller_memory import read, read_path
from holdfast.supervisor.syscalls.pending_call import Reply, SlowError
from holdfast.undo.safeguards.guard import Risk

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000

_SYS_FCHMODAT2 = 452
_SLOW_BYTES = 1 << 20
_UTIME_OMIT = (1 << 30) - 2
_SECONDS = struct.Struct("=qq")
_TIMES = struct.Struct("=qqqq")

_libc = ctypes.CDLL(None, use_errno=True)


class ObjectArgument(NamedTuple):
    """The object that a call names."""

    dirfd: int
    path: bytes | None
    """None: the descriptor itself."""
    follow: bool = True
    empty: bool = False
    """An empty path means the descriptor, which may be an ``O_PATH`` one."""

    def find(self, resolver: PathResolver) -> ResolvedObject:
        """The object. Raises `OSError`."""
        if self.path is None:
            return resolver.descriptor(self.dirfd, usable=True)
        if self.path or not self.empty:
            return resolver.object(self.dirfd, self.path, follow=self.follow)
        if self.dirfd == AT_FDCWD:
            return resolver.check_reachable(resolver.start(AT_FDCWD))
        return resolver.descriptor(self.dirfd)


def object_argument(call: PendingCall, dirfd: int, address: int, flags: int = 0) -> ObjectArgument:
    """The object that a path names, by the flags of a newer call."""
    check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)
    path = read_path(call, address)
    return ObjectArgument(dirfd, path, follow=not flags & AT_SYMLINK_NOFOLLOW, empty=bool(flags & AT_EMPTY_PATH))


def change(call: PendingCall, context: HandlerContext, target: ObjectArgument, perform: Callable[[int], None]) -> Reply:
    """Let ``perform`` change the metadata of what the target names, which it is given as a descriptor."""
    with PathResolver(call, context) as resolver:
        opened = target.find(resolver)
        resolver.check_writable(opened)
        if opened.path is not None:
            context.interceptor.before_metadata_change(context.step(call), opened.place, opened.fd)
        with resolver.caller_credentials():
            resolver.check_waiting()
            perform(opened.fd)
        return Reply()


def check(result: int) -> None:
    """Raise what a function of the C library has left in ``errno`` if it has failed."""
    if result < 0:
        raise os_error(ctypes.get_errno())


# Mode -------------------------------------------------------------------------------------------------------------


def _chmod(call: PendingCall, context: HandlerContext, target: ObjectArgument, mode: int) -> Reply:
    mode &= 0o7777

    def perform(fd: int) -> None:
        if _libc.syscall(_SYS_FCHMODAT2, fd, b"", ctypes.c_uint(mode), AT_EMPTY_PATH) < 0:
            number = ctypes.get_errno()
            if number != errno.ENOSYS:
                raise os_error(number)
            os.chmod(proc_path(fd), mode)

    return change(call, context, target, perform)


def chmod(call: PendingCall, context: HandlerContext) -> Reply:
    """``chmod``."""
    return _chmod(call, context, object_argument(call, AT_FDCWD, call.args[0]), unsigned(call.args[1]))


def fchmod(call: PendingCall, context: HandlerContext) -> Reply:
    """``fchmod``."""
    return _chmod(call, context, ObjectArgument(integer(call.args[0]), None), unsigned(call.args[1]))


def fchmodat(call: PendingCall, context: HandlerContext) -> Reply:
    """``fchmodat``, which has no flags."""
    return _chmod(call, context, object_argument(call, integer(call.args[0]), call.args[1]), unsigned(call.args[2]))


def fchmodat2(call: PendingCall, context: HandlerContext) -> Reply:
    """``fchmodat2``."""
    target = object_argument(call, integer(call.args[0]), call.args[1], integer(call.args[3]))
    return _chmod(call, context, target, unsigned(call.args[2]))


# Owner ------------------------------------------------------------------------------------------------------------


def _chown(call: PendingCall, context: HandlerContext, target: ObjectArgument, uid: int, gid: int) -> Reply:
    owner, group = ctypes.c_uint(uid), ctypes.c_uint(gid)
    return change(call, context, target, lambda fd: check(_libc.fchownat(fd, b"", owner, group, AT_EMPTY_PATH)))


def chown(call: PendingCall, context: HandlerContext) -> Reply:
    """``chown``."""
    return _chown(call, context, object_argument(call, AT_FDCWD, call.args[0]), call.args[1], call.args[2])


def lchown(call: PendingCall, context: HandlerContext) -> Reply:
    """``lchown``."""
    target = object_argument(call, AT_FDCWD, call.args[0], AT_SYMLINK_NOFOLLOW)
    return _chown(call, context, target, call.args[1], call.args[2])


def fchown(call: PendingCall, context: HandlerContext) -> Reply:
    """``fchown``."""
    return _chown(call, context, ObjectArgument(integer(call.args[0]), None), call.args[1], call.args[2])


def fchownat(call: PendingCall, context: HandlerContext) -> Reply:
    """``fchownat``."""
    target = object_argument(call, integer(call.args[0]), call.args[1], integer(call.args[4]))
    return _chown(call, context, target, call.args[2], call.args[3])


# Times ------------------------------------------------------------------------------------------------------------


def _utime(call: PendingCall, context: HandlerContext, target: ObjectArgument, times: bytes | None) -> Reply:
    return change(call, context, target, lambda fd: check(_libc.utimensat(fd, b"", times, AT_EMPTY_PATH)))


def _microseconds(call: PendingCall, address: int) -> bytes | None:
    """Two ``timeval`` as two ``timespec``."""
    if not address:
        return None
    accessed, a, modified, m = _TIMES.unpack(read(call, address, _TIMES.size))
    if not (0 <= a < 1_000_000 and 0 <= m < 1_000_000):
        raise os_error(errno.EINVAL)
    return _TIMES.pack(accessed, a * 1000, modified, m * 1000)


def utime(call: PendingCall, context: HandlerContext) -> Reply:
    """``utime``."""
    times = None
    if call.args[1]:
        accessed, modified = _SECONDS.unpack(read(call, call.args[1], _SECONDS.size))
        times = _TIMES.pack(accessed, 0, modified, 0)
    return _utime(call, context, object_argument(call, AT_FDCWD, call.args[0]), times)


def utimes(call: PendingCall, context: HandlerContext) -> Reply:
    """``utimes``."""
    times = _microseconds(call, call.args[1])
    return _utime(call, context, object_argument(call, AT_FDCWD, call.args[0]), times)


def futimesat(call: PendingCall, context: HandlerContext) -> Reply:
    """``futimesat``."""
    times = _microseconds(call, call.args[2])
    dirfd = integer(call.args[0])
    if not call.args[1] and dirfd != AT_FDCWD:
        return _utime(call, context, ObjectArgument(dirfd, None), times)
    return _utime(call, context, object_argument(call, dirfd, call.args[1]), times)


def utimensat(call: PendingCall, context: HandlerContext) -> Reply:
    """``utimensat``, and with it ``futimens``."""
    dirfd, flags = integer(call.args[0]), integer(call.args[3])
    times = read(call, call.args[2], _TIMES.size) if call.args[2] else None
    if times is not None and _TIMES.unpack(times)[1::2] == (_UTIME_OMIT, _UTIME_OMIT):
        return Reply()  # whatever the other arguments are
    if call.args[1] or dirfd == AT_FDCWD:
        return _utime(call, context, object_argument(call, dirfd, call.args[1], flags), times)
    check_flags(flags, 0)
    return _utime(call, context, ObjectArgument(dirfd, None), times)


# Size -------------------------------------------------------------------------------------------------------------


def truncate(call: PendingCall, context: HandlerContext) -> Reply:
    """``truncate``. (``ftruncate`` needs a descriptor that was opened for writing.)"""
    size = (call.args[1] ^ 1 << 63) - (1 << 63)
    if size < 0:
        raise os_error(errno.EINVAL)
    path = read_path(call, call.args[0])
    with PathResolver(call, context) as resolver:
        opened = resolver.object(AT_FDCWD, path)
        found = os.fstat(opened.fd)
        if not stat.S_ISREG(found.st_mode):
            raise os_error(errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL)
        resolver.check_writable(opened)
        if opened.path is not None and not call.patient and (found.st_size > _SLOW_BYTES or takes_long(found)):
            raise SlowError
        # Opening it checks the permission; and while it is open no process gets a lease on it.
        fd = resolver.keep_open(reopen_in_time(resolver, opened.fd, os.O_WRONLY | os.O_CLOEXEC, LEASED))
        if size > found.st_size:
            check_size(resolver.caller, size)
        if opened.path is not None:
            context.interceptor.before_open(context.step(call), opened.place, opened.fd, Risk(cut=size))
        with resolver.caller_credentials():
            resolver.check_waiting()
            os.ftruncate(fd, size)
        return Reply()


HANDLERS: dict[str, Handler] = {
    "chmod": chmod,
    "fchmod": fchmod,
    "fchmodat": fchmodat,
    "fchmodat2": fchmodat2,
    "chown": chown,
    "lchown": lchown,
    "fchown": fchown,
    "fchownat": fchownat,
    "utime": utime,
    "utimes": utimes,
    "futimesat": futimesat,
    "utimensat": utimensat,
    "truncate": truncate,
}
