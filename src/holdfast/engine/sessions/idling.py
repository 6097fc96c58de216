"""Having idle sessions saved that nobody opens: which of them, when, and by a process that is there for as long.

The catalog is asked at a moderate pace which sessions have something unsaved; a process is started only for those that
nobody has open and that have been left alone for long enough. It does all the work, so that whoever has started it, a
watcher, is not held up by a large directory, a hook, or its own socket.
"""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

from holdfast.engine.modules import start
from holdfast.engine.sessions import idle_saving
from holdfast.engine.sessions.holding import is_held, lock_path
from holdfast.model.errors import HoldfastError, LockedError
from holdfast.model.log import Log, inherited
from holdfast.model.named import NamedTuple
from holdfast.store.session_rows import SessionRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from holdfast.engine.opening import Opener
    from holdfast.model.clock import Clock
    from holdfast.model.ids import WorkspaceId
    from holdfast.model.session import SessionId
    from holdfast.store.session_records import Unsaved

_LOG = Log(__name__)
_SECOND = 1_000_000
_FIRST_RETRY = 30.0
_LAST_RETRY = 3600.0
_LEAST_WAIT = 1.0
_SHARE = 3
"""The catalog is asked so many times in the time that a session has to be idle for."""
_SHORTEST, _LONGEST = 1.0, 30.0
"""But never more often, and never less often."""
_AT_ONCE = 20
"""So many sessions are given to one process."""
_MOST_SECONDS = 600.0
"""So long may that take."""
_END_SECONDS = 5.0


class _Try:
    """What came of trying to save a session."""

    __slots__ = ("failures", "not_before", "revision", "said")

    def __init__(self, revision: int, said: str) -> None:
        self.revision = revision
        """The journal's: all but ``said`` is of that one alone."""
        self.not_before = 0.0
        self.failures = 0
        self.said = said
        """Why it failed the last time that this was told."""


class Plan:
    """Which sessions to try when. No I/O; time is the clock's."""

    def __init__(self, idle: float, clock: Clock) -> None:
        """``idle`` is for how many seconds nothing must have been done in a session; it may want more itself."""
        self._idle = idle
        self._clock = clock
        self._tries: dict[SessionId, _Try] = {}

    def choose(self, unsaved: Iterable[Unsaved], is_open: Callable[[SessionId], bool]) -> list[SessionId]:
        """Some of ``unsaved``, which is all that there are, to be tried now. Until it is told what came of it, each is
        chosen again.
        """
        before, self._tries = self._tries, {}
        chosen: list[SessionId] = []
        for one in unsaved:
            tried = before.get(one.session)
            if tried is None or tried.revision != one.revision:
                tried = _Try(one.revision, "" if tried is None else tried.said)
            self._tries[one.session] = tried
            left_alone = (self._clock.now() - one.updated_at) / _SECOND >= self._idle
            may_be_tried = left_alone and self._clock.monotonic() >= tried.not_before and len(chosen) < _AT_ONCE
            if may_be_tried and not is_open(one.session):
                chosen.append(one.session)
        return chosen

    def later(self, session: SessionId, seconds: float | None) -> None:
        """It need not be tried for so many seconds (None: before something happens in it)."""
        wait = float("inf") if seconds is None else max(_LEAST_WAIT, seconds)
        self._tries[session].not_before = self._clock.monotonic() + wait

    def failed(self, session: SessionId, why: str = "") -> bool:
        """It could not be saved: it is tried again, and each time later. Whether anybody has to be told ``why``."""
        tried = self._tries[session]
        wait = min(_FIRST_RETRY * 2.0 ** min(tried.failures, 20), _LAST_RETRY)
        tried.not_before = self._clock.monotonic() + wait
        tried.failures += 1
        is_news = bool(why) and why != tried.said
        tried.said = why or tried.said
        return is_news


class _Home(NamedTuple):
    """A tenant of a home, opened."""

    opener: Opener
    plan: Plan
    idle: float


class Idling:
    """Has idle sessions saved, on a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        places: Callable[[], Mapping[str, Collection[WorkspaceId]]],
        open_tenant: Callable[[str], Opener],
        clock: Clock,
    ) -> None:
        """``places`` are the workspaces, by tenant, in which, and in whose forks, sessions are seen to. ``open_tenant``
        gives a new opener of a tenant. Both are called on that thread.
        """
        self._places = places
        self._open_tenant = open_tenant
        self._clock = clock
        self._homes: dict[str, _Home] = {}
        self._said = ""
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._go_on, name="holdfast-idle", daemon=True)

    def start(self) -> None:
        """Begin. Where no thread can be started that is said, and nothing is done."""
        try:
            self._thread.start()
        except RuntimeError as error:
            _LOG.warning("sessions that are idle are not saved: %s", error)

    def stop(self) -> None:
        """End at once; a session that is just being saved stays as it is in its journal. Harmless a second time."""
        self._stopping.set()
        with self._turn:
            if self._process is not None:
                self._process.terminate()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _go_on(self) -> None:
        wait = _SHORTEST
        try:
            while not self._stopping.wait(wait):
                wait = self._look()
        finally:
            for home in self._homes.values():
                home.opener.close()

    def _look(self) -> float:
        """See to all that there is; seconds until the next time."""
        wait = _LONGEST
        try:
            for tenant, workspaces in self._places().items():
                home = self._homes.get(tenant) or self._open(tenant)
                wait = min(wait, max(_SHORTEST, home.idle / _SHARE))
                self._see_to(home, workspaces)
                home.opener.store().catalog.database.save_memory()
            self._said = ""
        except Exception as error:  # noqa: BLE001 - it is tried again, and nothing else depends on it
            why = error.message if isinstance(error, HoldfastError) else repr(error)
            if why != self._said:
                _LOG.warning("sessions that are idle are not saved: %s", why)
            self._said = why
        return wait

    def _open(self, tenant: str) -> _Home:
        opener = self._open_tenant(tenant)
        try:
            idle = opener.open_home().settings.session.idle
            self._homes[tenant] = _Home(opener, Plan(idle, self._clock), idle)
        except BaseException:
            opener.close()
            raise
        return self._homes[tenant]

    def _see_to(self, home: _Home, workspaces: Collection[WorkspaceId]) -> None:
        store = home.opener.store()
        rows = SessionRows(store.catalog)

        def is_open(session: SessionId) -> bool:
            return is_held(lock_path(home.opener.home, store.tenant, session))

        while chosen := home.plan.choose(rows.unsaved(workspaces), is_open):
            said = {one.session: one for one in self._saved(home.opener, chosen)}
            if self._stopping.is_set():
                return
            for session in chosen:
                if session in said:
                    _note(home.plan, said[session])
                else:
                    home.plan.failed(session)

    def _saved(self, opener: Opener, sessions: Sequence[SessionId]) -> list[idle_saving.Said]:
        """What a process says that was told to save these, in its order; it may have been ended before all."""
        order = idle_saving.order_for(opener.home, opener.flags, sessions, inherited())
        with self._turn:
            if self._stopping.is_set():
                return []
            self._process = process = start(idle_saving.__name__, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            try:
                answer = process.communicate(order.encode(), _MOST_SECONDS)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                answer = process.communicate()[0]
        finally:
            with self._turn:
                self._process = None
        said = idle_saving.decode(answer)
        if len(said) < len(sessions) and not self._stopping.is_set():
            why = HoldfastError("the process that was to save it was ended, or took too long")
            said.append(idle_saving.Said(sessions[len(said)], error=why))
        return said


def _note(plan: Plan, said: idle_saving.Said) -> None:
    """Keep in mind what became of a session, and tell what a person should know."""
    if said.error is None:
        plan.later(said.session, None if said.seconds == 0 else said.seconds)
        if said.seconds == 0:
            _LOG.info("saved the session %s, which was idle", said.session)
    elif isinstance(said.error, LockedError):
        plan.failed(said.session)  # somebody is at it, or changes the tree
    elif plan.failed(said.session, said.error.message):
        advice = f" ({said.error.hint})" if said.error.hint else ""
        _LOG.warning("the session %s is idle, and cannot be saved: %s%s", said.session, said.error.message, advice)
