"""Requests that would keep others waiting, or have to wait themselves: each is worked on by a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bridge.threads import Threads

_MOST: Final = 64
"""So many at a time. Whoever comes then is waited for, where they are."""
_patience = threading.local()


class LaterError(Exception):
    """Nothing has happened yet. Asked again on a thread where nobody else waits, it goes on, or waits a little more."""


def is_patient() -> bool:
    """Whether this thread may take its time: it may copy a large file."""
    return getattr(_patience, "is_patient", False)


class Later:
    """Threads for them, made when they are needed."""

    def __init__(self, own: Threads) -> None:
        """``own`` is told which threads these are."""
        self._own = own
        self._room = threading.BoundedSemaphore(_MOST)
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None]) -> None:
        """Have ``work`` done, which must raise nothing; returns at once, unless there are too many."""
        if not self._room.acquire(blocking=False):
            self._do(work)
            return
        thread = threading.Thread(target=self._run, args=(work,), name="holdfast-fuse-later", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def join(self, timeout: float) -> bool:
        """Wait until all is done, at most ``timeout`` seconds for each; whether it is."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with self._own.joined():
                self._do(work)
        finally:
            self._room.release()
            with self._lock:
                self._threads.discard(threading.current_thread())

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        before = is_patient()
        _patience.is_patient = True
        try:
            work()
        finally:
            _patience.is_patient = before
