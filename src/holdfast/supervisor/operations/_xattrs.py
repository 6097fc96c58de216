"""Calls that change extended attributes, access control lists among them."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING

from holdfast.files.linux.metadata import proc_path
from holdfast.supervisor.operations._attributes import (
    AT_EMPTY_PATH,
    AT_SYMLINK_NOFOLLOW,
    ObjectArgument,
    change,
    object_argument,
)
from holdfast.supervisor.operations.registers import check_flags, integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD
from holdfast.supervisor.syscalls.caller_memory import read, read_path, read_string, read_structure

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall, Reply

_NAME_MAX = 256
_SIZE_MAX = 65536
_ARGS = struct.Struct("=QII")


def _name(call: PendingCall, address: int) -> bytes:
    name = read_string(call, address, _NAME_MAX, errno.ERANGE)
    if not name:
        raise os_error(errno.ERANGE)
    return name


def _set(
    call: PendingCall, context: HandlerContext, target: ObjectArgument, name: int, value: tuple[int, int, int]
) -> Reply:
    address, size, flags = value
    check_flags(flags, os.XATTR_CREATE | os.XATTR_REPLACE)
    attribute = _name(call, name)
    if size > _SIZE_MAX:
        raise os_error(errno.E2BIG)
    content = read(call, address, size)
    return change(call, context, target, lambda fd: os.setxattr(proc_path(fd), attribute, content, flags))


def _remove(call: PendingCall, context: HandlerContext, target: ObjectArgument, name: int) -> Reply:
    attribute = _name(call, name)
    return change(call, context, target, lambda fd: os.removexattr(proc_path(fd), attribute))


def setxattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``setxattr``."""
    path, name, value, size, flags, _ = call.args
    return _set(call, context, object_argument(call, AT_FDCWD, path), name, (value, size, integer(flags)))


def lsetxattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``lsetxattr``."""
    path, name, value, size, flags, _ = call.args
    target = object_argument(call, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW)
    return _set(call, context, target, name, (value, size, integer(flags)))


def fsetxattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``fsetxattr``."""
    fd, name, value, size, flags, _ = call.args
    return _set(call, context, ObjectArgument(integer(fd), None), name, (value, size, integer(flags)))


def setxattrat(call: PendingCall, context: HandlerContext) -> Reply:
    """``setxattrat``."""
    dirfd, path, flags, name, arguments, size = call.args
    raw = read_structure(call, arguments, size, _ARGS.size)
    if any(raw[_ARGS.size :]):
        raise os_error(errno.E2BIG)
    target = _at(call, dirfd, path, flags)
    if target.path is None and target.dirfd == AT_FDCWD:
        target = ObjectArgument(AT_FDCWD, b"", empty=True)
    return _set(call, context, target, name, _ARGS.unpack_from(raw))


def removexattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``removexattr``."""
    return _remove(call, context, object_argument(call, AT_FDCWD, call.args[0]), call.args[1])


def lremovexattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``lremovexattr``."""
    return _remove(call, context, object_argument(call, AT_FDCWD, call.args[0], AT_SYMLINK_NOFOLLOW), call.args[1])


def fremovexattr(call: PendingCall, context: HandlerContext) -> Reply:
    """``fremovexattr``."""
    return _remove(call, context, ObjectArgument(integer(call.args[0]), None), call.args[1])


def removexattrat(call: PendingCall, context: HandlerContext) -> Reply:
    """``removexattrat``."""
    dirfd, path, flags, name, _, _ = call.args
    return _remove(call, context, _at(call, dirfd, path, flags), name)


def _at(call: PendingCall, dirfd: int, path: int, register: int) -> ObjectArgument:
    flags = unsigned(register)
    check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)
    if flags & AT_EMPTY_PATH and (not path or not read_path(call, path)):
        return ObjectArgument(integer(dirfd), None)
    return object_argument(call, integer(dirfd), path, flags)


HANDLERS: dict[str, Handler] = {
    "setxattr": setxattr,
    "lsetxattr": lsetxattr,
    "fsetxattr": fsetxattr,
    "setxattrat": setxattrat,
    "removexattr": removexattr,
    "lremovexattr": lremovexattr,
    "fremovexattr": fremovexattr,
    "removexattrat": removexattrat,
}
