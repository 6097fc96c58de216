"""The files that a tree's processes may write to without another call: through open descriptors or mappings.

Descriptors in transit in a socket are not seen, nor those of processes that may not be inspected. A thread may have a
table of open files of its own, and go on after its process's first thread has ended.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.supervisor.process_tree.kcmp import OPEN_FILES, is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_INODE_FIELD = 4
"""Of a line in ``/proc/PID/maps``: addresses, permissions, offset, device, inode, path (proc_pid_maps(5))."""
_A_THREAD = 10
"""Finding a thread's tables and children costs as much as this many open files."""
_ROUNDS = 100
"""A program that starts processes faster than they can be inspected is not waited for."""


def inodes_held_for_writing(named: Callable[[], Iterable[int]], most: int | None = None) -> frozenset[int] | None:
    """The inode numbers of the files that the processes ``named``, and all below them, may write to. From any thread.

    None if that would be to look at more than ``most`` open files and mappings.
    """
    room = _Room(most)
    found: set[int] = set()
    seen: set[int] = set()
    ended: set[int] = set()
    try:
        # A process may pass its descriptors to a child, and close them before it is examined. So children that start
        # meanwhile are examined too, and a process is included even if its parent ends during the search.
        for _ in range(_ROUNDS):
            living, over = _below(named(), seen, room)
            new = {tgid: threads for tgid, threads in living.items() if tgid not in seen}
            if not new and over <= ended:
                break
            found |= _held(new, room)
            seen |= new.keys()
            ended |= over
    except _TooMuchError:
        return None
    return frozenset(found)


def _below(tgids: Iterable[int], seen: Collection[int], room: _Room) -> tuple[dict[int, list[int]], set[int]]:
    """These processes and their descendants, with their threads; and those that have ended, whose children may be
    missed. Those not ``seen`` before take room.
    """
    living: dict[int, list[int]] = {}
    over: set[int] = set()
    waiting = list(tgids)
    while waiting:
        tgid = waiting.pop()
        if tgid in living or tgid in over:
            continue
        threads = _threads(tgid)
        if tgid not in seen:
            room.take(_A_THREAD * len(threads))
        for thread in threads:
            with suppress(OSError):  # it has ended, or may not be inspected; so below
                waiting += _children(tgid, thread)
        if len(threads) > 1 or not _has_ended(tgid):
            living[tgid] = threads
        else:
            over.add(tgid)
    return living, over


def _has_ended(tgid: int) -> bool:
    try:
        with open(b"/proc/%d/stat" % tgid, "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"ZX"
    except OSError:
        return True


def _held(processes: Mapping[int, Iterable[int]], room: _Room) -> set[int]:
    found: set[int] = set()
    tables = [table for threads in processes.values() for table in _tables(threads)]
    # The number of open files is read first for all: it costs almost nothing, and shows whether there is too much.
    for table in tables:
        with suppress(OSError):
            room.take(os.stat(table).st_size)
    for table in tables:
        with suppress(OSError):
            found.update(_opened(table, room))
    for tgid in processes:
        found.update(_mapped(tgid, room))
    return found


class _TooMuchError(Exception):
    """There is too much to examine."""


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
        if not last or not is_shared(thread, last, OPEN_FILES):
            yield b"/proc/%d/fd" % thread
            last = thread


def _opened(table: bytes, room: _Room) -> Iterator[int]:
    names = os.listdir(table)
    if not os.stat(table).st_size:  # before Linux 6.2, the kernel has not said how many there are
        room.take(len(names))
    for name in names:
        path = b"%b/%b" % (table, name)
        try:
            # The mode of the link shows how the file is open.
            if os.lstat(path).st_mode & stat.S_IWUSR and stat.S_ISREG((found := os.stat(path)).st_mode):
                yield found.st_ino
        except OSError:
            continue  # it was closed


def _mapped(tgid: int, room: _Room) -> Iterator[int]:
    for thread in _threads(tgid):
        some = False
        # A mapping that is read-only now may be made writable, if the descriptor was.
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
