"""How many names each object has in the undo log, for whoever shows people how many it has."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable


class Named:
    """Nothing is known, and nothing costs anything, until somebody has asked once. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inodes: dict[int, int] | None = None
        """By number of the preimage; None: nobody has asked."""
        self._counts: Counter[int] = Counter()

    def count(self, inode: int, listed: Callable[[], dict[int, int]]) -> int:
        """How many. ``listed`` lists all inode numbers, by number of the preimage."""
        if self._inodes is None:
            with self._lock:
                if self._inodes is None:
                    inodes = listed()
                    self._counts = Counter(inodes.values())
                    self._inodes = inodes
        return self._counts[inode]

    def add(self, number: int, look: Callable[[int], os.stat_result | None]) -> None:
        """An object has got a name there. ``look`` says what it is."""
        if self._inodes is None and not self._lock.locked():  # (whoever lists them now may have come past it)
            return
        with self._lock:
            found = look(number)
            if self._inodes is None or found is None or number in self._inodes:
                return
            self._inodes[number] = found.st_ino
            self._counts[found.st_ino] += 1

    def drop(self, number: int) -> None:
        """The name is gone."""
        if self._inodes is None and not self._lock.locked():
            return
        with self._lock:
            inode = None if self._inodes is None else self._inodes.pop(number, None)
            if inode is not None:
                self._counts[inode] -= 1
                if not self._counts[inode]:
                    del self._counts[inode]
