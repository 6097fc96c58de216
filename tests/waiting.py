"""How a test waits for what another process or thread does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.undo.completion.late_writes import settle_late_writes
from holdfast.undo.log import UndoLog


def wait_until(condition: Callable[[], object], what: str = "the condition", limit: float = 30) -> None:
    """Wait on a condition, with a limit in seconds, by asking again and again: most of the time is left to others."""
    end = time.monotonic() + limit
    begun = time.thread_time()
    while not condition():
        assert time.monotonic() < end, f"{what} has not come"
        asked = time.thread_time()
        time.sleep(min(0.005 + 2 * (asked - begun), 0.05))
        begun = time.thread_time()


def has_ended(process: int) -> bool:
    """Whether a process is there no more, or waits only for its parent to hear that it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def stop(*processes: int) -> None:
    """Stop processes; all their threads stand still on return.

    Only the thread that takes the signal stops the others: on a busy machine they go on for some milliseconds. One that
    waits for its child of a vfork is not stopped, and stands still as long as the child does: stop that as well.
    """
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    for process in processes:
        wait_until(lambda process=process: _stands_still(process), f"the stop of process {process}")


def _stands_still(process: int) -> bool:
    threads = Path(f"/proc/{process}/task").iterdir()
    return all(
        (each / "stat").read_bytes().rpartition(b") ")[2][:1] in b"TZX"
        or (each / "wchan").read_text() == "kernel_clone"
        for each in threads
    )


def group(number: int) -> list[int]:
    """The processes of a process group."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == number and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def process_name(process: int) -> str:
    """The name of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until_settled(log: UndoLog) -> None:
    """Wait until nothing that finished steps have left is still written to: what is written to through a mount, its
    kernel lets go of a moment after that was unmounted.
    """

    def is_settled() -> bool:
        settle_late_writes(log)
        return not log.unsettled

    wait_until(is_settled, "the end of writing to what steps have left")
