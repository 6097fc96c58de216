"""Stops processes while a person is asked about their changes; no other process sees them stopped.

They are traced and interrupted (ptrace(2)). Unlike after SIGSTOP, their parents are not notified, so a shell does not
mistake it for Ctrl-Z. When the tracing thread ends, however it ends, the kernel resumes them all: no death of ours
leaves a process stopped. A signal waits until then, unless it is fatal.

A process that may read the arguments of their calls may trace them as well
(`holdfast.supervisor.syscalls.caller_access`). One that a debugger traces already is not stopped; its calls wait.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from typing import TYPE_CHECKING

from holdfast.processes.process_tree import children

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEIZE, _INTERRUPT = 0x4206, 0x4207
_FORKED_TOO = 1 << 1 | 1 << 2 | 1 << 3  # PTRACE_O_TRACEFORK, VFORK, CLONE: new children are stopped, too
_ALL, _OF_THIS_THREAD = 0x40000000, 0x20000000  # __WALL, __WNOTHREAD
_LOOK = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _ALL | _OF_THIS_THREAD
_ENDS = frozenset({os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED})
_REAP_SECONDS = 0.05

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class ProcessFreezer:
    """Processes that are stopped until `release`."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Sequence[int] | None] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        # The kernel identifies the tracer as a thread, so it needs one of its own.
        self._thread = threading.Thread(target=self._trace, daemon=True)
        self._thread.start()

    def add(self, processes: Sequence[int]) -> None:
        """Stop these, with all their threads, in a moment; naming one again does nothing."""
        self._wanted.put(processes)

    def release(self) -> None:
        """Let all go on, in a moment."""
        self._wanted.put(None)

    def _trace(self) -> None:
        while True:
            try:
                processes = self._wanted.get(timeout=_REAP_SECONDS)
            except queue.Empty:
                processes = ()
            if processes is None:
                return
            for process in processes:
                self._stop(process)
            self._reap()

    def _stop(self, process: int) -> None:
        tried: set[int] = set()
        while new := [tid for tid in _threads(process) if tid not in tried]:
            for tid in new:
                tried.add(tid)
                if tid not in self._stopped and not _ptrace(_SEIZE, tid, None, _FORKED_TOO):
                    self._stopped.add(tid)
                    _ptrace(_INTERRUPT, tid, None, None)

    def _reap(self) -> None:
        """The parents of killed processes are notified only after their tracer has waited for them."""
        try:
            while (found := os.waitid(os.P_ALL, 0, _LOOK)) is not None:
                has_ended = found.si_code in _ENDS
                if has_ended:
                    self._stopped.discard(found.si_pid)
                if has_ended and found.si_pid in children():
                    return  # it is a child of this process, and another thread waits for it
                os.waitpid(found.si_pid, os.WNOHANG | _ALL | _OF_THIS_THREAD)
        except ChildProcessError:
            pass


def _threads(process: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return []  # it has ended
