"""The calls and replies between the keeper and the handlers of system calls.

The kernel holds a system call and notifies the keeper (`holdfast.supervisor.confinement.seccomp_notify`). A handler
(`holdfast.supervisor.operations`) reads its arguments once, resolves them, and performs the operation for the caller;
the keeper passes the reply on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.supervisor.syscalls.caller_access import CallerAccess
    from holdfast.supervisor.syscalls.retries import Pipe
    from holdfast.undo.journal.records import StepId


class PendingCall(NamedTuple):
    """A system call that waits."""

    id: int
    """The notification's; valid until the call is answered or its caller is gone."""
    tid: int
    """The calling thread, in the keeper's pid namespace."""
    name: str
    """As in ``holdfast.supervisor.syscalls.table``; the oldest variants have names of their own (``open``, ``creat``).
    """
    args: tuple[int, int, int, int, int, int]
    """The registers, unsigned, 64 bits each. A handler takes the width that the call's own arguments have."""
    reach: CallerAccess
    """Access to the caller's own memory and descriptors."""
    patient: bool = False
    """It is handled on a thread of its own: it may copy a large file, or block."""
    held_in: StepId = 0
    """The earlier step in which a person was asked about it; 0 if there was none."""


class Reply(NamedTuple):
    """The answer."""

    value: int = 0
    """The call's result, unless another field decides."""
    error: int = 0
    """The error number that it fails with, positive."""
    fd: int = -1
    """A descriptor of the keeper: the call returns the caller's copy of it. The keeper's own is closed before the
    caller continues: otherwise the caller might be unable to execute the file that it has just written (ETXTBSY).
    """
    cloexec: bool = False
    """For the caller's descriptor."""
    native: bool = False
    """The kernel carries the call out as it is. Only where nothing that a racing thread puts into the arguments
    afterwards can change the workspace; ``docs/internals/supervisor.md`` says where and why.
    """


class SlowError(Exception):
    """Nothing has happened yet, and going on would keep others waiting: call the handler again with a patient call."""


class LaterError(Exception):
    """Nothing has happened yet, and no event will say when the wait is over: call the handler again in a moment."""

    def __init__(self, pipe: Pipe | None = None) -> None:
        """``pipe``: it waits for a reader of that pipe."""
        super().__init__()
        self.pipe = pipe
