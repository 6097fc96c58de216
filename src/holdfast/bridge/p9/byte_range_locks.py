"""Locks on ranges of files, as fcntl(2) has them: between the clients of one file system, and known to them alone."""

from __future__ import annotations

import threading
from fcntl import F_UNLCK, F_WRLCK
from typing import Final, NamedTuple

MOST_RANGES: Final = 1 << 10
"""Of one file."""


class LockOwner(NamedTuple):
    """A process of a client. Its own ranges are never in each other's way."""

    connection: object
    process: int
    client: bytes


class HeldRange(NamedTuple):
    """A range that is locked. ``end`` is included."""

    kind: int
    start: int
    end: int
    owner: LockOwner
    holder: object
    """By which it was locked, and until whose end."""

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a byte of the range is in this one."""
        return self.start <= end and start <= self.end


class ByteRangeLocks:
    """The locks of one file system, by node. Safe for several threads."""

    def __init__(self) -> None:
        self._held: dict[int, list[HeldRange]] = {}
        self._lock = threading.Lock()

    def conflict(self, node: int, wanted: HeldRange) -> HeldRange | None:
        """The lock that conflicts with a range."""
        for held in self._held.get(node, ()):
            is_shared = F_WRLCK not in (held.kind, wanted.kind)
            if held.owner != wanted.owner and not is_shared and held.overlaps(wanted.start, wanted.end):
                return held
        return None

    def set(self, node: int, wanted: HeldRange) -> bool:
        """Lock a range in place of its owner's locks there, or unlock it; returns whether no lock conflicted.

        Raises `OverflowError` where the file has too many ranges.
        """
        with self._lock:
            if wanted.kind != F_UNLCK and self.conflict(node, wanted) is not None:
                return False
            ranges: list[HeldRange] = [] if wanted.kind == F_UNLCK else [wanted]
            for held in self._held.get(node, ()):
                if held.owner != wanted.owner or not held.overlaps(wanted.start, wanted.end):
                    ranges.append(held)
                    continue
                if held.start < wanted.start:
                    ranges.append(held._replace(end=wanted.start - 1))
                if held.end > wanted.end:
                    ranges.append(held._replace(start=wanted.end + 1))
            if len(ranges) > MOST_RANGES:
                raise OverflowError
            self._keep(node, ranges)
            return True

    def release(self, node: int, holder: object) -> None:
        """Unlock all ranges of ``holder``."""
        with self._lock:
            if node in self._held:
                self._keep(node, [held for held in self._held[node] if held.holder is not holder])

    def _keep(self, node: int, ranges: list[HeldRange]) -> None:
        if ranges:
            self._held[node] = ranges
        else:
            self._held.pop(node, None)
