"""What the commands of a session have left running, and ending it.

They are known by ``HOLDFAST_SESSION`` in the environment that they were started with, which children get as well,
daemons among them. One that has taken it away, or belongs to another user, is not found.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.sessions.naming import SESSION_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.model.session import SessionId

_GRACE_SECONDS = 2.0
_ROUNDS = 10


def end_leftovers(session: SessionId) -> int:
    """End what runs of a session: asked to (SIGTERM), and after two seconds made to (SIGKILL); how many there were.

    None of it runs when this returns, but for what starts children faster than they can be found.
    """
    wanted = f"{SESSION_VARIABLE}={session}".encode()
    own = os.getpid()

    def running() -> Iterator[int]:
        names = (name for name in os.listdir("/proc") if name.isdigit() and int(name) != own)
        return (int(name) for name in names if _is_part(name, wanted))

    return end_all(running, (signal.SIGTERM,))


def end_all(find: Callable[[], Iterable[int]], signals: Sequence[signal.Signals]) -> int:
    """End the processes that ``find`` finds, again and again: asked to by ``signals``, and after two seconds made to;
    how many there were.
    """
    ended = 0
    for turn in range(_ROUNDS):
        found = _opened(find)
        if not found:
            break
        try:
            for fd in found:
                for number in (signal.SIGKILL,) if turn else signals:
                    _send(fd, number)
            _wait(found, _GRACE_SECONDS if turn == 0 else 1.0)
        finally:
            for fd in found:
                os.close(fd)
        ended += len(found) if turn == 0 else 0
    return ended


def _opened(find: Callable[[], Iterable[int]]) -> list[int]:
    """A descriptor of each process that is found."""
    descriptors: dict[int, int] = {}
    for pid in find():
        with suppress(OSError):
            descriptors[pid] = os.pidfd_open(pid)
    # (Looked at again once they are open: the number cannot come to mean another process any more.)
    again = set(find()) if descriptors else set[int]()
    for pid in descriptors.keys() - again:
        os.close(descriptors.pop(pid))
    return list(descriptors.values())


def _is_part(name: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False


def _send(fd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass  # it has ended, or may not be signalled


def _wait(processes: list[int], seconds: float) -> None:
    """Wait until all of them have ended, or the time has passed."""
    poll = select.poll()
    for fd in processes:
        poll.register(fd, select.POLLIN)
    left, until = len(processes), time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            left -= 1
