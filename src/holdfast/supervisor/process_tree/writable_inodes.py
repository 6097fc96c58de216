"""Which files the processes of a tree may write to without another call: through what they have open, or mapped.

What lies in a socket, on its way to another process, is not seen; nor what a process has that does not let itself be
looked at. A thread may have a table of open files of its own, and go on when the first one of its process has ended.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.supervisor.process_tree.kcmp import OPEN_FILES, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INODE_FIELD = 4
"""Of a line in ``/proc/PID/maps``: addresses, permissions, offset, device, inode, path (proc_pid_maps(5))."""
_A_THREAD = 10
"""What it takes to find a thread's tables and children, as so many open files."""


def inodes_held_for_writing(tgids: Iterable[int], most: int | None = None) -> frozenset[int] | None:
    """The inode numbers of the files that these processes, and all below them, may write to. From any thread.

    None if that would be to look at more than ``most`` open files and mappings.
    """
    room = _Room(most)
    found: set[int] = set()
    tables: list[bytes] = []
    seen: set[int] = set()
    waiting = list(tgids)
    try:
        while waiting:
            tgid = waiting.pop()
            if tgid in seen:
                continue
            seen.add(tgid)
            threads = _threads(tgid)
            room.take(_A_THREAD * len(threads))
            tables += _tables(threads)
            for thread in threads:
                with suppress(OSError):  # it has ended, or may not be looked at; so below
                    waiting += _children(tgid, thread)
        # (How many files they have open is asked of all first: what is too much for us is nearly nothing to find out.)
        for table in tables:
            with suppress(OSError):
                room.take(os.stat(table).st_size)
        for table in tables:
            with suppress(OSError):
                found.update(_opened(table, room))
        for tgid in seen:
            found.update(_mapped(tgid, room))
    except _TooMuchError:
        return None
    return frozenset(found)


class _TooMuchError(Exception):
    """There is no room for what is to be looked at."""


class _Room:
    def __init__(self, most: int | None) -> None:
        self._left = most

    def take(self, number: int) -> None:
        if self._left is not None:
            self._left -= number
            if self._left < 0:
                raise _TooMuchError


def _threads(tgid: int) -> list[int]:
    try:
        return list(map(int, os.listdir(b"/proc/%d/task" % tgid)))
    except OSError:
        return []


def _tables(threads: Iterable[int]) -> Iterator[bytes]:
    """Where the open files of each are listed; a table that several have in common hardly ever twice."""
    last = 0
    for thread in threads:
        if not last or not share(thread, last, OPEN_FILES):
            yield b"/proc/%d/fd" % thread
            last = thread


def _opened(table: bytes, room: _Room) -> Iterator[int]:
    names = os.listdir(table)
    if not os.stat(table).st_size:  # before Linux 6.2, nobody has said how many there are
        room.take(len(names))
    for name in names:
        path = b"%b/%b" % (table, name)
        try:
            # (The mode of the link says how the file is open.)
            if os.lstat(path).st_mode & stat.S_IWUSR and stat.S_ISREG((found := os.stat(path)).st_mode):
                yield found.st_ino
        except OSError:
            continue  # it was closed


def _mapped(tgid: int, room: _Room) -> Iterator[int]:
    for thread in _threads(tgid):
        some = False
        # (One that may only be read now may be made writable, if the descriptor was.)
        with suppress(OSError), open(b"/proc/%d/maps" % thread, "rb") as lines:
            for line in lines:
                some = True
                room.take(1)
                fields = line.split(None, _INODE_FIELD + 1)
                if fields[1].endswith(b"s") and (inode := int(fields[_INODE_FIELD])):
                    yield inode
        if some:
            return  # all have the same memory; one that has ended, none


def _children(tgid: int, thread: int) -> list[int]:
    with open(b"/proc/%d/task/%d/children" % (tgid, thread), "rb") as file:
        return list(map(int, file.read().split()))
