"""Watching without any help of the kernel: at every interval the whole tree is examined."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from blake3 import blake3

from holdfast.files.tree import DirtyPaths
from holdfast.files.watch import event_syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.files.watch.watched_root import WatchedRoot

DEFAULT_INTERVAL = 10.0
_REST = 9
"""The pause after each look at the tree, as a multiple of its length: a huge tree costs a tenth of a core."""


class TreeComparison:
    """Detects changes by the metadata of all entries of a tree. For one thread.

    It misses changes without an effect on metadata (a mapping that stays open, a second write within one tick of the
    clock).
    """

    def __init__(self, root: bytes, excluded: Callable[[bytes], bool]) -> None:
        """``excluded`` as `holdfast.files.watch.open_watcher` has it."""
        self._root = root
        self._excluded = excluded
        self._digest = b""
        self._rest_until = 0.0

    def changed(self) -> bool:
        """True if the tree is not as the last call found it, and at the first call. False also within the rest that
        follows a long look: the call after that tells.
        """
        begun = time.monotonic()
        if begun < self._rest_until:
            return False
        before, self._digest = self._digest, self._walk()
        ended = time.monotonic()
        self._rest_until = ended + _REST * (ended - begun)
        return self._digest != before

    def _walk(self) -> bytes:
        state = blake3()
        todo = [b""]
        while todo:
            path = todo.pop()
            found: list[str] = []
            below: list[bytes] = []
            try:
                with os.scandir(os.path.join(self._root, path)) as entries:
                    for entry in entries:
                        name = os.fsencode(entry.name)
                        inner = path + b"/" + name if path else name
                        if entry.is_dir(follow_symlinks=False):
                            if not self._excluded(inner):
                                below.append(inner)
                                found.append(f"{entry.name}/")
                            continue
                        info = entry.stat(follow_symlinks=False)
                        about = (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino, info.st_mode)
                        found.append(f"{entry.name}/{about}")
            except OSError as error:
                found.append(f"/{error.errno}")
            # In no order that a file system promises.
            state.update(os.fsencode("\0".join((os.fsdecode(path), *sorted(found), "\0"))))
            todo += sorted(below)
        return state.digest()


class PollingWatcher:
    """See `holdfast.files.watch.Watcher`. ``fileno`` is readable every ``interval`` seconds."""

    backend = "polling"

    def __init__(
        self, root: WatchedRoot, excluded: Callable[[bytes], bool], interval: float = DEFAULT_INTERVAL
    ) -> None:
        self._root = root
        self._look = TreeComparison(root.path, excluded)
        self._first = True
        self._timer = event_syscalls.timer(interval)
        self.limits = f"changes are not noticed at once: Holdfast scans the whole tree every {interval:g} s"

    def fileno(self) -> int:
        """See `Watcher.fileno`."""
        return self._timer

    def drain(self) -> DirtyPaths:
        """Always everything, which includes all changes before the call. It is news if a look at the tree, which is due
        at every interval, found a change.
        """
        due = clear_timer(self._timer) or self._first
        self._first = False
        return DirtyPaths(everything=True, paths=frozenset(), news=due and self._look.changed())

    def skim(self) -> None:
        """See `Watcher.skim`. No event says here which process it was."""

    def refresh(self) -> bool:
        """See `Watcher.refresh`; the next look asks ``excluded`` anew."""
        return False

    def close(self) -> None:
        """See `Watcher.close`."""
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1
        self._root.close()


def clear_timer(fd: int) -> bool:
    """Make a timer's descriptor not readable until its next tick; True if there was one since the last call."""
    try:
        return bool(os.read(fd, 8))
    except BlockingIOError:
        return False
