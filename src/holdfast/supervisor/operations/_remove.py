"""Calls that take a name away: ``unlink``, ``rmdir``, ``unlinkat``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import check_flags, integer
from holdfast.supervisor.resolution.path_resolver import AT_FDCWD, PathResolver
from holdfast.supervisor.syscalls.caller_memory import read_path
from holdfast.supervisor.syscalls.pending_call import Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.supervision import Handler, Supervision
    from holdfast.supervisor.syscalls.pending_call import Call

_AT_REMOVEDIR = 0x200


def _unlink(call: Call, world: Supervision, dirfd: int, address: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, world) as sight:
        spot = sight.parent(dirfd, path)
        perform = sight.by_caller(lambda: os.unlink(spot.full, dir_fd=spot.dir_fd))
        if spot.path is None or spot.slash:  # with a slash it can only fail
            perform()
        else:
            world.interceptor.unlink(world.step(call), spot.place, perform, own=sight.own)
        return Reply()


def _rmdir(call: Call, world: Supervision, dirfd: int, address: int) -> Reply:
    path = read_path(call, address)
    with PathResolver(call, world) as sight:
        spot = sight.parent(dirfd, path)
        perform = sight.by_caller(lambda: os.rmdir(spot.name, dir_fd=spot.dir_fd))
        if spot.path is None:
            perform()
        else:
            world.interceptor.rmdir(world.step(call), spot.place, perform, own=sight.own)
        return Reply()


def unlink(call: Call, world: Supervision) -> Reply:
    """``unlink``."""
    return _unlink(call, world, AT_FDCWD, call.args[0])


def rmdir(call: Call, world: Supervision) -> Reply:
    """``rmdir``."""
    return _rmdir(call, world, AT_FDCWD, call.args[0])


def unlinkat(call: Call, world: Supervision) -> Reply:
    """``unlinkat``."""
    flags = integer(call.args[2])
    check_flags(flags, _AT_REMOVEDIR)
    return (_rmdir if flags else _unlink)(call, world, integer(call.args[0]), call.args[1])


HANDLERS: dict[str, Handler] = {"unlink": unlink, "rmdir": rmdir, "unlinkat": unlinkat}
