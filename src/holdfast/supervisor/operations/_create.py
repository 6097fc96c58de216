"""Calls that make a name: directories, links, devices and pipes, further names of an object."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import check_flags, integer, os_error, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver, ResolvedName, ResolvedObject
from holdfast.supervisor.resolution.territory import SELF_FD, is_log_name
from holdfast.supervisor.syscalls.caller_memory import read_path, read_paths
from holdfast.supervisor.syscalls.pending_call import Reply
from holdfast.undo.journal.records import FileType, file_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_AT_SYMLINK_FOLLOW = 0x400
_AT_EMPTY_PATH = 0x1000


def make(
    resolver: PathResolver,
    call: PendingCall,
    context: HandlerContext,
    resolved: ResolvedName,
    type_: FileType,
    perform: Callable[[], None],
) -> Reply:
    """Let ``perform`` make a new object."""
    performed = resolver.create_by_caller(perform)
    if resolved.path is None:
        performed()
    else:
        context.interceptor.create(context.step(call), resolved.place, type_, performed)
    return Reply()


def _mkdir(call: PendingCall, context: HandlerContext, dirfd: int, address: int, mode: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(dirfd, path, makes=True)
        return make(
            resolver, call, context, resolved, "d", lambda: os.mkdir(resolved.full, mode, dir_fd=resolved.dir_fd)
        )


def mkdir(call: PendingCall, context: HandlerContext) -> Reply:
    """``mkdir``."""
    return _mkdir(call, context, AT_FDCWD, call.args[0], call.args[1] & 0xFFFF)


def mkdirat(call: PendingCall, context: HandlerContext) -> Reply:
    """``mkdirat``."""
    return _mkdir(call, context, integer(call.args[0]), call.args[1], call.args[2] & 0xFFFF)


def _mknod(call: PendingCall, context: HandlerContext, dirfd: int, address: int, mode: int, device: int) -> Reply:
    path = read_path(call, address)
    kind = stat.S_IFMT(mode) or stat.S_IFREG
    if kind == stat.S_IFDIR:
        raise os_error(errno.EPERM)
    if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
        raise os_error(errno.EINVAL)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(dirfd, path, makes=True)

        def perform() -> None:
            os.mknod(resolved.full, mode, device, dir_fd=resolved.dir_fd)

        return make(resolver, call, context, resolved, file_type(kind), perform)


def mknod(call: PendingCall, context: HandlerContext) -> Reply:
    """``mknod``."""
    return _mknod(call, context, AT_FDCWD, call.args[0], call.args[1] & 0xFFFF, unsigned(call.args[2]))


def mknodat(call: PendingCall, context: HandlerContext) -> Reply:
    """``mknodat``."""
    return _mknod(call, context, integer(call.args[0]), call.args[1], call.args[2] & 0xFFFF, unsigned(call.args[3]))


def _symlink(call: PendingCall, context: HandlerContext, target_address: int, dirfd: int, address: int) -> Reply:
    target, path = read_paths(call, target_address, address)
    if not target:
        raise os_error(errno.ENOENT)
    with PathResolver(call, context) as resolver:
        resolved = resolver.locate_writable(dirfd, path, makes=True)
        _check_link(resolved)
        return make(
            resolver, call, context, resolved, "l", lambda: os.symlink(target, resolved.full, dir_fd=resolved.dir_fd)
        )


def _check_link(resolved: ResolvedName) -> None:
    """Raise EACCES where a link would lead to a place for an undo log, which Holdfast alone makes."""
    if is_log_name(resolved.name):
        raise os_error(errno.EACCES)


def symlink(call: PendingCall, context: HandlerContext) -> Reply:
    """``symlink``."""
    return _symlink(call, context, call.args[0], AT_FDCWD, call.args[1])


def symlinkat(call: PendingCall, context: HandlerContext) -> Reply:
    """``symlinkat``."""
    return _symlink(call, context, call.args[0], integer(call.args[1]), call.args[2])


def _link(
    call: PendingCall, context: HandlerContext, source: tuple[int, int], target: tuple[int, int], flags: int
) -> Reply:
    old, new = read_paths(call, source[1], target[1])
    check_flags(flags, _AT_SYMLINK_FOLLOW | _AT_EMPTY_PATH)
    with PathResolver(call, context) as resolver:
        if not old and flags & _AT_EMPTY_PATH:
            opened = (
                resolver.descriptor(source[0])
                if source[0] != AT_FDCWD
                else resolver.resolve_object(resolver.start(AT_FDCWD))
            )
        else:
            opened = resolver.object(source[0], old, follow=bool(flags & _AT_SYMLINK_FOLLOW))
        resolved = resolver.locate_writable(target[0], new, makes=True)
        return _name_again(resolver, call, context, opened, resolved)


def _name_again(
    resolver: PathResolver, call: PendingCall, context: HandlerContext, opened: ResolvedObject, resolved: ResolvedName
) -> Reply:
    def perform() -> None:
        source = b"%d" % opened.fd
        os.link(source, resolved.full, src_dir_fd=SELF_FD, dst_dir_fd=resolved.dir_fd, follow_symlinks=True)

    if opened.where.read_only:
        # Its link count would change. A program that sees another file system makes a copy, which is allowed.
        raise _crossing(resolver, resolved)
    performed = resolver.by_caller(perform)
    found = os.fstat(opened.fd)
    if stat.S_ISLNK(found.st_mode):
        _check_link(resolved)
    if not found.st_nlink:
        # It has no name yet (O_TMPFILE): as far as anyone can see, this call creates it.
        if resolved.path is None:
            performed()
        else:
            context.interceptor.create(context.step(call), resolved.place, file_type(found.st_mode), performed)
    elif opened.path is None and resolved.path is None:
        performed()
    elif opened.path is None or resolved.path is None:
        # Changes through an outside name would belong to no step: for links, the workspace is a file system of its own.
        raise _crossing(resolver, resolved)
    else:
        context.interceptor.link(context.step(call), opened.fd, resolved.place, performed)
    return Reply()


def _crossing(resolver: PathResolver, resolved: ResolvedName) -> OSError:
    return os_error(errno.EEXIST if resolver.is_taken(resolved) else errno.EXDEV)


def link(call: PendingCall, context: HandlerContext) -> Reply:
    """``link``."""
    return _link(call, context, (AT_FDCWD, call.args[0]), (AT_FDCWD, call.args[1]), 0)


def linkat(call: PendingCall, context: HandlerContext) -> Reply:
    """``linkat``."""
    source, target = (integer(call.args[0]), call.args[1]), (integer(call.args[2]), call.args[3])
    return _link(call, context, source, target, integer(call.args[4]))


HANDLERS: dict[str, Handler] = {
    "mkdir": mkdir,
    "mkdirat": mkdirat,
    "mknod": mknod,
    "mknodat": mknodat,
    "symlink": symlink,
    "symlinkat": symlinkat,
    "link": link,
    "linkat": linkat,
}
