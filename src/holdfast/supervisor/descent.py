"""All that descends from a process, and the end of it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def descendants(of: int, spare: Collection[int] = ()) -> list[int]:
    """The processes below ``of``, parents first, without those in ``spare`` and what is below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(b"/proc"):
        if name.isdigit():
            try:
                with open(b"/proc/%b/stat" % name, "rb", buffering=0) as file:
                    # The name may hold anything, the last parenthesis ends it (proc(5)).
                    fields = file.read(4096).rpartition(b") ")[2].split(b" ", 2)
            except OSError:
                continue  # it has ended
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [of]
    while waiting:
        below = [child for child in children.get(waiting.pop(), ()) if child not in spare]
        found += below
        waiting += below
    return found


def end_descendants(spare: Collection[int] = ()) -> None:
    """Kill everything below this process, which must be a subreaper: whatever is orphaned meanwhile comes to it.

    Returns when nothing is left. What has ended is waited for, except for children in ``spare``.
    """
    own = os.getpid()
    while found := descendants(own, spare):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in found:
            try:
                # (Those that are not our children yet will be when their parents have ended.)
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
