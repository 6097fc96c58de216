"""Calls that set limits and priorities of other processes: native within the tree, and EPERM outside of it.

No domain forbids them, unlike tracing and signals, and they could cripple or end our own processes. The number is in a
register, so no thread can change it between this check and the kernel's; only its process may end in between, and
another one get the number.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from holdfast.supervisor.operations.registers import integer
from holdfast.supervisor.process_tree.members import is_in_namespace_below, thread_group
from holdfast.supervisor.syscalls.pending_call import Reply
from holdfast.supervisor.syscalls.table import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.supervisor.resolution.handler_context import Handler, HandlerContext
    from holdfast.supervisor.syscalls.pending_call import PendingCall


def check_target(call: PendingCall, context: HandlerContext) -> Reply:
    """Every call of `TARGETS` whose target is a process, or thread, that is named by its number."""
    error = target_errno(call.name, call.tid, call.args, context.holds)
    return Reply(error=error) if error else Reply(native=True)


def target_errno(name: str, tid: int, args: Sequence[int], holds: Callable[[int], bool]) -> int:
    """The errno that such a call, by the thread ``tid``, fails with; 0 if it may go on. ``holds(tgid)`` says whether a
    process is of the tree.
    """
    number = integer(args[TARGETS[name].pid])
    if number < 0 or is_in_namespace_below(tid):
        return 0  # a namespace of the tree's own has only processes of the tree
    tgid = thread_group(number)
    if not tgid:
        return errno.ESRCH
    return 0 if holds(tgid) else errno.EPERM


HANDLERS: dict[str, Handler] = dict.fromkeys(TARGETS, check_target)
