"""Copies of this process that take over a part of its work on a tree, where there is a processor to spare.

A copy shares nothing with its maker but files and what was mapped to be shared. It is never needed: what it leaves
undone, killed at any moment, its maker does.
"""

from __future__ import annotations

import os
import sys

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL = 9
_PROCESSOR = 36
"""The place of ``processor`` among the fields behind the command's name."""


def pays() -> bool:
    """True if there are two processors, and this process has no threads: the locks that they hold would be held for
    ever in its copy.
    """
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(os.listdir("/proc/self/task")) == 1
    except (AttributeError, OSError):
        return False


def start(work: Callable[[], object]) -> int | None:
    """Do ``work`` in a copy of this process, which ends then, whatever happened; its id, or None if there can be none.

    No signal's handler runs in it. The caller waits for it (`end`, `wait`).
    """
    maker = os.getpid()
    if "signal" not in sys.modules:  # nobody can have set a handler, and to load that takes longer than to make a copy
        return _start(work, maker)
    import signal

    # The caller's handlers of signals are not for a copy of the process to run.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return _start(work, maker)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(work: Callable[[], object], maker: int) -> int | None:
    here = _processor()
    try:
        process = os.fork()
        if process == 0:
            try:
                _leave(0, here)
                work()
            finally:
                os._exit(0)
        _leave(process, here)
        return process
    except OSError:
        return None
    finally:
        if os.getpid() != maker:
            os._exit(0)  # an interrupt has come before the copy began: it is not to go on as its maker


def _leave(process: int, processor: int) -> None:
    """Have the copy (0: this process) go on at another ``processor`` than its maker's.

    The scheduler often begins it there, in its maker's place or behind it, and takes tens of milliseconds to notice
    that somebody is idle: as long as all that it was made for. So whichever of the two comes first sends it away.
    """
    try:
        allowed = os.sched_getaffinity(process)
        others = allowed - {processor}
        if others:
            os.sched_setaffinity(process, others)
            os.sched_setaffinity(process, allowed)
    except (AttributeError, OSError):
        return


def _processor() -> int:
    """Where this process runs just now (proc_pid_stat(5)); -1 if that cannot be told."""
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[_PROCESSOR])
    except (OSError, ValueError, IndexError):
        return -1


def wait(process: int) -> None:
    """Return when the copy has ended."""
    try:
        os.waitpid(process, 0)
    except ChildProcessError:
        return  # somebody else has waited for it


def end(process: int) -> None:
    """End the copy."""
    try:
        os.kill(process, _SIGKILL)
    except ProcessLookupError:
        return  # somebody else has waited for it
    wait(process)
