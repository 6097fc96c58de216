"""Calls that make a name: directories, links, devices and pipes, further names of an object."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import check_flags, failure, integer, unsigned
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver, ResolvedName, ResolvedObject
from holdfast.supervisor.resolution.territory import SELF_FD, keeps_log
from holdfast.supervisor.syscalls.caller_memory import read_path, read_paths
from holdfast.supervisor.syscalls.pending_call import Reply
from holdfast.undo.journal.records import FileType, file_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.resolution.supervision import Handler, Supervision
    from holdfast.supervisor.syscalls.pending_call import Call

_AT_SYMLINK_FOLLOW = 0x400
_AT_EMPTY_PATH = 0x1000


def make(
    sight: PathResolver,
    call: Call,
    world: Supervision,
    spot: ResolvedName,
    type_: FileType,
    perform: Callable[[], None],
) -> Reply:
    """Let ``perform`` make something that is not there."""
    performed = sight.creating(perform)
    if spot.path is None:
        performed()
    else:
        world.interceptor.create(world.step(call), spot.place, type_, performed)
    return Reply()


def _mkdir(call: Call, world: Supervision, dirfd: int, address: int, mode: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, world) as sight:
        spot = sight.parent(dirfd, path, makes=True)
        return make(sight, call, world, spot, "d", lambda: os.mkdir(spot.full, mode, dir_fd=spot.dir_fd))


def mkdir(call: Call, world: Supervision) -> Reply:
    """``mkdir``."""
    return _mkdir(call, world, AT_FDCWD, call.args[0], call.args[1] & 0xFFFF)


def mkdirat(call: Call, world: Supervision) -> Reply:
    """``mkdirat``."""
    return _mkdir(call, world, integer(call.args[0]), call.args[1], call.args[2] & 0xFFFF)


def _mknod(call: Call, world: Supervision, dirfd: int, address: int, mode: int, device: int) -> Reply:
    path = read_path(call, address)
    kind = stat.S_IFMT(mode) or stat.S_IFREG
    if kind == stat.S_IFDIR:
        raise failure(errno.EPERM)
    if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK):
        raise failure(errno.EINVAL)
    with PathResolver(call, world) as sight:
        spot = sight.parent(dirfd, path, makes=True)

        def perform() -> None:
            os.mknod(spot.full, mode, device, dir_fd=spot.dir_fd)

        return make(sight, call, world, spot, file_type(kind), perform)


def mknod(call: Call, world: Supervision) -> Reply:
    """``mknod``."""
    return _mknod(call, world, AT_FDCWD, call.args[0], call.args[1] & 0xFFFF, unsigned(call.args[2]))


def mknodat(call: Call, world: Supervision) -> Reply:
    """``mknodat``."""
    return _mknod(call, world, integer(call.args[0]), call.args[1], call.args[2] & 0xFFFF, unsigned(call.args[3]))


def _symlink(call: Call, world: Supervision, target_address: int, dirfd: int, address: int) -> Reply:
    target, path = read_paths(call, target_address, address)
    if not target:
        raise failure(errno.ENOENT)
    with PathResolver(call, world) as sight:
        spot = sight.parent(dirfd, path, makes=True)
        _check_link(spot)
        return make(sight, call, world, spot, "l", lambda: os.symlink(target, spot.full, dir_fd=spot.dir_fd))


def _check_link(spot: ResolvedName) -> None:
    """Raise EACCES where a link would lead to a place for an undo log, which nobody makes but Holdfast."""
    if keeps_log(spot.name):
        raise failure(errno.EACCES)


def symlink(call: Call, world: Supervision) -> Reply:
    """``symlink``."""
    return _symlink(call, world, call.args[0], AT_FDCWD, call.args[1])


def symlinkat(call: Call, world: Supervision) -> Reply:
    """``symlinkat``."""
    return _symlink(call, world, call.args[0], integer(call.args[1]), call.args[2])


def _link(call: Call, world: Supervision, source: tuple[int, int], target: tuple[int, int], flags: int) -> Reply:
    old, new = read_paths(call, source[1], target[1])
    check_flags(flags, _AT_SYMLINK_FOLLOW | _AT_EMPTY_PATH)
    with PathResolver(call, world) as sight:
        if not old and flags & _AT_EMPTY_PATH:
            thing = sight.descriptor(source[0]) if source[0] != AT_FDCWD else sight.thing(sight.start(AT_FDCWD))
        else:
            thing = sight.object(source[0], old, follow=bool(flags & _AT_SYMLINK_FOLLOW))
        spot = sight.parent(target[0], new, makes=True)
        return _name_again(sight, call, world, thing, spot)


def _name_again(
    sight: PathResolver, call: Call, world: Supervision, thing: ResolvedObject, spot: ResolvedName
) -> Reply:
    def perform() -> None:
        source = b"%d" % thing.fd
        os.link(source, spot.full, src_dir_fd=SELF_FD, dst_dir_fd=spot.dir_fd, follow_symlinks=True)

    if thing.where.read_only:
        # How many names it has would change. Who is told of another file system makes a copy, which is allowed.
        raise _crossing(sight, spot)
    performed = sight.by_caller(perform)
    found = os.fstat(thing.fd)
    if stat.S_ISLNK(found.st_mode):
        _check_link(spot)
    if not found.st_nlink:
        # It has no name yet (O_TMPFILE): it is this call that creates it, as far as anyone can see.
        if spot.path is None:
            performed()
        else:
            world.interceptor.create(world.step(call), spot.place, file_type(found.st_mode), performed)
    elif thing.path is None and spot.path is None:
        performed()
    elif thing.path is None or spot.path is None:
        # Changes through a name outside would be nobody's: for links, the workspace is a file system of its own.
        raise _crossing(sight, spot)
    else:
        world.interceptor.link(world.step(call), thing.fd, spot.place, performed)
    return Reply()


def _crossing(sight: PathResolver, spot: ResolvedName) -> OSError:
    return failure(errno.EEXIST if sight.is_taken(spot) else errno.EXDEV)


def link(call: Call, world: Supervision) -> Reply:
    """``link``."""
    return _link(call, world, (AT_FDCWD, call.args[0]), (AT_FDCWD, call.args[1]), 0)


def linkat(call: Call, world: Supervision) -> Reply:
    """``linkat``."""
    source, target = (integer(call.args[0]), call.args[1]), (integer(call.args[2]), call.args[3])
    return _link(call, world, source, target, integer(call.args[4]))


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
