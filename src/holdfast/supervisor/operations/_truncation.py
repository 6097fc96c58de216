"""Calls that lose content through a descriptor that is open for writing: safeguards are asked first.

They run natively: their changes were recorded when the descriptor was opened. A thread that replaces the descriptor
meanwhile escapes the question, not the record.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import integer
from holdfast.supervisor.resolution.path_resolver import PathResolver
from holdfast.supervisor.syscalls.pending_call import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall

_WRITABLE = 0o200
"""Of the mode of a link in ``/proc/PID/fd``."""


def _ask(call: PendingCall, context: HandlerContext, lost: Callable[[int], int], *, appends: bool = False) -> Reply:
    """``lost`` returns the number of lost bytes for a file's size. ``appends``: only if the descriptor still appends;
    otherwise the question was asked at its opening.
    """
    number = integer(call.args[0])
    if not context.interceptor.is_guarded:
        return Reply(native=True)
    with PathResolver(call, context) as resolver:
        try:
            opened = resolver.descriptor(number)
            mode = os.stat(b"fd/%d" % number, dir_fd=resolver.caller.fd, follow_symlinks=False).st_mode
            found = os.fstat(opened.fd)
            is_meant = mode & _WRITABLE and stat.S_ISREG(found.st_mode) and opened.path is not None
            is_meant = is_meant and (not appends or _flags(resolver.caller.fd, number) & os.O_APPEND)
        except OSError:
            is_meant = False  # the kernel reports the fault
        else:
            if is_meant and lost(found.st_size) > 0:
                context.interceptor.before_loss(context.step(call), opened.place, opened.fd, lost(found.st_size))
    return Reply(native=True)


def _flags(process: int, number: int) -> int:
    with open(os.open(b"fdinfo/%d" % number, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith(b"flags:")), 0)


def cut_by_ioctl(call: PendingCall, context: HandlerContext) -> Reply:
    """``ioctl`` where it is ``fallocate``; and all that may lose anything."""
    return _ask(call, context, lambda size: size)


def ftruncate(call: PendingCall, context: HandlerContext) -> Reply:
    """``ftruncate``."""
    return _ask(call, context, lambda size: size - call.args[1])


def fallocate(call: PendingCall, context: HandlerContext) -> Reply:
    """``fallocate`` with holes and zeros, and modes that move later content."""
    return _ask(call, context, lambda size: min(call.args[3], size - call.args[2]))


def stop_appending(call: PendingCall, context: HandlerContext) -> Reply:
    """``fcntl`` without ``O_APPEND``, and ``pwritev2`` with RWF_NOAPPEND."""
    return _ask(call, context, lambda size: size, appends=True)


HANDLERS: dict[str, Handler] = {
    "ftruncate": ftruncate,
    "fallocate": fallocate,
    "fcntl": stop_appending,
    "pwritev2": stop_appending,
}
