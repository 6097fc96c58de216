"""Whether the listing of a directory that the kernel keeps is what is in it now: asked each time that it is opened.

The kernel keeps the entries that it was told, whichever handle they came by, and goes by the time of modification that
it knows. Here it is exact: it may use what it keeps only if all of that is of one state of the directory, which is
told by both of its times (ctime cannot be set back), and these were no longer the present when its reader began.
Source: ``fs/fuse/readdir.c`` of Linux 6.18.
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
"""File systems where a directory's times change with what is in it, for the process that asks next (linux/magic.h)."""
_MARGIN_NS: Final = 100_000_000
_COARSE_MARGIN_NS: Final = 4_000_000_000
"""Where times seem to be whole seconds."""
_SECOND_NS: Final = 1_000_000_000
_READ_PART: Final = 2
_lock = threading.Lock()


class Stamp(NamedTuple):
    """What says that a directory is as it was."""

    mtime_ns: int
    ctime_ns: int


def drops_when_opened(release: str) -> bool:
    """Whether a kernel (as uname(2) calls it) drops what it keeps where it is not told to keep it: from 6.9 on it did
    not, until that was mended ("fuse: respect FOPEN_KEEP_CACHE on opendir"). Not where its name says no version.
    """
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and not (6, 9) <= (int(numbers[1]), int(numbers[2])) < (6, 14)


def stamp(found: os.stat_result) -> Stamp:
    """That of a directory."""
    return Stamp(found.st_mtime_ns, found.st_ctime_ns)


def is_exact(fd: int) -> bool:
    """Whether stamps say it in the file system that ``fd`` refers to."""
    return file_system(fd) in _EXACT


def is_settled(found: Stamp, now_ns: int) -> bool:
    """Whether a change from ``now_ns`` on (since 1970) is sure to leave another stamp."""
    return found.ctime_ns < now_ns - (_MARGIN_NS if found.ctime_ns % _SECOND_NS else _COARSE_MARGIN_NS)


class CachedListing:
    """What is known of the listing of one directory, for as long as the kernel knows that. From any thread.

    While a directory has one stamp, settled when a reader began, all that readers are told is of that one state.
    """

    __slots__ = ("_handles", "_is_mixed", "_stamp", "_until", "read", "told")

    def __init__(self) -> None:
        self._handles = 0
        self._is_mixed = False
        """Something of another state may be kept, or on its way: until no process has the directory open."""
        self._stamp: Stamp | None = None
        """Of the state that readers were told."""
        self._until = 0.0
        self.told = 0
        """So many entries since a reader began."""
        self.read = 0
        """So many files of it were opened since then: what each is like is asked for again, as it was read (atime)."""

    @staticmethod
    def of(kept: KernelNode) -> CachedListing:
        """That of a directory."""
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
                # (What was told to those who have it open may yet come to be kept.)
                self._is_mixed = self._handles > 0 and (self._is_mixed or self._stamp is not None)
                self._stamp = None
            self._handles += 1
            if is_other or self._is_mixed or now >= self._until:
                return False
            # (To list it anew takes less than to be asked what each of many files is like.)
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
        """A handle is closed, and nothing that it was told is on its way any more."""
        with _lock:
            self._handles -= 1


class LiveListing:
    """`ListingReader` of a directory that is open."""

    __slots__ = ("_cached", "_fd", "_good_for", "may_be_kept")

    def __init__(self, cached: CachedListing, fd: int, good_for: float) -> None:
        """``fd`` is borrowed. What is told is good for so many seconds: for as long is what the kernel was told of each
        entry enough for who looks at it again.
        """
        self._cached = cached
        self._fd = fd
        self._good_for = good_for
        self.may_be_kept = cached.note_opened(stamp(os.fstat(fd)), time.monotonic())
        """Whether the kernel may use what it keeps of it already."""

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
