"""Limits the number of open files in all file systems that this process serves: each takes one of its limited
descriptors, and other parts of the process need some too.
"""

from __future__ import annotations

import resource
import threading
from typing import Final

from holdfast.vfs.file_system import TooManyError

_PART: Final = 0.6
"""The part of the descriptors of the process that is for open files."""
_TIMES: Final = 3
"""Each file system has at most so many times as many as it leaves to others, so there is always some room."""


class FdBudget:
    """The descriptors for all file systems together. Thread-safe."""

    def __init__(self, most: int | None = None) -> None:
        """By default `_PART` of the descriptors that the process may have now."""
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    def share(self) -> FdShare:
        """The share of one file system."""
        return FdShare(self)

    def take(self, own: int) -> bool:
        """One more, for who has ``own`` already; whether there is room for it."""
        with self._lock:
            most = self._most
            if most is None:
                most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _PART)
            if own >= _TIMES * (most - self._taken):
                return False
            self._taken += 1
            return True

    def give(self) -> None:
        """One less."""
        with self._lock:
            self._taken -= 1


class FdShare:
    """The descriptors of one file system. Thread-safe."""

    def __init__(self, room: FdBudget) -> None:
        self._room = room
        self._own = 0
        self._lock = threading.Lock()

    def one_more(self) -> OneMore:
        """For a file that is opened in the block, and stays open unless that fails; then see `give`.

        Entering it raises `TooManyError` if there is no room for it.
        """
        return OneMore(self)

    def take(self) -> None:
        """For `OneMore`: there is one more."""
        with self._lock:
            if not self._room.take(self._own):
                raise TooManyError
            self._own += 1

    def give(self) -> None:
        """One is closed."""
        with self._lock:
            self._own -= 1
        self._room.give()


class OneMore:
    """See `FdShare.one_more`. (A generator would take as long as two system calls.)"""

    __slots__ = ("_share",)

    def __init__(self, share: FdShare) -> None:
        self._share = share

    def __enter__(self) -> None:
        """Raises `TooManyError`."""
        self._share.take()

    def __exit__(self, kind: object, *_: object) -> None:
        """The file is open now, unless that has failed."""
        if kind is not None:
            self._share.give()


FD_BUDGET: Final = FdBudget()
"""This process's."""
