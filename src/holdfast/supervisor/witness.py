"""A process of the parent's that tells which signals the whole process group got.

The kernel does not say of a signal whether it was sent to a process or to its group. A process of the group that has no
other part gets the latter alone, in the same moment as all others of the group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_PDEATHSIG = 1
_MOST = 4096
_ASK = b"?"
ANSWERED = 0
"""Ends what the witness answers; what comes before are numbers of signals."""

_libc = ctypes.CDLL(None, use_errno=True)


class Witness:
    """The witness, as its parent has it. It dies with that one."""

    def __init__(self, numbers: Collection[int]) -> None:
        """Start it: it notes the signals ``numbers``, which this process must catch, from now on. Raises `OSError`."""
        ours, its = socket.socketpair()
        # (What comes before it can note it waits.)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            parent = os.getpid()
            self.pid = os.fork()
            if not self.pid:
                try:
                    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                    if os.getppid() == parent:
                        _answer(its, numbers)
                finally:
                    os._exit(0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            its.close()
        self._socket = ours

    def fileno(self) -> int:
        """Becomes readable when it answers, or is gone."""
        return self._socket.fileno()

    def ask(self) -> None:
        """Have it answer with what it got since it was asked last."""
        with suppress(OSError):  # (it was killed, which `read` says)
            self._socket.send(_ASK)

    def read(self) -> bytes:
        """A part of an answer: numbers of signals, `ANSWERED` at the end. Waits for it. Empty: the witness is gone."""
        with suppress(ConnectionResetError):
            return self._socket.recv(_MOST)
        return b""

    def end(self) -> None:
        """End it; harmless a second time."""
        self._socket.close()
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def _answer(parent: socket.socket, numbers: Collection[int]) -> None:
    # Nothing stays open here that others wait for the end of.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.dup2(parent.fileno(), 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    asked = socket.socket(fileno=3)
    awake, wake = socket.socketpair()
    for end in (awake, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    while asked.recv(1):
        got = b""
        # (What is pending when the question is there was noted before it could be read.)
        with suppress(BlockingIOError):
            while more := awake.recv(_MOST):
                got += more
        asked.sendall(bytes(set(got).intersection(numbers)) + bytes([ANSWERED]))
