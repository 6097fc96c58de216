"""A second process that scans the same tree from its other end, where that saves time.

A scan mostly waits for the kernel's work on directories and files, and one process keeps one core busy with it. Two
that walk from both ends of the tree until they meet take little more than half the time.

The second process reads no content and decides nothing. It compares each directory with the stat index, and sets a mark
in shared memory: unchanged or changed. The scanner takes over the record of an unchanged directory, scans the changed
ones first, and then all without a mark. So the second process can fail or be killed at any moment: the scan is then
slower, never wrong.

It does not know the ignore rules either. A mark means that a directory equals its record, under the rules named in the
record. The scanner checks that those rules are still in force.

A short command spends most of its time on loading modules and opening the store. So it starts the second process first,
with only the index's file (`start_early`). The first scan of the command adopts it if the index and the root are the
same (`adopt_early`). Its marks up to then are older than the scan. So it must end before the command changes the tree
(`end_early`): `holdfast.files.local_tree.LocalTree` does that for its own changes, and
`holdfast.engine.opening.undo_log.open_service` for those of the undo log, which another process may make.
"""

from __future__ import annotations

import os
import time
from struct import Struct

from holdfast.files.linux import forked_worker
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import HASH_BYTES

if TYPE_CHECKING:
    import mmap
    from collections.abc import Mapping

    from holdfast.files.index.stat_index import StatIndex

MIN_FILES = 2000
"""How many files the index must have for a second process: to make one takes as long as to scan a few hundred files."""
_MIN_FILE_BYTES = 57
"""The least that a file takes in the index's file: its columns, its flag, its hash."""
_MIN_DIRECTORY_BYTES = 12
"""The least that a directory takes there: three lengths."""

_MAX_DEPTH = 48
"""How deep the second process descends: it keeps a descriptor open for each level."""

# The marks: a byte of shared memory for each directory of the index. Either process only ever stores a whole byte, so
# neither needs a lock. Where both store at once, one mark is lost, and the scanner scans that directory itself.
UNCHANGED = 1
UNCHANGED_WITH_LINKS = 3
"""Unchanged, and a file in it has several names."""
_CLAIMED = 2
"""The scanner has come to the directory, and scans it itself."""
_CHANGED = 4

_IDENTITY = Struct("=16sQQ")
"""The tree and index of an early process, stored after its marks: the index's checksum, the root's device and inode
number. It stores them first; until then they are zeros, which match nothing.
"""
_MAX_AGE = 1.0
"""Seconds after which an early process is not adopted. Its first marks are then too old, as when the command has had to
wait for a lock."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NONE: frozenset[tuple[int, int]] = frozenset()


class SecondScanner:
    """The second process, as the scanner sees it. Made by `start` or `adopt_early`; the scanner calls `end`."""

    def __init__(self, numbers: Mapping[bytes, int], marks: mmap.mmap, process: int) -> None:
        self._numbers = numbers
        self._marks = marks
        self._process = process

    def claim(self, path: bytes) -> int:
        """`UNCHANGED` or `UNCHANGED_WITH_LINKS` if the second process has found the directory ``path`` so.

        Otherwise 0: the caller scans the directory, and the second process leaves it and all that comes before it
        alone.
        """
        number = self._numbers.get(path)
        if number is None:
            return 0
        mark = self._marks[number]
        if mark in (UNCHANGED, UNCHANGED_WITH_LINKS):
            return mark
        self._marks[number] = _CLAIMED
        return 0

    def is_unchanged(self, path: bytes) -> bool:
        """Whether the second process has found the directory ``path`` unchanged. Claims nothing."""
        number = self._numbers.get(path)
        return number is not None and self._marks[number] in (UNCHANGED, UNCHANGED_WITH_LINKS)

    def changed_directories(self) -> list[bytes]:
        """The directories that the second process has found changed so far, and the scanner has not claimed."""
        marks = self._marks[: len(self._numbers)]
        return [path for path, mark in zip(self._numbers, marks, strict=True) if mark == _CHANGED]

    def end(self) -> None:
        """End the process."""
        forked_worker.end(self._process)
        self._marks.close()


def start(index: StatIndex, root_fd: int, reserved: frozenset[tuple[int, int]]) -> SecondScanner | None:
    """Start a second process on the tree below ``root_fd``; None where it would save no time, or cannot be made.

    It leaves the ``reserved`` directories alone, each given by its device and inode number.
    """
    known = sum(len(record.values) for record in index.directories.values()) // (HASH_BYTES + 1)
    if known < MIN_FILES or not forked_worker.is_worthwhile():
        return None
    numbers = _mark_numbers(index)
    marks = _shared_memory(len(numbers))
    if marks is None:
        return None
    parent = os.getpid()
    process = forked_worker.start(lambda: _BackwardScan(index, numbers, marks, parent, reserved).scan(root_fd))
    if process is None:
        marks.close()
        return None
    return SecondScanner(numbers, marks, process)


class _EarlyProcess(NamedTuple):
    """A second process that no scan has adopted yet."""

    marks: mmap.mmap
    process: int
    started_at: float


_early: _EarlyProcess | None = None
"""The one of this process."""


def start_early(root: bytes, index: bytes) -> None:
    """Start a second process on the tree at ``root``, for the first scan of this process; none is started where
    it would save no time, or cannot be made. It compares the tree with the present file ``index``.

    The caller must call `end_early` at the end.
    """
    global _early  # noqa: PLW0603 - a process has one first scan
    try:
        known = os.stat(index, follow_symlinks=False).st_size
    except OSError:
        return
    if _early is not None or known < MIN_FILES * _MIN_FILE_BYTES or not forked_worker.is_worthwhile():
        return
    marks = _shared_memory(known // _MIN_DIRECTORY_BYTES + _IDENTITY.size)
    if marks is None:
        return
    parent = os.getpid()
    process = forked_worker.start(lambda: _scan_early(root, index, marks, parent))
    if process is None:
        marks.close()
        return
    _early = _EarlyProcess(marks, process, time.monotonic())


def adopt_early(index: StatIndex, root_fd: int) -> SecondScanner | None:
    """The process of `start_early`, for the scan that begins now. None if there is none, or if it compares another tree
    or index, or has not begun yet, or is too old: then it is ended.
    """
    global _early  # noqa: PLW0603 - see `start_early`
    early = _early
    if early is None:
        return None
    same = not index.changed and early.marks[-_IDENTITY.size :] == _identity(index, root_fd)
    if not same or time.monotonic() - early.started_at > _MAX_AGE:
        end_early()
        return None
    _early = None
    return SecondScanner(_mark_numbers(index), early.marks, early.process)


def end_early() -> None:
    """End the process of `start_early`, if there is one that no scan has adopted."""
    global _early
    early, _early = _early, None
    if early is not None:
        forked_worker.end(early.process)
        early.marks.close()


def _shared_memory(size: int) -> mmap.mmap | None:
    """Memory that this process shares with its copies; None if there is not enough, as where a damaged file claims
    terabytes.
    """
    import mmap

    try:
        return mmap.mmap(-1, size)
    except (OSError, OverflowError):
        return None


def _scan_early(root: bytes, index_file: bytes, marks: mmap.mmap, parent: int) -> None:
    """The work of the early process."""
    from holdfast.files.index.stat_index import load

    index = load(index_file)
    numbers = _mark_numbers(index)
    if not 0 < len(numbers) <= len(marks) - _IDENTITY.size:
        return  # there is no index, or it has grown since `start_early` asked for its size
    try:
        fd = os.open(root, _DIRECTORY)
    except OSError:
        return
    marks[-_IDENTITY.size :] = _identity(index, fd)
    _BackwardScan(index, numbers, marks, parent, _NONE).scan(fd)


def _identity(index: StatIndex, root_fd: int) -> bytes:
    root = os.fstat(root_fd)
    return _IDENTITY.pack(index.checksum, root.st_dev, root.st_ino)


def _mark_numbers(index: StatIndex) -> dict[bytes, int]:
    """Which mark belongs to which directory: the same in every process that has loaded the same index."""
    return {path: number for number, path in enumerate(index.directories)}


class _BackwardScan:
    """The work of the second process."""

    def __init__(
        self,
        index: StatIndex,
        numbers: Mapping[bytes, int],
        marks: mmap.mmap,
        parent: int,
        reserved: frozenset[tuple[int, int]],
    ) -> None:
        from holdfast.files.scan._directory_listing import DirectoryListing

        self._known = index.directories
        self._numbers = numbers
        self._marks = marks
        self._parent = parent
        self._reserved = reserved
        self._listing = DirectoryListing

    def scan(self, root_fd: int) -> None:
        """Walk the tree, the last directories first."""
        # Opened anew: the copy of a descriptor shares its offset, and so the position of the listing, with the scanner.
        self._scan_directory(os.open(b".", _DIRECTORY, dir_fd=root_fd), b"", 0)

    def _scan_directory(self, fd: int, path: bytes, depth: int) -> bool:
        """Mark the directory ``path``, open as ``fd``, and those below it. False if nothing is left to do: the scanner
        has claimed the directory, and with it all that comes before, or has ended.
        """
        try:
            number = self._numbers[path]
            claimed = self._marks[number] == _CLAIMED
            listing = self._listing(self._known[path])
            listing.fill(fd)
            if not claimed:
                unchanged = UNCHANGED_WITH_LINKS if listing.linked else UNCHANGED
                self._marks[number] = unchanged if listing.is_as_known() else _CHANGED
            if depth < _MAX_DEPTH:
                for name in reversed(listing.directories()):
                    inner = path + b"/" + name if path else name
                    if inner in self._numbers and not self._descend(fd, name, inner, depth + 1):
                        return False
        except OSError:
            return True  # the scanner meets the same error, and reports it
        finally:
            os.close(fd)
        return not claimed and os.getppid() == self._parent

    def _descend(self, above: int, name: bytes, path: bytes, depth: int) -> bool:
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError:
            return True  # likewise
        if self._reserved:
            about = os.fstat(fd)
            if (about.st_dev, about.st_ino) in self._reserved:
                os.close(fd)
                return True
        return self._scan_directory(fd, path, depth)
