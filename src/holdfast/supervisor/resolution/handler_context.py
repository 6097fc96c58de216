"""What a handler of system calls knows of the tree that calls, and what a handler is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.supervisor.syscalls.pending_call import PendingCall, Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.territory import ReadOnly
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId


class HandlerContext(Protocol):
    """What handlers know of the tree that calls."""

    interceptor: Interceptor
    root_fd: int
    """The workspace's root."""
    forbidden: tuple[int, ...]
    """Descriptors of directories that nothing inside may change anything beneath: Holdfast's home, and the undo log
    where it lies elsewhere.
    """
    read_only: tuple[ReadOnly, ...]
    """Directories that nothing inside may change, nor anything beneath."""

    def step(self, call: PendingCall) -> StepId:
        """The step that the caller's mutations belong to now. Opens one if there is none.

        Raises `OSError` (EINTR) if the caller does not wait any more: nothing is to be journalled for it.
        """
        ...

    def holds(self, tgid: int) -> bool:
        """Whether a process that lives is of the tree that the calls come from, as far as can be told. From any thread.

        It says nothing of one that ends meanwhile, whose number may be another's by then.
        """
        ...

    def note_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        """The workspace is here, and below these paths nothing may be changed: this is believed for so long, unless it
        is said again; for 0, it is to be found out anew. From any thread.
        """
        ...

    def is_valid(self, call: PendingCall) -> bool:
        """Whether the caller still waits, and was not killed. So ``/proc/TID`` was its own when something was opened
        through it, and no other process has seen its end yet.
        """
        ...


Handler: TypeAlias = Callable[[PendingCall, HandlerContext], Reply]
"""Carries out one call. May raise `OSError`: the call fails with its number; and, before anything has happened,
`SlowError`, `LaterError` and `HeldError`: it is called again from the start, and reads everything anew.
"""
