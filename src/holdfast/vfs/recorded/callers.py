"""The interface of a recorded directory to its host, and the credentials for creating objects."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.files.linux.process_credentials import (
    FSETID,
    PAST_CHECKS,
    Credentials,
    assume_credentials,
    own_status,
    thread_umask,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId
    from holdfast.vfs.file_system import Caller

T = TypeVar("T")


class RecordingHost(Protocol):
    """The port to the host of a recorded directory."""

    @property
    def interceptor(self) -> Interceptor:
        """Intercepts every change before it happens."""
        ...

    @property
    def root_fd(self) -> int:
        """The tree's root, open for reading."""
        ...

    @property
    def hidden(self) -> tuple[int, ...]:
        """Descriptors of the hidden directories: Holdfast's home, and the undo log if it is elsewhere."""
        ...

    def step(self, thread: int, /) -> StepId:
        """The current step for the mutations of a thread; opens one if there is none. 0 for a thread of no run.

        May raise `LaterError` while changes are suspended.
        """
        ...


class LogNames(Protocol):
    """The names kept in the undo log, as visible from here."""

    def names_of(self, found: os.stat_result, /) -> int:
        """How many of an object's names are in the log."""
        ...


class Credited:
    """Acts with the credentials of callers, whose permission was checked before."""

    def __init__(self) -> None:
        self._own = own_status().credentials

    def creating(self, caller: Caller, perform: Callable[[], T]) -> Callable[[], T]:
        """``perform``, so that the caller owns the created object, with their umask applied.

        Only root can give files away; a server of another user serves only that user.
        """
        own = self._own
        _, uid, gid, groups, umask = caller
        is_own = own.uid != 0 or ((uid, gid) == own[:2] and not groups)

        def performed() -> T:
            with thread_umask(umask):
                if is_own:
                    return perform()
                with assume_credentials(Credentials(uid, gid, groups, own.capabilities & PAST_CHECKS)):
                    return perform()

        return performed

    def stripping(self, caller: Caller, strips: object) -> AbstractContextManager[None]:
        """Changes of a file inside clear its set-id bits, if it ``strips``. For users other than root the kernel does
        so.
        """
        own = self._own
        if not strips or own.uid:
            return nullcontext()
        # (The kernel checks whether they are in the file's group; their other groups are unknown.)
        return assume_credentials(Credentials(own.uid, caller.gid, (), own.capabilities & ~FSETID))
