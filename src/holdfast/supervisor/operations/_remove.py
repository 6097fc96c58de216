"""Calls that take a name away: ``unlink``, ``rmdir``, ``unlinkat``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import check_flags, integer
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver
from holdfast.supervisor.syscalls.caller_memory import read_path
from holdfast.supervisor.syscalls.pending_call import Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_AT_REMOVEDIR = 0x200


def _unlink(call: PendingCall, context: HandlerContext, dirfd: int, address: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(dirfd, path)
        perform = resolver.by_caller(lambda: os.unlink(resolved.full, dir_fd=resolved.dir_fd))
        if resolved.path is None or resolved.slash:  # with a slash it can only fail
            perform()
        else:
            resolver.check_removable(resolved)
            context.interceptor.unlink(context.step(call), resolved.place, perform, own=resolver.native_guard)
        return Reply()


def _rmdir(call: PendingCall, context: HandlerContext, dirfd: int, address: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(dirfd, path)
        perform = resolver.by_caller(lambda: os.rmdir(resolved.name, dir_fd=resolved.dir_fd))
        if resolved.path is None:
            perform()
        else:
            context.interceptor.rmdir(context.step(call), resolved.place, perform, own=resolver.native_guard)
        return Reply()


def unlink(call: PendingCall, context: HandlerContext) -> Reply:
    """``unlink``."""
    return _unlink(call, context, AT_FDCWD, call.args[0])


def rmdir(call: PendingCall, context: HandlerContext) -> Reply:
    """``rmdir``."""
    return _rmdir(call, context, AT_FDCWD, call.args[0])


def unlinkat(call: PendingCall, context: HandlerContext) -> Reply:
    """``unlinkat``."""
    flags = integer(call.args[2])
    check_flags(flags, _AT_REMOVEDIR)
    return (_rmdir if flags else _unlink)(call, context, integer(call.args[0]), call.args[1])


HANDLERS: dict[str, Handler] = {"unlink": unlink, "rmdir": rmdir, "unlinkat": unlinkat}
