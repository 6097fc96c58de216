"""Calls that are tried again until they succeed, since no event announces that.

A process that waits in the kernel to open a named pipe for writing already counts as its writer: a reader sees the end
of data only after all of them have closed it. Calls that wait here are served a few at a time, and the first may have
written and closed before the last one's turn. So a descriptor of the pipe is kept from the first opening until no call
waits for that pipe any more (pipe(7), fifo(7)).
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.supervisor.syscalls.pending_call import PendingCall

Pipe: TypeAlias = "tuple[int, int]"
"""Device and inode of a named pipe."""

_AT_ONCE: Final = 4
"""How many are tried at once: others wait meanwhile."""
_KEPT: Final = 64
"""Of how many pipes a descriptor is kept at a time: a tree must not use up what the keeper may have open."""


class Retries:
    """The calls of one tree that wait in that way. For one thread."""

    def __init__(self) -> None:
        self._calls: deque[tuple[PendingCall, Pipe | None]] = deque()
        self._waiting: Counter[Pipe] = Counter()
        self._kept: dict[Pipe, int] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: PendingCall, pipe: Pipe | None) -> None:
        """Queue a call that waits for a reader of ``pipe`` or for another event."""
        self._calls.append((call, pipe))
        if pipe is not None:
            self._waiting[pipe] += 1

    def take(self) -> Iterator[PendingCall]:
        """The next few. A call that must be tried once more is added again before the next is taken."""
        for _ in range(min(len(self._calls), _AT_ONCE)):
            call, pipe = self._calls.popleft()
            yield call
            if pipe is not None:
                self._waiting[pipe] -= 1
                if not self._waiting[pipe]:
                    self._release(pipe)

    def note_opened(self, fd: int) -> None:
        """A file was opened for a caller that has no reply yet: if others wait to write to it, they count as its
        writers from now on.
        """
        if not self._waiting:
            return
        found = os.fstat(fd)
        pipe = (found.st_dev, found.st_ino)
        if (
            not stat.S_ISFIFO(found.st_mode)
            or not self._waiting[pipe]
            or pipe in self._kept
            or len(self._kept) >= _KEPT
        ):
            return
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            self._kept[pipe] = os.dup(fd)

    def _release(self, pipe: Pipe) -> None:
        del self._waiting[pipe]
        kept = self._kept.pop(pipe, None)
        if kept is not None:
            os.close(kept)

    def close(self) -> list[PendingCall]:
        """Forget them all, and say which they were."""
        calls = [call for call, _ in self._calls]
        self._calls.clear()
        for pipe in list(self._waiting):
            self._release(pipe)
        return calls
