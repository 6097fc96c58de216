"""Programs that end when this process does, even if it is killed: with all processes in their group.

A shell of our own has the other end of a socket, on which it is told the running process groups. The kernel closes our
end when this process ends in any way, and the shell kills the groups that it was told last. (PR_SET_PDEATHSIG,
prctl(2), is for one process: its children, such as a filter of Git's, would continue.)
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Generator

_LOG = Log(__name__)
# (Not `holdfast.ipc`: a shell is at the other end, which starts in a millisecond and outlives this process.)
_SHELL = "/bin/sh"
_SCRIPT = 'cd /; while read -r now; do all=$now; done; for one in $all; do kill -KILL "-$one"; done'


@contextmanager
def ends_with_us(group: int) -> Generator[None]:
    """In the block, the process group ``group`` is killed if this process is. Where that is impossible, it continues;
    so does a process started just before, if this process is killed before the block has begun.
    """
    _WATCHER.change(group, runs=True)
    try:
        yield
    finally:
        _WATCHER.change(group, runs=False)


class _Watcher:
    """The shell, started when it is first wanted."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the state: a fork of this process is not concerned with the children of its parent."""
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._ours: socket.socket | None = None

    def in_a_fork(self) -> None:
        """Close our end, which the fork would keep open, too."""
        if self._ours is not None:
            self._ours.close()
        self.forget()

    def change(self, group: int, *, runs: bool) -> None:
        with self._lock:
            (self._groups.add if runs else self._groups.discard)(group)
            try:
                self._tell()
            except OSError as error:
                _LOG.debug("what runs may go on if this process is killed: %s", error)

    def _tell(self) -> None:
        line = " ".join(map(str, sorted(self._groups))).encode() + b"\n"
        if self._ours is not None:
            try:
                self._ours.send(line, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            except (BrokenPipeError, ConnectionResetError):  # it has been ended
                self._ours.close()
                self._ours = None
            else:
                return
        if not self._groups:
            return
        ours, its = socket.socketpair()
        with its:
            null = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_RDWR, 0)
            actions = [(os.POSIX_SPAWN_DUP2, its.fileno(), 0), null, (os.POSIX_SPAWN_DUP2, 1, 2)]
            try:
                os.posix_spawn(_SHELL, ["sh", "-c", _SCRIPT], {}, file_actions=actions, setsid=True)
            except BaseException:
                ours.close()
                raise
        self._ours = ours
        ours.send(line, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


_WATCHER = _Watcher()
os.register_at_fork(after_in_child=_WATCHER.in_a_fork)
