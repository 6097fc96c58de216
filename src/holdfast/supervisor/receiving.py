"""Calls are received as soon as they come, by several threads, and carried out one after the other.

A call that the kernel has not handed over yet can be interrupted by any signal, and fails with EINTR where its handler
has no ``SA_RESTART``; natively none of these calls does. From then on only a signal that kills does that. So what
counts is how long a receiver takes to wake up: nearly always one waits in the kernel, for which it needs no interpreter
lock, and it has a higher priority where that is allowed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Final

from holdfast.model.log import Log

if TYPE_CHECKING:
    import select
    from collections.abc import Callable
    from types import TracebackType

    from holdfast.supervisor.serving import Tree

_log = Log(__name__)

_RECEIVERS: Final = 2
"""Of each tree. A third made a tenth fewer calls be interrupted, and each take a sixth longer."""
_NICE: Final = -20
_SLICE_NS: Final = 100_000
"""The shortest that there is: whoever asks for less at a time is given the processor earlier (Linux 6.12)."""
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = Struct("=IIQiIQQQ")

_libc = ctypes.CDLL(None, use_errno=True)
_at_once = ctypes.PyDLL(None)
"""Calls by this do not let go of the interpreter's lock."""
_EVENT_BYTES = 16
"""Room for one ``struct epoll_event``."""


class Turns:
    """The right to carry calls out, and all else that one thread at a time may do: a lock that the serving thread
    takes, and in between whichever thread has received a call.
    """

    def __init__(self, is_quiet: Callable[[], bool], selector: select.epoll) -> None:
        """While it ``is_quiet``, calls wait; and while the ``selector`` has something for the serving thread: that a
        process has ended comes before what its parent does next, which is another step.
        """
        self._is_quiet = is_quiet
        self._selector = selector.fileno()
        self._event = ctypes.create_string_buffer(_EVENT_BYTES)
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._is_wanted = False

    def __enter__(self) -> None:
        """Take it, as soon as the call that is being carried out is. For the serving thread."""
        self._is_wanted = True
        self._lock.acquire()
        self._is_wanted = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Carry out what calls there are by now, and give it up."""
        try:
            if kind is None:
                self._carry_out(len(self._calls))
        finally:
            self._lock.release()

    @property
    def has_calls(self) -> bool:
        """Whether calls wait that may be carried out."""
        return bool(self._calls) and not self._is_quiet()

    def put(self, call: Callable[[], None]) -> None:
        """Have a call carried out, by this thread or by the one whose turn it is. From any thread."""
        self._calls.append(call)
        # (Who has the turn looks again after giving it up; so nothing is left that came in between.)
        while self._calls and self._lock.acquire(blocking=False):
            try:
                if not self._carry_out():
                    return
            finally:
                self._lock.release()

    def _carry_out(self, most: int = -1) -> bool:
        """Carry out that many. False if the serving thread has to go on with what is left."""
        while most and self._calls:
            if self._is_quiet() or self._is_wanted or self._has_news():
                return False
            most -= 1
            self._calls.popleft()()
        return True

    def _has_news(self) -> bool:
        """Whether the selector has something. (To let go of the interpreter's lock for that would cost more.)"""
        return _at_once.epoll_wait(self._selector, self._event, 1, 0) > 0


def receive(tree: Tree, turns: Turns, fail: Callable[[], None]) -> None:
    """Receive the calls of a tree until its last process has ended. A thread that cannot go on calls ``fail``."""
    for _ in range(_RECEIVERS):
        tree.listener.hold()
        threading.Thread(target=_receive, args=(tree, turns, fail), daemon=True).start()


def _receive(tree: Tree, turns: Turns, fail: Callable[[], None]) -> None:
    listener = tree.listener
    _hurry()
    try:
        # (Not asked before each call: the kernel wakes whoever waits as the last process ends, Linux 6.11. Before that
        # it leaves them waiting, until the keeper ends.)
        while (found := listener.receive()) is not None or not listener.is_over():
            if found is not None:
                turns.put(lambda found=found: tree.serve(found))
    except BaseException as error:
        _log.warning("a call failed by a mistake of Holdfast's own: %r", error)
        fail()
        raise
    finally:
        listener.release()


def prefer() -> None:
    """Have this process be preferred to those of other sessions (sched(7), autogroup), where that counts and is
    allowed: within its own, `receive` sees to it.
    """
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(_NICE))


def _hurry() -> None:
    """Have this thread be given the processor at once."""
    me = threading.get_native_id()
    with suppress(OSError):  # (only administrators may)
        os.setpriority(os.PRIO_PROCESS, me, _NICE)
    nice = os.getpriority(os.PRIO_PROCESS, me)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, 0, nice, 0, _SLICE_NS, 0, 0)
    _libc.syscall(_SYS_SCHED_SETATTR[os.uname().machine], 0, attributes, 0)


def slow_down() -> None:
    """Take the priority from this thread that it has from one that receives."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, os.getpid()))
