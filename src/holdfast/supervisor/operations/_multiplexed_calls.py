"""Calls of which only one use in many concerns files: flags of an inode, sockets that have a name, file handles."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
from typing import TYPE_CHECKING

from holdfast.supervisor.confinement import landlock
from holdfast.supervisor.operations._attributes import AT_EMPTY_PATH, ObjectArgument, change, check, object_argument
from holdfast.supervisor.operations._create import make
from holdfast.supervisor.operations._open import open_found, open_request
from holdfast.supervisor.operations._truncation import cut_by_ioctl
from holdfast.supervisor.operations.registers import integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver
from holdfast.supervisor.resolution.territory import reopen
from holdfast.supervisor.syscalls.caller_memory import read, read_structure
from holdfast.supervisor.syscalls.pending_call import Reply
from holdfast.supervisor.syscalls.table import LOSING_IOCTLS, NOTIFIED_IOCTLS

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_SYS_FILE_SETATTR = 469
_IMMUTABLE_OR_APPEND = {"FS_IOC_SETFLAGS": 0x30, "FS_IOC32_SETFLAGS": 0x30, "FS_IOC_FSSETXATTR": 0x18}
_SIZES = {"FS_IOC_FSSETXATTR": 28}
_COMMANDS = {number: name for name, number in NOTIFIED_IOCTLS.items()}
_FILE_ATTR = struct.Struct("=QIIII")
_XFLAGS_FIXED = 0x18
_FAMILY = struct.Struct("=H")
_ADDRESS_MAX = 128
_UNIX_MAX = 110
_HANDLE = struct.Struct("=Ii")
_HANDLE_MAX = 128

_libc = ctypes.CDLL(None, use_errno=True)


def _check_fixed(fixed: int) -> None:
    """Refuse flags that would make a file immutable or append-only: undo could not change it either."""
    if fixed:
        raise os_error(errno.EPERM)


def ioctl(call: PendingCall, context: HandlerContext) -> Reply:
    """``ioctl``, of the flags and numbers of an inode."""
    command = unsigned(call.args[1])
    if command in LOSING_IOCTLS:
        return cut_by_ioctl(call, context)
    name = _COMMANDS.get(command)
    if name is None:
        return Reply(native=True)
    content = bytearray(read(call, call.args[2], _SIZES.get(name, 4)))
    _check_fixed(int.from_bytes(content[:4], "little") & _IMMUTABLE_OR_APPEND.get(name, 0))
    content += bytes(8)

    def perform(fd: int) -> None:
        opened = reopen(fd, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            fcntl.ioctl(opened, command, content)
        finally:
            os.close(opened)

    return change(call, context, ObjectArgument(integer(call.args[0]), None), perform)


def file_setattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``file_setattr``."""
    dirfd, path, address, size, flags, _ = call.args
    raw = read_structure(call, address, size, _FILE_ATTR.size)
    _check_fixed(_FILE_ATTR.unpack_from(raw)[0] & _XFLAGS_FIXED)
    target = object_argument(call, integer(dirfd), path, unsigned(flags))
    length = ctypes.c_size_t(size)
    return change(
        call, context, target, lambda fd: check(_libc.syscall(_SYS_FILE_SETATTR, fd, b"", raw, length, AT_EMPTY_PATH))
    )


def bind(call: PendingCall, context: HandlerContext) -> Reply:
    """``bind``, which makes a node for a local socket that has a path."""
    length = unsigned(call.args[2])
    if not _FAMILY.size < length <= _ADDRESS_MAX:
        return Reply(native=True)
    address = read(call, call.args[1], length)
    path = address[_FAMILY.size :].split(b"\0", 1)[0]
    if _FAMILY.unpack_from(address)[0] != socket.AF_UNIX or not path:
        if landlock.version():
            return Reply(native=True)
        with PathResolver(call, context) as resolver:
            bound = _socket_of(resolver, call)
            with resolver.caller_credentials():
                check(_libc.bind(bound, address, length))
            return Reply()
    if length > _UNIX_MAX:
        raise os_error(errno.EINVAL)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(AT_FDCWD, path, makes=True)
        bound = _socket_of(resolver, call)

        def perform() -> None:
            # By its name in the directory that was found: the caller's path may lead us to another one.
            name = _FAMILY.pack(socket.AF_UNIX) + resolved.name + resolved.slash + b"\0"
            before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fchdir(resolved.dir_fd)
                check(_libc.bind(bound, name, len(name)))
            finally:
                os.fchdir(before)
                os.close(before)

        return make(resolver, call, context, resolved, "s", perform)


def _socket_of(resolver: PathResolver, call: PendingCall) -> int:
    """The caller's own socket, in our hands."""
    found = resolver.keep_open(call.reach.descriptor(call, integer(call.args[0])))
    if not stat.S_ISSOCK(os.fstat(found).st_mode):
        raise os_error(errno.ENOTSOCK)
    return found


def open_by_handle_at(call: PendingCall, context: HandlerContext) -> Reply:
    """``open_by_handle_at``, for writing."""
    wish = open_request(integer(call.args[2]), 0)
    if not wish.writes:
        return Reply(native=True)
    size, _ = _HANDLE.unpack(read(call, call.args[1], _HANDLE.size))
    if not 0 < size <= _HANDLE_MAX:
        raise os_error(errno.EINVAL)
    handle = read(call, call.args[1], _HANDLE.size + size)
    with PathResolver(call, context) as resolver:
        mount = integer(call.args[0])
        anywhere = resolver.start(AT_FDCWD) if mount == AT_FDCWD else resolver.descriptor(mount).fd
        usable = resolver.keep_open(reopen(anywhere, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
        with resolver.caller_credentials():
            fd = _libc.open_by_handle_at(usable, handle, os.O_PATH | os.O_CLOEXEC)
        check(fd)
        return open_found(resolver, call, context, resolver.check_reachable(resolver.keep_open(fd)), wish)


HANDLERS: dict[str, Handler] = {
    "ioctl": ioctl,
    "file_setattr": file_setattr,
    "bind": bind,
    "open_by_handle_at": open_by_handle_at,
}
