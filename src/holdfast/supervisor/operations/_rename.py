"""``rename``, ``renameat``, ``renameat2``."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.files.linux.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from holdfast.files.linux.syscalls import renameat2 as rename_on_descriptors
from holdfast.supervisor.operations.registers import check_flags, integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver, ResolvedName
from holdfast.supervisor.syscalls.caller_memory import read_paths
from holdfast.supervisor.syscalls.pending_call import Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_WHITEOUT = 4


def _rename(
    call: PendingCall, context: HandlerContext, source: tuple[int, int], target: tuple[int, int], flags: int
) -> Reply:
    old, new = read_paths(call, source[1], target[1])
    check_flags(flags, RENAME_EXCHANGE | RENAME_NOREPLACE | _WHITEOUT)
    if (flags & RENAME_EXCHANGE and flags != RENAME_EXCHANGE) or flags & _WHITEOUT:
        # A whiteout is a device: only overlay file systems make them, and nothing here could reverse it.
        raise os_error(errno.EINVAL)
    with PathResolver(call, context) as resolver:
        origin, place = resolver.locate_writable(source[0], old), resolver.locate_writable(target[0], new)
        perform = resolver.by_caller(
            lambda: rename_on_descriptors(origin.dir_fd, origin.full, place.dir_fd, place.full, flags)
        )
        # An exchange moves both objects.
        if any(
            resolver.territory.holds_forbidden(resolved.where.absolute, resolved.dir_fd) for resolved in (origin, place)
        ):
            raise os_error(errno.EACCES)
        moved = [(origin, place), (place, origin)] if flags & RENAME_EXCHANGE else [(origin, place)]
        if any(resolver.territory.would_be_log(new.name, old.dir_fd, old.name) for old, new in moved):
            raise os_error(errno.EACCES)
        if any(resolver.territory.holds_read_only(resolved.where.absolute) for resolved in (origin, place)):
            raise os_error(errno.EROFS)
        if origin.path is not None and place.path is not None:
            if (origin.slash or place.slash) and not _is_directory(resolver, origin):
                perform()  # which is an error, and the system knows which
            if not flags and not _is_same(origin, place):  # (else nothing is replaced)
                resolver.check_removable(place, origin)
            context.interceptor.rename(
                context.step(call), origin.place, place.place, flags, perform, own=resolver.native_guard
            )
        elif origin.path is None and place.path is None:
            perform()
            resolver.territory.forget()
        else:
            raise _crossing(origin, place, flags)
        return Reply()


def _is_same(one: ResolvedName, other: ResolvedName) -> bool:
    try:
        found = [os.lstat(resolved.name, dir_fd=resolved.dir_fd) for resolved in (one, other)]
    except OSError:
        return False
    return os.path.samestat(*found)


def _is_directory(resolver: PathResolver, resolved: ResolvedName) -> bool:
    with resolver.caller_credentials():
        return stat.S_ISDIR(os.stat(resolved.name, dir_fd=resolved.dir_fd, follow_symlinks=False).st_mode)


def _crossing(origin: ResolvedName, place: ResolvedName, flags: int) -> OSError:
    """The error of a rename into the workspace or out of it: no undo could reverse it.

    For renames it is a file system of its own; every program that moves files can handle that.
    """
    if origin.is_special:
        return os_error(errno.EBUSY)
    if place.is_special:
        return os_error(errno.EEXIST if flags & RENAME_NOREPLACE else errno.EBUSY)
    return os_error(errno.EXDEV)


def rename(call: PendingCall, context: HandlerContext) -> Reply:
    """``rename``."""
    return _rename(call, context, (AT_FDCWD, call.args[0]), (AT_FDCWD, call.args[1]), 0)


def renameat(call: PendingCall, context: HandlerContext) -> Reply:
    """``renameat``."""
    return _rename(call, context, (integer(call.args[0]), call.args[1]), (integer(call.args[2]), call.args[3]), 0)


def renameat2(call: PendingCall, context: HandlerContext) -> Reply:
    """``renameat2``."""
    source, target = (integer(call.args[0]), call.args[1]), (integer(call.args[2]), call.args[3])
    return _rename(call, context, source, target, unsigned(call.args[4]))


HANDLERS: dict[str, Handler] = {"rename": rename, "renameat": renameat, "renameat2": renameat2}
