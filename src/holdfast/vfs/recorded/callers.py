"""What a recorded directory asks of its host, and with whose credentials things are made."""

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
        """What every change passes before it happens."""
        ...

    @property
    def root_fd(self) -> int:
        """The tree's root, open for reading."""
        ...

    @property
    def hidden(self) -> tuple[int, ...]:
        """Descriptors of directories that the tree does not show: Holdfast's home, the undo log if it is elsewhere."""
        ...

    def step(self, thread: int, /) -> StepId:
        """The step that a thread's mutations belong to now; opens one if there is none. 0: none, as
        the thread is of no run.

        May raise `LaterError` while nothing may change.
        """
        ...


class LogNames(Protocol):
    """What the undo log keeps, as far as it can be seen from here."""

    def names_of(self, found: os.stat_result, /) -> int:
        """How many of an object's names are in the log."""
        ...


class Credited:
    """Does things with the credentials of those who ask, who were found to be allowed to."""

    def __init__(self) -> None:
        self._own = own_status().credentials

    def creating(self, caller: Caller, perform: Callable[[], T]) -> Callable[[], T]:
        """``perform``, so that what it creates is the caller's, by their umask.

        Only root can give anything away; what other users serve is used by themselves alone.
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
        """What is done to a file inside takes its set-id bits away, if it ``strips``. Users other than root have that
        by themselves.
        """
        own = self._own
        if not strips or own.uid:
            return nullcontext()
        # (It counts whether they are of the file's group; of their other groups nothing is known.)
        return assume_credentials(Credentials(own.uid, caller.gid, (), own.capabilities & ~FSETID))
