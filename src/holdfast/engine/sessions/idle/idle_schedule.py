"""Saving idle sessions that no process opens: which ones, when, and by which process.

The catalog is asked periodically for sessions with unsaved changes; a process is started only for those that no process
has open and that were idle for long enough. That process does all the work, so that its starter, a watcher, is not
delayed by a large directory, a hook, or its own socket. No thread waits for it: a watcher with threads would have to
scan large trees without a second process (`holdfast.files.linux.forked_worker`).
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.engine.sessions.holder.lock import is_held, lock_path
from holdfast.engine.sessions.idle import save_process
from holdfast.model.errors import HoldfastError, LockedError, unexpected
from holdfast.model.log import Log, child_level
from holdfast.processes.helper_process import start_module
from holdfast.store.catalog.session_rows import SessionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from holdfast.engine.opening.opener import Opener
    from holdfast.model.clock import Clock
    from holdfast.model.ids import WorkspaceId
    from holdfast.model.session_types import SessionId
    from holdfast.store.catalog.session_records import UnsavedSession

_LOG = Log(__name__)
_SECOND = 1_000_000
_FIRST_RETRY = 30.0
_LAST_RETRY = 3600.0
_LEAST_WAIT = 1.0
_SHARE = 3
"""The catalog is asked this many times within the idle time of a session."""
_SHORTEST, _LONGEST = 1.0, 30.0
"""But never more often, and never less often, than these intervals."""
_GLANCE = 0.25
"""How often it is looked whether a process has ended."""
_PIECE = 1 << 16
_AT_ONCE = 20
"""The most sessions for one process."""
_MOST_SECONDS = 600.0
"""So long may that take."""
_END_SECONDS = 5.0


class _Attempt:
    """The attempts to save a session."""

    __slots__ = ("failures", "not_before", "revision", "said")

    def __init__(self, revision: int, said: str) -> None:
        self.revision = revision
        """The journal's revision: everything but ``said`` is about that revision."""
        self.not_before = 0.0
        self.failures = 0
        self.said = said
        """The last reported reason of a failure."""


class IdlePlan:
    """Which sessions to try when. No I/O; time is the clock's."""

    def __init__(self, idle: float, clock: Clock) -> None:
        """``idle`` is for how many seconds nothing must have been done in a session; it may want more itself."""
        self._idle = idle
        self._clock = clock
        self._tries: dict[SessionId, _Attempt] = {}

    def choose(self, unsaved: Iterable[UnsavedSession], is_open: Callable[[SessionId], bool]) -> list[SessionId]:
        """Some of ``unsaved``, all sessions with unsaved changes, to try now. Each is chosen again until its result is
        reported.
        """
        before, self._tries = self._tries, {}
        chosen: list[SessionId] = []
        for one in unsaved:
            tried = before.get(one.session)
            if tried is None or tried.revision != one.revision:
                tried = _Attempt(one.revision, "" if tried is None else tried.said)
            self._tries[one.session] = tried
            left_alone = (self._clock.now() - one.updated_at) / _SECOND >= self._idle
            may_be_tried = left_alone and self._clock.monotonic() >= tried.not_before and len(chosen) < _AT_ONCE
            if may_be_tried and not is_open(one.session):
                chosen.append(one.session)
        return chosen

    def later(self, session: SessionId, seconds: float | None) -> None:
        """Not to be tried again for ``seconds`` (None: until it changes)."""
        wait = float("inf") if seconds is None else max(_LEAST_WAIT, seconds)
        self._tries[session].not_before = self._clock.monotonic() + wait

    def failed(self, session: SessionId, why: str = "") -> bool:
        """It could not be saved: it is tried again, each time later. Whether ``why`` must be reported."""
        tried = self._tries[session]
        wait = min(_FIRST_RETRY * 2.0 ** min(tried.failures, 20), _LAST_RETRY)
        tried.not_before = self._clock.monotonic() + wait
        tried.failures += 1
        is_news = bool(why) and why != tried.said
        tried.said = why or tried.said
        return is_news


class _SaveProcess:
    """A process that saves sessions, one after the other."""

    def __init__(self, order: save_process.SaveOrder, until: float) -> None:
        """Start it. Raises `OSError`."""
        self.sessions = order.sessions
        self.until = until
        """When it has taken too long."""
        self._answer = b""
        self._process = start_module(save_process.__name__, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._said = self._process.stdout.fileno()
        os.set_blocking(self._said, False)
        with suppress(BrokenPipeError), self._process.stdin as given:
            given.write(order.encode())

    def is_over(self) -> bool:
        """Whether it has ended. Waits for nothing."""
        over = self._process.poll() is not None
        with suppress(BlockingIOError):
            while piece := os.read(self._said, _PIECE):
                self._answer += piece
        return over

    def end(self) -> None:
        """End it at once, and its running hook."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def said(self) -> list[save_process.SaveReport]:
        """Its reports of each session, in order, after its end; none of those after the one it was interrupted in."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        said = save_process.decode_reports(self._answer)
        if len(said) < len(self.sessions):
            why = HoldfastError("the process that saves it was ended, or took too long")
            said.append(save_process.SaveReport(self.sessions[len(said)], error=why))
        return said


class IdleSaver:
    """Has idle sessions of one tenant saved: `turn` is called again and again, and waits for nothing."""

    def __init__(self, opener: Opener, workspaces: Callable[[], Collection[WorkspaceId]]) -> None:
        """``opener`` is the tenant's, and stays the caller's. ``workspaces`` are those in which, and in whose forks,
        sessions are seen to. Raises `ConfigError`.
        """
        self._opener = opener
        self._workspaces = workspaces
        self._clock = opener.clock
        idle = opener.settings(None).session.idle
        self._interval = min(_LONGEST, max(_SHORTEST, idle / _SHARE))
        self._plan = IdlePlan(idle, self._clock)
        self._due_at = self._clock.monotonic() + _SHORTEST
        self._work: _SaveProcess | None = None
        self._failure = ""

    def due_in(self) -> float:
        """Seconds until `turn` has work."""
        return max(0.0, self._due_at - self._clock.monotonic())

    def turn(self) -> None:
        """Do the work that is due. Each error is logged once."""
        if self.due_in() > 0:
            return
        try:
            self._go_on()
            self._failure = ""
        except Exception as error:  # noqa: BLE001 - it is tried again, and the caller has other things to do
            why = unexpected(error).message if not isinstance(error, HoldfastError) else error.message
            if why != self._failure:
                _LOG.warning("sessions that are idle are not saved: %s", why)
            self._failure = why
            self._due_at = self._clock.monotonic() + self._interval

    def end(self) -> None:
        """Save nothing any more: a session that is just being saved stays as it is in its journal. Harmless a second
        time.
        """
        work, self._work = self._work, None
        self._due_at = float("inf")
        if work is not None:
            work.end()
            work.said()

    def _go_on(self) -> None:
        now = self._clock.monotonic()
        if self._work is not None:
            if not self._work.is_over():
                self._due_at = now + _GLANCE
                if now < self._work.until:
                    return
                self._work.end()
            work, self._work = self._work, None
            self._note(work)
        chosen = self._plan.choose(SessionRows(self._opener.store().catalog).unsaved(self._workspaces()), self._is_open)
        if chosen:
            order = save_process.save_order(self._opener.home, self._opener.flags, chosen, child_level())
            self._work = _SaveProcess(order, now + _MOST_SECONDS)
        self._due_at = now + (_GLANCE if chosen else self._interval)

    def _is_open(self, session: SessionId) -> bool:
        return is_held(lock_path(self._opener.home, self._opener.store().tenant, session))

    def _note(self, work: _SaveProcess) -> None:
        said = work.said()
        for one in said:
            _note(self._plan, one)
        for session in work.sessions[len(said) :]:
            self._plan.failed(session)


def _note(plan: IdlePlan, said: save_process.SaveReport) -> None:
    """Remember the result for a session, and log it if a person should know."""
    if said.error is None:
        plan.later(said.session, None if said.seconds == 0 else said.seconds)
        if said.seconds == 0:
            _LOG.info("saved the session %s, which was idle", said.session)
    elif isinstance(said.error, LockedError):
        plan.failed(said.session)  # another process is at it, or changes the tree
    elif plan.failed(said.session, said.error.message):
        advice = f" ({said.error.hint})" if said.error.hint else ""
        _LOG.warning("the session %s is idle, and cannot be saved: %s%s", said.session, said.error.message, advice)
