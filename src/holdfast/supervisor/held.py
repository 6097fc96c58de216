"""Which files the processes of a tree may write to without another call: through what they have open, or mapped.

What lies in a socket, on its way to another process, is not seen; nor what a process has that does not let itself be
looked at.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INODE_FIELD = 4
"""Of a line in ``/proc/PID/maps``: addresses, permissions, offset, device, inode, path (proc_pid_maps(5))."""


def inodes_held_for_writing(tgids: Iterable[int]) -> frozenset[int]:
    """The inode numbers of the files that these processes, and all below them, may write to. From any thread."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = list(tgids)
    while waiting:
        tgid = waiting.pop()
        if tgid in seen:
            continue
        seen.add(tgid)
        for look, result in ((_opened, found), (_mapped, found), (_children, below := set[int]())):
            with suppress(OSError):  # it has ended, or may not be looked at
                result.update(look(tgid))
        waiting += below
    return frozenset(found)


def _opened(tgid: int) -> Iterator[int]:
    directory = b"/proc/%d/fd" % tgid
    for name in os.listdir(directory):
        path = b"%b/%b" % (directory, name)
        try:
            # (The mode of the link says how the file is open.)
            if os.lstat(path).st_mode & stat.S_IWUSR and stat.S_ISREG((found := os.stat(path)).st_mode):
                yield found.st_ino
        except OSError:
            continue  # it was closed


def _mapped(tgid: int) -> Iterator[int]:
    # (One that may only be read now may be made writable, if the descriptor was.)
    with open(b"/proc/%d/maps" % tgid, "rb") as lines:
        for line in lines:
            fields = line.split(None, _INODE_FIELD + 1)
            if fields[1].endswith(b"s") and (inode := int(fields[_INODE_FIELD])):
                yield inode


def _children(tgid: int) -> Iterator[int]:
    for thread in os.listdir(b"/proc/%d/task" % tgid):
        with open(b"/proc/%d/task/%b/children" % (tgid, thread), "rb") as file:
            yield from map(int, file.read().split())
