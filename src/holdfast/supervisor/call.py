"""What the keeper and the handlers of system calls say to each other.

The kernel holds a system call back and tells the keeper (`holdfast.supervisor.notify`); a handler
(`holdfast.supervisor.operations`) reads its arguments once, finds what they name, and performs it in the caller's
place; the keeper passes the reply on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from holdfast.supervisor.reach import Reach
    from holdfast.supervisor.retries import Pipe
    from holdfast.supervisor.territory import ReadOnly
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.records import StepId


class Call(NamedTuple):
    """A system call that waits."""

    id: int
    """The notification's; valid until the call is answered or its caller is gone."""
    tid: int
    """The calling thread, in the keeper's pid namespace."""
    name: str
    """As in ``holdfast.supervisor.calls``; the oldest variants have names of their own (``open``, ``creat``)."""
    args: tuple[int, int, int, int, int, int]
    """The registers, unsigned, 64 bits each. A handler takes the width that the call's own arguments have."""
    reach: Reach
    """To what is the caller's own."""
    patient: bool = False
    """It is handled on a thread where nobody else waits for it: it may copy a large file, or block."""


class Reply(NamedTuple):
    """The answer."""

    value: int = 0
    """What the call returns, if nothing else says otherwise."""
    error: int = 0
    """The error number that it fails with, positive."""
    fd: int = -1
    """A descriptor of the keeper: the call returns a copy of it that the caller gets. The keeper's own is closed before
    the caller goes on, else it might find that what it has just written cannot be executed (ETXTBSY).
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
    """Nothing has happened yet, and what it waits for nobody tells of: call the handler again in a moment."""

    def __init__(self, pipe: Pipe | None = None) -> None:
        """``pipe``: it waits for a reader of that one."""
        super().__init__()
        self.pipe = pipe


class Supervision(Protocol):
    """What handlers know of the world."""

    interceptor: Interceptor
    root_fd: int
    """The workspace's root."""
    forbidden: tuple[int, ...]
    """Descriptors of directories that nothing inside may change anything beneath: Holdfast's home, and the undo log
    where it lies elsewhere.
    """
    read_only: tuple[ReadOnly, ...]
    """Directories that nothing inside may change, nor anything beneath."""

    def step(self, call: Call) -> StepId:
        """The step that the caller's mutations belong to now. Opens one if there is none.

        Raises `OSError` (EINTR) if the caller does not wait any more: nothing is to be journalled for it.
        """
        ...

    def holds(self, tgid: int) -> bool:
        """Whether a process that lives is of the tree that the calls come from, as far as can be told. From any thread.

        It says nothing of one that ends meanwhile, whose number may be another's by then.
        """
        ...

    def is_valid(self, call: Call) -> bool:
        """Whether the caller still waits, and was not killed. So ``/proc/TID`` was its own when something was opened
        through it, and no other process has seen its end yet.
        """
        ...


Handler: TypeAlias = Callable[[Call, Supervision], Reply]
"""Carries out one call. May raise `OSError`: the call fails with its number; and, before anything has happened,
`SlowError`, `LaterError` and `HeldError`: it is called again from the start, and reads everything anew.
"""
