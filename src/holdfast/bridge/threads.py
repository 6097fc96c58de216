"""Which threads of this process answer for a mount: what they change, its kernel knows already."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

_KNOWN_SECONDS: Final = 1.0
"""The news of what a thread has done may be read when it has ended. Its number comes back after all others."""


class Threads:
    """A container of their numbers. From any thread."""

    def __init__(self) -> None:
        self._until: dict[object, float] = {}
        self._lock = threading.Lock()

    def __contains__(self, tid: object) -> bool:
        """Whether the thread is one, or was just now."""
        return monotonic() < self._until.get(tid, 0.0)

    @contextmanager
    def joined(self) -> Generator[None]:
        """For the length of the block, the thread that enters it is one."""
        me = threading.get_native_id()
        with self._lock:
            self._until[me] = inf
        try:
            yield
        finally:
            with self._lock:
                now = monotonic()
                self._until = {tid: until for tid, until in self._until.items() if until > now}
                self._until[me] = now + _KNOWN_SECONDS
