"""What a virtual machine has of its host's memory."""

from __future__ import annotations

import os

from holdfast.processes.process_tree import descendants


def memory_of_tree(process: int) -> int:
    """Bytes of memory of a process and all below it; 0 if it has ended."""
    return sum(map(_resident, (process, *descendants(process))))


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0  # it has ended
