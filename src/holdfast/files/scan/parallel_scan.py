"""A second process that walks the same tree from its other end, where that saves time.

Looking at files is the kernel's work, and one process keeps one core busy with it: two, at either end of the tree until
they meet, take little more than half the time. The scout only looks. What it finds to be exactly as the index has it,
it marks; all else, and whatever it does not come to, is left to the scanner, who walks everything that is not marked.
What it finds changed it marks as well: the scanner can take that up while the scout walks on. So the scout may fail or
be killed at any moment: the scan is then slower, never wrong.

Of the ignore rules it knows nothing. A directory that it has marked is what its record says, under the rules that the
record names; whether those are still in force, the scanner knows.

Most of a short command's time goes into loading its modules and opening the store. Meanwhile a scout can be *ahead*:
sent out by what the index's file holds, before the command has read that. The first scan takes it over, if it is about
the same tree and the same index by then (`send_ahead`, `take_over`).
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
"""From how many known files on a scout is sent out: making a process takes as long as looking at a few hundred."""
_MIN_FILE_BYTES = 57
"""What a file takes in the index's file, at the least: its columns, its flag, its hash."""
_MIN_DIRECTORY_BYTES = 12
"""What a directory takes there, at the least: three lengths."""

_MAX_DEPTH = 48
"""How deep a scout goes: it has a descriptor open for each level."""
SEEN = 1
LINKED = 3
"""Seen, and a file in it has several names."""
_UNDER_WAY = 2
_CHANGED = 4

_ABOUT = Struct("=16sQQ")
"""What a scout ahead goes by, behind its marks: the index's checksum, the root's device and inode."""
_MOST_AHEAD = 1.0
"""Seconds after which nobody takes over a scout that is ahead: what it saw first may say too little of now, as when its
sender has had to wait for somebody."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOWHERE: frozenset[tuple[int, int]] = frozenset()


class Scout:
    """A scout that is under way: made by `send` or `take_over`, and to be ended by `recall`."""

    def __init__(self, numbers: Mapping[bytes, int], marks: mmap.mmap, process: int) -> None:
        self._numbers = numbers
        self._marks = marks
        self._process = process

    def has_seen(self, path: bytes) -> int:
        """`SEEN` or `LINKED` if since it was sent the directory ``path`` was as the index had it then.

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

    def changed(self) -> list[bytes]:
        """The directories that it has found not to be as the index had them, until now, and none has come to yet."""
        marks = self._marks[: len(self._numbers)]
        return [path for path, mark in zip(self._numbers, marks, strict=True) if mark == _CHANGED]

    def is_same(self, path: bytes) -> bool:
        """As `has_seen`, but that the scout does not learn of it."""
        number = self._numbers.get(path)
        return number is not None and self._marks[number] in (SEEN, LINKED)

    def recall(self) -> None:
        """End the process."""
        forked_worker.end(self._process)
        self._marks.close()


def send(index: StatIndex, root_fd: int, never: frozenset[tuple[int, int]]) -> Scout | None:
    """Send a scout through the tree; None where that does not pay or is not possible. ``never`` are directories that it
    leaves alone, by device and inode.
    """
    known = sum(len(record.values) for record in index.directories.values()) // (HASH_BYTES + 1)
    if known < MIN_FILES or not forked_worker.pays():
        return None
    numbers = _numbers(index)
    marks = _shared(len(numbers))
    if marks is None:
        return None
    parent = os.getpid()
    process = forked_worker.start(lambda: _Walk(index, numbers, marks, parent, never).root(root_fd))
    if process is None:
        marks.close()
        return None
    return Scout(numbers, marks, process)


class _Ahead(NamedTuple):
    """A scout that nobody has taken over yet."""

    marks: mmap.mmap
    process: int
    sent_at: float


_ahead: _Ahead | None = None
"""This process's one."""


def send_ahead(root: bytes, index: bytes) -> None:
    """Send a scout through the tree at ``root``, by what the file ``index`` holds now, for the first scan of this
    process; not where that does not pay or is not possible. Whoever calls this calls `recall_ahead` in the end.
    """
    global _ahead  # noqa: PLW0603 - a process has one first scan
    try:
        known = os.stat(index, follow_symlinks=False).st_size
    except OSError:
        return
    if _ahead is not None or known < MIN_FILES * _MIN_FILE_BYTES or not forked_worker.pays():
        return
    marks = _shared(known // _MIN_DIRECTORY_BYTES + _ABOUT.size)
    if marks is None:
        return
    parent = os.getpid()
    process = forked_worker.start(lambda: _walk_ahead(root, index, marks, parent))
    if process is None:
        marks.close()
        return
    _ahead = _Ahead(marks, process, time.monotonic())


def take_over(index: StatIndex, root_fd: int) -> Scout | None:
    """The scout that this process has sent ahead; None if there is none, or it went by another index or through another
    tree, or has not begun yet, or has been gone for long: then it is recalled.
    """
    ahead = _ahead
    if ahead is None:
        return None
    same = not index.changed and ahead.marks[-_ABOUT.size :] == _about(index, root_fd)
    if not same or time.monotonic() - ahead.sent_at > _MOST_AHEAD:
        recall_ahead()
        return None
    _forget_ahead()
    return Scout(_numbers(index), ahead.marks, ahead.process)


def recall_ahead() -> None:
    """End the scout that is ahead, if there is one that nobody has taken over."""
    ahead = _ahead
    if ahead is not None:
        _forget_ahead()
        forked_worker.end(ahead.process)
        ahead.marks.close()


def _shared(size: int) -> mmap.mmap | None:
    """Memory that is shared with a copy of this process; None if there is not so much, as where a file that was damaged
    claims to be of terabytes.
    """
    import mmap

    try:
        return mmap.mmap(-1, size)
    except (OSError, OverflowError):
        return None


def _forget_ahead() -> None:
    global _ahead  # noqa: PLW0603 - see `send_ahead`
    _ahead = None


def _walk_ahead(root: bytes, index_file: bytes, marks: mmap.mmap, parent: int) -> None:
    """What a scout does that is ahead, in its own process."""
    from holdfast.files.index.stat_index import load

    index = load(index_file)
    numbers = _numbers(index)
    if not 0 < len(numbers) <= len(marks) - _ABOUT.size:
        return  # another index than the one whose size was looked at, or none
    try:
        fd = os.open(root, _DIRECTORY)
    except OSError:
        return
    marks[-_ABOUT.size :] = _about(index, fd)
    _Walk(index, numbers, marks, parent, _NOWHERE).root(fd)


def _about(index: StatIndex, root_fd: int) -> bytes:
    root = os.fstat(root_fd)
    return _ABOUT.pack(index.checksum, root.st_dev, root.st_ino)


def _numbers(index: StatIndex) -> dict[bytes, int]:
    """The place of each directory's mark: the same for all who have loaded the same index."""
    return {path: number for number, path in enumerate(index.directories)}


class _Walk:
    """What the scout does, in its own process."""

    def __init__(
        self,
        index: StatIndex,
        numbers: Mapping[bytes, int],
        marks: mmap.mmap,
        parent: int,
        never: frozenset[tuple[int, int]],
    ) -> None:
        from holdfast.files.scan._directory_listing import Listing

        self._known = index.directories
        self._numbers = numbers
        self._marks = marks
        self._parent = parent
        self._never = never
        self._listing = Listing

    def root(self, fd: int) -> None:
        """Walk the tree. Its root is opened anew: a copied descriptor would share its place in it."""
        self._directory(os.open(b".", _DIRECTORY, dir_fd=fd), b"", 0)

    def _directory(self, fd: int, path: bytes, depth: int) -> bool:
        """Walk the directory ``path``, open as ``fd``, last things first; False if the scanner has come to it already,
        so that all that comes before it is done.
        """
        try:
            number = self._numbers[path]
            met = self._marks[number] == _UNDER_WAY
            listing = self._listing(self._known[path])
            listing.fill(fd)
            if not met:
                same = listing.is_as_known()
                self._marks[number] = _CHANGED if not same else LINKED if listing.linked else SEEN
            if depth < _MAX_DEPTH:
                for name in reversed(listing.directories()):
                    inner = path + b"/" + name if path else name
                    if inner in self._numbers and not self._enter(fd, name, inner, depth + 1):
                        return False
        except OSError:
            return True  # the scanner will hear it, too
        finally:
            os.close(fd)
        return not met and os.getppid() == self._parent

    def _enter(self, above: int, name: bytes, path: bytes, depth: int) -> bool:
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except OSError:
            return True  # likewise
        if self._never:
            about = os.fstat(fd)
            if (about.st_dev, about.st_ino) in self._never:
                os.close(fd)
                return True
        return self._directory(fd, path, depth)
