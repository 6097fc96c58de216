"""A second process that walks the same tree from its other end, where that saves time.

Looking at files is the kernel's work, and one process keeps one core busy with it: two, at either end of the tree until
they meet, take little more than half the time. The scout only looks. What it finds to be exactly as the index has it,
it marks; all else, and whatever it does not come to, is left to the scanner, who walks everything that is not marked.
So the scout may fail or be killed at any moment: the scan is then slower, never wrong.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.files import forking
from holdfast.model.ids import HASH_BYTES

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from holdfast.files.ignore import DirectoryRules
    from holdfast.files.index import StatIndex

    Open = Callable[[int, bytes], int]
    """Opens the directory of a path from its parent's descriptor (the root from its own); -1 if it is not to be walked,
    or cannot be."""
    Look = Callable[[int, bytes, DirectoryRules], tuple[int, DirectoryRules, Sequence[bytes]]]
    """`SEEN` or `LINKED` if the directory of a path, given open, is as the index has it, else 0; its rules, given those
    of its parent; the names of the directories in it, in the order in which the scanner walks them. May raise
    `OSError`."""

MIN_FILES = 2000
"""From how many known files on a scout is sent out: making a process takes as long as looking at a few hundred."""

_MAX_DEPTH = 48
"""How deep a scout goes: it has a descriptor open for each level."""
SEEN = 1
LINKED = 3
"""Seen, and a file in it has several names."""
_UNDER_WAY = 2


class Scout:
    """A scout that is under way: made by `send`, and to be ended by `recall`."""

    def __init__(self, numbers: dict[bytes, int], marks: mmap.mmap, process: int) -> None:
        self._numbers = numbers
        self._marks = marks
        self._process = process

    def has_seen(self, path: bytes) -> int:
        """`SEEN` or `LINKED` if since `send` the directory ``path`` was as the index had it then, under the rules that
        it names.

        After 0 the caller looks at it, and the scout leaves it and what comes before it alone.
        """
        number = self._numbers.get(path)
        if number is None:
            return 0
        mark = self._marks[number]
        if mark in (SEEN, LINKED):
            return mark
        self._marks[number] = _UNDER_WAY
        return 0

    def recall(self) -> None:
        """End the process."""
        forking.end(self._process)
        self._marks.close()


def send(index: StatIndex, root_fd: int, outer: DirectoryRules, open_inner: Open, look: Look) -> Scout | None:
    """Send a scout through the tree; None where that does not pay or is not possible.

    ``open_inner`` and ``look`` are called in the other process: they must not change or use anything outside of it but
    the tree, which they may read.
    """
    if not _pays(index):
        return None
    import mmap

    numbers = {path: number for number, path in enumerate(index.directories)}
    marks = mmap.mmap(-1, len(numbers))
    parent = os.getpid()
    process = forking.start(
        lambda: _Walk(numbers, marks, parent, open_inner, look).directory(open_inner(root_fd, b""), b"", outer, 0)
    )
    if process is None:
        marks.close()
        return None
    return Scout(numbers, marks, process)


def _pays(index: StatIndex) -> bool:
    files = sum(len(record.values) for record in index.directories.values())
    return files >= MIN_FILES * (HASH_BYTES + 1) and forking.pays()


class _Walk:
    """What the scout does, in its own process."""

    def __init__(self, numbers: dict[bytes, int], marks: mmap.mmap, parent: int, open_inner: Open, look: Look) -> None:
        self._numbers = numbers
        self._marks = marks
        self._parent = parent
        self._open = open_inner
        self._look = look

    def directory(self, fd: int, path: bytes, above: DirectoryRules, depth: int) -> bool:
        """Walk the directory ``path``, open as ``fd``, last things first; False if the scanner has come to it already,
        so that all that comes before it is done.
        """
        number = self._numbers.get(path)
        if fd < 0 or number is None:
            return True
        try:
            met = self._marks[number] == _UNDER_WAY
            mark, rules, names = self._look(fd, path, above)
            if mark and not met:
                self._marks[number] = mark
            if depth < _MAX_DEPTH:
                for name in reversed(names):
                    inner = path + b"/" + name if path else name
                    if not self.directory(self._open(fd, inner), inner, rules, depth + 1):
                        return False
        except OSError:
            return True  # the scanner will hear it, too
        finally:
            os.close(fd)
        return not met and os.getppid() == self._parent
