"""Watching without any help of the kernel: at every interval, everything may have changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files.dirty import Dirty
from holdfast.files.watch import system

if TYPE_CHECKING:
    from holdfast.files.watch.root import WatchedRoot

DEFAULT_INTERVAL = 10.0


class PollingWatcher:
    """See `holdfast.files.watch.Watcher`. ``fileno`` is readable every ``interval`` seconds."""

    backend = "polling"

    def __init__(self, root: WatchedRoot, interval: float = DEFAULT_INTERVAL) -> None:
        self._root = root
        self._timer = system.timer(interval)
        self.limits = f"changes are not noticed as they happen: the whole tree is looked at every {interval:g} s"

    def fileno(self) -> int:
        """See `Watcher.fileno`."""
        return self._timer

    def drain(self) -> Dirty:
        """Everything, always: whatever has happened before the call is in it."""
        clear_timer(self._timer)
        return Dirty(everything=True, paths=frozenset())

    def refresh(self) -> bool:
        """See `Watcher.refresh`; nothing depends on the rules here."""
        return False

    def close(self) -> None:
        """See `Watcher.close`."""
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1
        self._root.close()


def clear_timer(fd: int) -> None:
    """Make a timer's descriptor not readable until its next tick."""
    try:
        os.read(fd, 8)
    except BlockingIOError:
        pass
