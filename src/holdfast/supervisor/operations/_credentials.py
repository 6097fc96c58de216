"""Calls by which a thread changes its credentials or its view of files: they run natively, and are noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import unsigned
from holdfast.supervisor.resolution.caller_identity import CALLERS
from holdfast.supervisor.syscalls.pending_call import Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall


def umask(call: PendingCall, _context: HandlerContext) -> Reply:
    """``umask``."""
    CALLERS.note_umask(call.tid, unsigned(call.args[0]) & 0o777)
    return Reply(native=True)


def credentials(call: PendingCall, _context: HandlerContext) -> Reply:
    """``setuid`` and its like: they are of the thread, which makes no other call before this one is done."""
    CALLERS.forget(call.tid)
    return Reply(native=True)


def distrust(_call: PendingCall, _context: HandlerContext) -> Reply:
    """``chroot``, ``unshare``, ``setns``; and ``prctl``, where it says what an ``exec`` leaves of capabilities, to
    children too.
    """
    CALLERS.distrust()
    return Reply(native=True)


HANDLERS: dict[str, Handler] = {
    "umask": umask,
    **dict.fromkeys(
        (
            "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups",
            "capset",
        ),
        credentials,
    ),
    **dict.fromkeys(("chroot", "unshare", "setns", "prctl"), distrust),
}  # fmt: skip
