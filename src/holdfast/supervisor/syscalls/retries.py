"""Calls that are tried again until they can be carried out, since no event says when that is.

Who waits in the kernel to open a named pipe for writing counts as a writer of it already: a reader sees its end only
when all of them have come and gone. Those who wait here are opened one after the other, a few at a time, and the first
may have written and gone before the last one's turn: so a descriptor of the pipe is kept from the first that is opened
until no call waits for that pipe any more (pipe(7), fifo(7)).
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
        """Have a call tried again, which waits for a reader of ``pipe`` or for something else."""
        self._calls.append((call, pipe))
        if pipe is not None:
            self._waiting[pipe] += 1

    def take(self) -> Iterator[PendingCall]:
        """The next few. What has to be tried once more is added anew before the next is taken."""
        for _ in range(min(len(self._calls), _AT_ONCE)):
            call, pipe = self._calls.popleft()
            yield call
            if pipe is not None:
                self._waiting[pipe] -= 1
                if not self._waiting[pipe]:
                    self._release(pipe)

    def note_opened(self, fd: int) -> None:
        """Something was opened for a caller that is not told yet: if others wait to write to it, they are writers of it
        from now on.
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
