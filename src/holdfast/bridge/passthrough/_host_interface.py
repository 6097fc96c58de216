"""What a served tree asks of its host: what keeps what would be lost, and with which credentials things are made."""

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
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId
    from holdfast.wire.fuse.request_bodies import Extras, Header

T = TypeVar("T")


class BridgeHost(Protocol):
    """The port to the host of a served tree."""

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

    def step(self, tid: int, /) -> StepId:
        """The step that a thread's mutations belong to now; opens one if there is none. 0: none, as
        the thread is of no run.

        May raise `LaterError` while nothing may change.
        """
        ...


class Callers:
    """The processes that ask. The kernel has checked that they may; here it is done with their credentials."""

    def __init__(self, *, masks: bool) -> None:
        """``masks``: their umask is left to us (`Init.DONT_MASK`)."""
        self._own = own_status().credentials
        self._masks = masks

    def creating(self, header: Header, umask: int, extras: Extras, perform: Callable[[], T]) -> Callable[[], T]:
        """``perform``, so that what it creates is the caller's, by their umask.

        Only root can give anything away; what other users serve is used by themselves alone.
        """
        own, groups = self._own, extras.groups
        is_own = own.uid != 0 or ((header.uid, header.gid) == own[:2] and not groups)
        mask = umask if self._masks else 0

        def performed() -> T:
            with thread_umask(mask):
                if is_own:
                    return perform()
                with assume_credentials(Credentials(header.uid, header.gid, groups, own.capabilities & PAST_CHECKS)):
                    return perform()

        return performed

    def stripping(self, header: Header, strips: object) -> AbstractContextManager[None]:
        """What is done to a file inside takes its set-id bits away, if ``strips`` (what the kernel says of a caller who
        may not set them). Users other than root have that by themselves.
        """
        own = self._own
        if not strips or own.uid:
            return nullcontext()
        # (It counts whether they are of the file's group; of their other groups nothing is known.)
        return assume_credentials(Credentials(own.uid, header.gid, (), own.capabilities & ~FSETID))
