"""A process of our own that outlives this one, and does one task: it gets an order, and reports the result.

Where that is safe it is a fork of this process, ready in a millisecond; otherwise a new interpreter, which takes a
hundred. A fork is safe for a process with a single thread (locks of other threads would stay locked for ever) that has
not loaded SQLite: its data about open files is wrong in a fork, so that a database used by both would be damaged. That
is true at the beginning of a command: a command that wants a fork starts it first.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

from holdfast.processes.forked_process import fork, has_one_thread

_MOST_BYTES: Final = 1 << 20
_IN, _OUT, _ERR = 0, 1, 2
_KILL, _TERMINATE = 9, 15

_detached: set[int] = set()
"""Detached workers, until they are known to have ended."""


class DetachedWorker:
    """Such a process, which waits for its order on its standard input."""

    def __init__(self, module: str) -> None:
        """Start it, to load the module of this name and call its ``main``. Raises `OSError`.

        It has its own session, in the root directory; it has only its standard streams open, of which the third is
        ours.
        """
        _reap_detached()
        order_read, order = os.pipe2(os.O_CLOEXEC)
        said, said_write = os.pipe2(os.O_CLOEXEC)
        try:
            if _may_be_copied():
                self.pid = fork(lambda: _run(module), streams=(order_read, said_write, _ERR), own_session=True)
            else:
                from holdfast.processes.helper_process import start_module

                process = start_module(module, stdin=order_read, stdout=said_write)
                self.pid = process.pid
                process.returncode = 0  # its pid is used to wait for it, if at all
        except BaseException:
            os.close(order)
            os.close(said)
            raise
        finally:
            os.close(order_read)
            os.close(said_write)
        self._order = order
        self._said = said
        self._goes_on = False

    def ask(self, order: bytes, seconds: float) -> bytes:
        """Give it its order, and wait for its report. It then continues by itself.

        Empty if it was ended before its report. Raises `TimeoutError`.
        """
        with suppress(BrokenPipeError), os.fdopen(self._order, "wb") as file:
            self._order = -1
            file.write(order)
        poll = select.poll()
        poll.register(self._said, select.POLLIN)
        said = bytearray()
        while len(said) < _MOST_BYTES:
            if not poll.poll(seconds * 1000):
                raise TimeoutError
            piece = os.read(self._said, _MOST_BYTES)
            if not piece:
                break
            said += piece
        return bytes(said)

    def detach(self) -> None:
        """Let it continue, whatever becomes of this process."""
        self._goes_on = True
        _detached.add(self.pid)

    def close(self) -> None:
        """Wait until it has ended, unless it was detached; without an order it is ended now. Call this once."""
        os.close(self._said)
        if self._order >= 0:
            os.close(self._order)
            self._end(_KILL)
        if not self._goes_on:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)

    def terminate(self) -> None:
        """Ask it to end."""
        self._end(_TERMINATE)

    def _end(self, signal: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal)


def read_order() -> bytes:
    """In such a process, once: its order; empty if the process that started it is gone, or gives none."""
    data = bytearray()
    while len(data) < _MOST_BYTES and (piece := os.read(_IN, _MOST_BYTES)):
        data += piece
    nowhere = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nowhere, _IN)
    os.close(nowhere)
    return bytes(data)


def report(what: bytes) -> None:
    """In such a process, once: report the result. Later prints go to standard error."""
    with suppress(OSError):  # the process that started it is gone, and asks no more
        while what:
            what = what[os.write(_OUT, what) :]
    os.dup2(_ERR, _OUT)


def _reap_detached() -> None:
    """Reap detached workers that have ended: a long-lived process may start many."""
    for pid in list(_detached):
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # a copy of ours does not have our children
            ended = pid
        if ended:
            _detached.discard(pid)


def _may_be_copied() -> bool:
    return "sqlite3" not in sys.modules and has_one_thread()


def _run(module: str) -> int:
    import_module(module).main()
    return 0
