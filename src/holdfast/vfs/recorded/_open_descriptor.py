"""A descriptor that several threads use, and one may close meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self


class OpenDescriptor:
    """An open object with a descriptor, which stays open while a thread is in a block of ``with``.

    The other side may close an object while its request runs, and a closed number is reused at once: for the next file
    that this process opens, in the served directory or elsewhere.
    """

    __slots__ = ("_close_it", "_is_closed", "_lock", "_users", "fd")

    def __init__(self, fd: int, close: Callable[[Self], object]) -> None:
        """``close`` closes it, once."""
        self.fd = fd
        self._close_it = close
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        """Raises `OSError` (EBADF) if it was closed."""
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        """The descriptor may be closed."""
        with self._lock:
            self._users -= 1
            is_last = self._is_closed and not self._users
        if is_last:
            self._close_it(self)

    def close(self) -> None:
        """Close it once the threads that use it now are done. Harmless a second time."""
        with self._lock:
            is_last = not self._is_closed and not self._users
            self._is_closed = True
        if is_last:
            self._close_it(self)
