"""The threads of a server: one takes requests while nothing delays it; slow requests have their own threads, where held
requests are retried.

Where the operations are Python for the most part, two threads at once take longer than one: each waits for the other at
every system call, and the kernel wakes one for a request that the other was about to take.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.model.errors import HeldError
from holdfast.undo.interceptor import StepEndedError
from holdfast.vfs.patience import LaterError, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Answer = TypeVar("Answer")

AGAIN: Final = (LaterError, HeldError, StepEndedError)
"""Errors of an operation, raised before anything has happened, that ask for a retry."""
PATIENCE_SECONDS: Final = 8.0
"""How long a request may be held back. Others wait meanwhile for what the kernel has locked for it: for the whole
directory that a name is removed from; for a rename between directories, any other such.
"""
_AGAIN_SECONDS: Final = 0.02
TICK_SECONDS: Final = 0.005
"""A request that takes longer, or twice that, no longer keeps others from being served."""
_QUIET_TICKS: Final = 20
"""After so many ticks without a request the watcher sleeps until the next one."""
_MOST_SLOW: Final = 64
"""Usual limit of slow requests worked on at a time."""
MOST_HELD: Final = 10_000
"""Limit of requests worked on or waiting for that: each takes memory, and a safeguard may hold any number."""
_KNOWN_SECONDS: Final = 1.0
"""The news of what a thread has done may be read when it has ended. Its number comes back after all others."""


class Leader:
    """One thread takes requests (it leads), another one watches whether a request keeps it, the rest wait."""

    def __init__(self, *, alone: bool = True) -> None:
        """Unless only one leads (``alone``), all threads take requests all the time."""
        self._alone = alone
        lock = threading.Lock()
        self._call = threading.Condition(lock)
        """For the watcher."""
        self._rest = threading.Condition(lock)
        self._leader: int | None = None
        self._watcher: int | None = None
        self._taken = 0
        """Number of requests taken."""
        self._is_busy = False
        """The leader works on one, and does not wait for the next."""
        self._is_asleep = False
        """The watcher waits for a request, and does not watch."""
        self._is_over = False

    def wait(self, number: int) -> bool:
        """Wait until the thread of this number must lead; False if no more requests are to be taken."""
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
        """Whether a thread watches the leader: not where no request has come for a while."""
        return self._watcher is not None and not self._is_asleep

    def note_taken(self, number: int) -> None:
        """The thread has taken a request."""
        if self._leader != number:
            return
        self._taken += 1
        self._is_busy = True
        if self._is_asleep:  # (in this order: see `_watch`)
            with self._call:
                self._is_asleep = False
                self._call.notify()

    def note_waiting(self, number: int) -> None:
        """The thread waits for a request."""
        if self._leader == number:
            self._is_busy = False

    def resign(self, number: int) -> None:
        """The calling thread may now be slow: a free thread leads instead, if there is one."""
        with self._call:
            if self._leader == number:
                self._leader = None
                self._call.notify()

    def end(self) -> None:
        """No thread takes a request any more."""
        with self._call:
            self._is_over = True
            self._call.notify_all()
            self._rest.notify_all()

    def _watch(self) -> None:
        """Watch the leader until it leads no more: a leader delayed by a request is replaced."""
        quiet = 0
        while self._leader is not None and not self._is_over:
            if quiet >= _QUIET_TICKS:
                self._is_asleep = True
                if not self._is_busy:  # (else `note_taken` may have missed that)
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


class LapsedError(OSError):
    """The request was held back until it was given up, without any effect (EPERM, or EAGAIN where no safeguard was in
    the way).
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))


class SlowRequests:
    """Works on requests that would keep others waiting, or have to wait: on threads made for that."""

    def __init__(
        self,
        own: ServingThreads,
        lapsed: Callable[[int], object] = lambda _ticket: None,
        *,
        most: int = _MOST_SLOW,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``own`` is told the threads, ``lapsed`` each ticket that was not answered while its operation could be held
        back, for ``patience`` seconds: the held change must be refused soon. At most ``most`` requests have a thread at
        a time; further ones wait for one.
        """
        self._patience = patience
        self._own = own
        self._lapsed = lapsed
        self._ended = threading.Event()
        self._most = most
        self._threads: set[threading.Thread] = set()
        self._waiting: deque[Callable[[], None]] = deque()
        """For a thread that is free."""
        self._held = 0
        """All that is not done."""
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None]) -> bool:
        """Have ``work`` done, which must raise nothing; returns at once. False if there are `MOST_HELD` already."""
        with self._lock:
            if self._held >= MOST_HELD:
                return False
            self._held += 1
            if len(self._threads) >= self._most:
                self._waiting.append(work)
                return True
            thread = threading.Thread(target=self._run, args=(work,), name="holdfast-later", daemon=True)
            self._threads.add(thread)
        thread.start()
        return True

    def ask_again(self, attempt: Callable[[], Answer], is_given_up: Callable[[int], bool]) -> Answer:
        """Retry ``attempt`` until it returns, or raises another error than those of `AGAIN`; for work in progress.

        Raises `LapsedError` when the patience has ended, or as soon as the caller has given up: ``is_given_up`` gets
        the awaited ticket, or 0.
        """
        deadline = monotonic() + self._patience
        has_lapsed = False
        while True:
            try:
                return attempt()
            except AGAIN as error:
                ticket = error.ticket if isinstance(error, HeldError) else 0
                if self._ended.is_set() or is_given_up(ticket) or monotonic() >= deadline:
                    if has_lapsed or not ticket or self._ended.is_set():
                        raise LapsedError(errno.EPERM if has_lapsed or ticket else errno.EAGAIN) from error
                    # Its step is reverted now, and refuses it then: no effect is left when it is answered.
                    self._lapsed(ticket)
                    has_lapsed, deadline = True, monotonic() + self._patience
            self._ended.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """Retry nothing any more."""
        self._ended.set()

    def join(self, timeout: float) -> bool:
        """Wait until all is done, at most ``timeout`` seconds for each; whether it is."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in threads)

    def _run(self, work: Callable[[], None]) -> None:
        following: Callable[[], None] | None = work
        with self._own.registered(), patient():
            while following is not None:
                following()
                following = self._next()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._held -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads.discard(threading.current_thread())
            return None


class ServingThreads:
    """The numbers of the threads of this process that answer for a mount: what these change, the mount's kernel knows
    already. From any thread.
    """

    def __init__(self) -> None:
        self._until: dict[object, float] = {}
        self._lock = threading.Lock()

    def __contains__(self, tid: object) -> bool:
        """Whether the thread is one, or was just now."""
        return monotonic() < self._until.get(tid, 0.0)

    @contextmanager
    def registered(self) -> Generator[None]:
        """For the length of the block, the thread that enters it is one."""
        me = threading.get_native_id()
        with self._lock:
            self._until[me] = inf
        try:
            yield
        finally:
            with self._lock:
                now = monotonic()
                self._until = {tid: until for tid, until in self._until.items() if until > now}
                self._until[me] = now + _KNOWN_SECONDS
