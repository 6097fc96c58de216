"""Copies of this process that do a part of its work on a tree, where a processor is idle.

A copy shares nothing with its parent but open files and shared memory. The parent never needs it: what a copy leaves
undone, killed at any moment, the parent does.
"""

from __future__ import annotations

import os
import sys

from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL = 9
_PROCESSOR = 36
"""The place of ``processor`` among the fields after the command's name."""


def is_worthwhile() -> bool:
    """True if there are two processors, and this process has no other threads: the locks that they hold would stay held
    in the copy for ever.
    """
    try:
        return len(os.sched_getaffinity(0)) > 1 and len(os.listdir("/proc/self/task")) == 1
    except (AttributeError, OSError):
        return False


def start(work: Callable[[], object]) -> int | None:
    """Do ``work`` in a copy of this process, which then ends, also if ``work`` raises. The copy's process id; None if
    the system makes no more processes.

    No signal handler of this process runs in the copy. The caller calls `wait` or `end`.
    """
    parent = os.getpid()
    if "signal" not in sys.modules:  # then no handler is set, and to load it takes longer than to make the copy
        return _start(work, parent)
    import signal

    # The handlers of this process must not run in the copy.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return _start(work, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(work: Callable[[], object], parent: int) -> int | None:
    here = _processor()
    try:
        # (A fork, which shares our memory and starts no program: `holdfast.processes` has no such thing.)
        process = os.fork()
        if process == 0:
            try:
                _move_away(0, here)
                work()
            finally:
                os._exit(0)
        _move_away(process, here)
        return process
    except OSError:
        return None
    finally:
        if os.getpid() != parent:
            os._exit(0)  # an interrupt has come before the copy began its work: it must not go on as its parent


def _move_away(process: int, processor: int) -> None:
    """Move the copy (0: this process) to another processor than its parent's.

    The scheduler often starts a copy on the processor of its parent, and takes tens of milliseconds to notice another
    idle one. That is as long as all the work of the copy. So parent and copy both do this, and the first of them to run
    succeeds.
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
    """The processor that this process runs on just now (proc_pid_stat(5)); -1 if it cannot be read."""
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
        return  # another part of this process has waited for it


def end(process: int) -> None:
    """End the copy."""
    try:
        os.kill(process, _SIGKILL)
    except ProcessLookupError:
        return  # another part of this process has waited for it
    wait(process)
