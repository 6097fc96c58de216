"""Decides, each time a directory is opened, whether the listing cached by the kernel is current.

The kernel caches the entries of any handle, and checks only the time of modification that it knows. This check is
exact: the cache may be used only if all of it is of one state of the directory. Both times identify a state (ctime
cannot be set back), if they were already in the past when the reader began. Source: ``fs/fuse/readdir.c`` of Linux
6.18.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.files.linux.syscalls import file_system

if TYPE_CHECKING:
    from holdfast.bridge.fuse._kernel_node import KernelNode

_EXACT: Final = frozenset(
    (
        0xEF53,  # ext2, ext3, ext4
        0x9123683E,  # btrfs
        0x58465342,  # xfs
        0x01021994,  # tmpfs
        0xF2F52010,  # f2fs
        0x2FC12FC1,  # zfs
        0xCA451A4E,  # bcachefs
        0x794C7630,  # overlayfs
    )
)
"""File systems where a directory's times change with its content, for the next process that asks (linux/magic.h)."""
_MARGIN_NS: Final = 100_000_000
_COARSE_MARGIN_NS: Final = 4_000_000_000
"""Where times seem to be whole seconds."""
_SECOND_NS: Final = 1_000_000_000
_READ_PART: Final = 2
_lock = threading.Lock()


class Stamp(NamedTuple):
    """Identifies a state of a directory."""

    mtime_ns: int
    ctime_ns: int


def drops_when_opened(release: str) -> bool:
    """Whether a kernel (named by uname(2)) drops its cache unless told to keep it: from 6.9 on it did not, until that
    was fixed ("fuse: respect FOPEN_KEEP_CACHE on opendir"). False if the name contains no version.
    """
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and not (6, 9) <= (int(numbers[1]), int(numbers[2])) < (6, 14)


def stamp(found: os.stat_result) -> Stamp:
    """The stamp of a directory."""
    return Stamp(found.st_mtime_ns, found.st_ctime_ns)


def is_exact(fd: int) -> bool:
    """Whether stamps say it in the file system that ``fd`` refers to."""
    return file_system(fd) in _EXACT


def is_settled(found: Stamp, now_ns: int) -> bool:
    """Whether a change from ``now_ns`` on (since 1970) is sure to leave another stamp."""
    return found.ctime_ns < now_ns - (_MARGIN_NS if found.ctime_ns % _SECOND_NS else _COARSE_MARGIN_NS)


class CachedListing:
    """The state of the listing of one directory, while the kernel knows the directory. For any thread.

    While a directory has one stamp, which was settled when a reader began, readers see only that state.
    """

    __slots__ = ("_handles", "_is_mixed", "_stamp", "_until", "read", "told")

    def __init__(self) -> None:
        self._handles = 0
        self._is_mixed = False
        """Entries of another state may be cached, or on their way, until no process has the directory open."""
        self._stamp: Stamp | None = None
        """Of the state that readers were told."""
        self._until = 0.0
        self.told = 0
        """Number of entries told since a reader began."""
        self.read = 0
        """Number of its files opened since then: the kernel asks again for attributes of each, now read (atime)."""

    @staticmethod
    def of(kept: KernelNode) -> CachedListing:
        """The cached listing of a directory."""
        with _lock:
            if kept.listed is None:
                kept.listed = CachedListing()
            return kept.listed

    def note_opened(self, found: Stamp, now: float) -> bool:
        """The directory has one more handle, and ``found`` is its stamp: whether what the kernel keeps may be used for
        that, and is worth it. If not, the kernel drops it.
        """
        with _lock:
            is_other = found != self._stamp or (self._is_mixed and not self._handles)
            if is_other:
                # (Entries told to processes that have it open may still enter the cache.)
                self._is_mixed = self._handles > 0 and (self._is_mixed or self._stamp is not None)
                self._stamp = None
            self._handles += 1
            if is_other or self._is_mixed or now >= self._until:
                return False
            # (A new listing is cheaper than a request for the attributes of each of many files.)
            return self.read * _READ_PART < max(self.told, _READ_PART)

    def note_reading(self, found: Stamp, until: float, *, is_settled: bool) -> None:
        """A handle is about to read from the start, what will be good for use ``until`` then."""
        with _lock:
            if self._stamp is None and is_settled:
                self._stamp = found
            if found == self._stamp:
                self._until, self.told, self.read = until, 0, 0
            else:
                self._is_mixed = True

    def note_closed(self) -> None:
        """A handle is closed, so none of its replies is on its way any more."""
        with _lock:
            self._handles -= 1


class LiveListing:
    """`ListingReader` of a directory that is open."""

    __slots__ = ("_cached", "_fd", "_good_for", "may_be_kept")

    def __init__(self, cached: CachedListing, fd: int, good_for: float) -> None:
        """``fd`` is borrowed. Replies are valid for ``good_for`` seconds: for that time the kernel answers from its
        attributes of each entry when a process looks at it again.
        """
        self._cached = cached
        self._fd = fd
        self._good_for = good_for
        self.may_be_kept = cached.note_opened(stamp(os.fstat(fd)), time.monotonic())
        """Whether the kernel may use its cached listing."""

    def begin(self) -> None:
        """See `ListingReader`."""
        found = stamp(os.fstat(self._fd))
        until = time.monotonic() + self._good_for
        self._cached.note_reading(found, until, is_settled=is_settled(found, time.time_ns()))

    def note_told(self, count: int) -> None:
        """See `ListingReader`."""
        self._cached.told += count

    def close(self) -> None:
        """See `ListingReader`."""
        self._cached.note_closed()
