"""Which of a server's threads takes requests: one, as long as nothing keeps it.

Where the operations are Python for the most part, two threads at once take longer than one: each waits for the other at
every system call, and the kernel wakes one for a request that the other was about to take.
"""

from __future__ import annotations

import threading
from typing import Final

TICK_SECONDS: Final = 0.005
"""What takes longer, or twice that, keeps others from being served no more."""
_QUIET_TICKS: Final = 20
"""After so many without a request nobody looks any more, until there is one."""


class Leader:
    """See the module. One thread takes requests (it leads), another one looks whether it is kept, the rest wait."""

    def __init__(self, *, alone: bool = True) -> None:
        """Unless it is to be one ``alone``, all take requests all the time."""
        self._alone = alone
        lock = threading.Lock()
        self._call = threading.Condition(lock)
        """For whoever looks."""
        self._rest = threading.Condition(lock)
        self._leader: int | None = None
        self._watcher: int | None = None
        self._taken = 0
        """So many requests."""
        self._is_busy = False
        """The one who leads works on one, and does not wait for the next."""
        self._is_asleep = False
        """The one who looks does not."""
        self._is_over = False

    def wait(self, number: int) -> bool:
        """Wait until the thread of this number is to lead; False if nothing is to be taken any more."""
        with self._call:
            while not self._is_over:
                if not self._alone:
                    return True
                if self._leader is None:
                    self._leader, self._is_busy = number, False
                    if self._watcher == number:
                        self._watcher = None
                        self._rest.notify()
                    return True
                if self._watcher is None:
                    self._watcher = number
                if self._watcher == number:
                    self._watch()
                else:
                    self._rest.wait()
        return False

    def leads(self, number: int) -> bool:
        """Whether the thread still does; only if it does it may take a request."""
        return self._leader == number or not self._alone

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks: not where nothing is asked for a while."""
        return self._watcher is not None and not self._is_asleep

    def took(self, number: int) -> None:
        """The thread has taken a request."""
        if self._leader != number:
            return
        self._taken += 1
        self._is_busy = True
        if self._is_asleep:  # (in this order: see `_watch`)
            with self._call:
                self._is_asleep = False
                self._call.notify()

    def waits(self, number: int) -> None:
        """The thread waits for a request."""
        if self._leader == number:
            self._is_busy = False

    def resign(self, number: int) -> None:
        """What the thread is about to do may take its time: another one leads, if there is one that is free."""
        with self._call:
            if self._leader == number:
                self._leader = None
                self._call.notify()

    def end(self) -> None:
        """Nobody is to take anything any more."""
        with self._call:
            self._is_over = True
            self._call.notify_all()
            self._rest.notify_all()

    def _watch(self) -> None:
        """Until nobody leads any more: somebody who is kept does not."""
        quiet = 0
        while self._leader is not None and not self._is_over:
            if quiet >= _QUIET_TICKS:
                self._is_asleep = True
                if not self._is_busy:  # (else nobody may have seen that)
                    self._call.wait()
                self._is_asleep = False
                quiet = 0
                continue
            leader, taken = self._leader, self._taken
            self._call.wait(TICK_SECONDS)
            if (leader, taken) != (self._leader, self._taken):
                quiet = 0
            elif self._is_busy:
                self._leader = None
            else:
                quiet += 1
