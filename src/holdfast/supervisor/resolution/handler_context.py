"""The handlers of system calls, and the facts about the calling tree that they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.supervisor.syscalls.pending_call import PendingCall, Reply

if TYPE_CHECKING:
    from holdfast.supervisor.resolution.territory import ReadOnly
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId


class HandlerContext(Protocol):
    """The facts about the calling tree."""

    interceptor: Interceptor
    root_fd: int
    """The workspace's root."""
    forbidden: tuple[int, ...]
    """Descriptors of directories whose contents the tree may not change: Holdfast's home, and the undo log if it is in
    another place.
    """
    read_only: tuple[ReadOnly, ...]
    """Directories that the tree may not change, with their contents."""

    def step(self, call: PendingCall) -> StepId:
        """The present step for the caller's mutations. Opens one if there is none.

        Raises `OSError` (EINTR) if the caller no longer waits: nothing may be journalled for it.
        """
        ...

    def holds(self, tgid: int) -> bool:
        """Whether a living process belongs to the calling tree, as far as known. From any thread.

        Says nothing about a process that ends meanwhile, whose number may be reused.
        """
        ...

    def note_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        """The workspace is at ``root``, and nothing may be changed below ``borders``: valid for ``fresh_ns``, unless it
        is renewed; 0: find it out anew. From any thread.
        """
        ...

    def is_valid(self, call: PendingCall) -> bool:
        """Whether the caller still waits, and was not killed. So ``/proc/TID`` was its own when a file in it was
        opened, and no other process has seen its end yet.
        """
        ...


Handler: TypeAlias = Callable[[PendingCall, HandlerContext], Reply]
"""Carries out one call. May raise `OSError`: the call fails with its number; and, before anything has happened,
`SlowError`, `LaterError` and `HeldError`: it is called again from the start, and reads everything anew.
"""
