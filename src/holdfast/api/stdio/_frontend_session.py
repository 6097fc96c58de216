"""The one session of a process: its host, and the commands of each working directory."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.api.stdio import _event_messages as event_messages
from holdfast.api.stdio import _result_types as result_types
from holdfast.api.stdio._command_queue import CommandLane
from holdfast.api.stdio._directory_operations import VERSION_MISMATCH, guarding_object
from holdfast.engine.hosting.host import Host
from holdfast.engine.hosting.working_directory import DirectorySpec
from holdfast.engine.running.isolation import adjust
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.json_encoder import encode
from holdfast.model.log import Log
from holdfast.model.paths import display, parse_display

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from holdfast.api.stdio._messages import SafeguardConfirm, SessionStart
    from holdfast.api.stdio._outbox import Outbox
    from holdfast.api.stdio._result_types import Result
    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import DirectoryRules, HostedDirectory
    from holdfast.model.config.settings import Isolation
    from holdfast.undo.service import TicketInfo

_log = Log(__name__)

_BACKEND = "supervisor"


class _Session(NamedTuple):
    asked: SessionStart
    host: Host
    lanes: Sequence[CommandLane]


class FrontendSessions:
    """See the module. Any thread may call; what begins or ends the session waits for each other."""

    def __init__(
        self,
        *,
        home: bytes | None,
        directory: bytes,
        pool: Executor,
        outbox: Outbox,
        answer: Callable[[str, Result | HoldfastError], object],
    ) -> None:
        """``directory``: the default working directory, and the base of relative paths. For the rest see `Host` and
        `CommandLane`.
        """
        self._home = home
        self._directory = directory
        self._pool = pool
        self._outbox = outbox
        self._answer = answer
        self._turn = threading.Lock()
        """Held by the thread that begins or ends the session."""
        self._session: _Session | None = None
        self._is_closed = False

    def start(self, asked: SessionStart) -> result_types.SessionStatus:
        """Begin. Raises `RefusedError` (``session_exists``), and what `Host` and a session raise."""
        with self._turn:
            if self._session is not None:
                raise RefusedError("there is a session already", hint="session.stop ends it", code="session_exists")
            self._start(asked)
        return self.status()

    def stop(self) -> result_types.Done:
        """End the session and its commands; the final state is saved. Does nothing without a session."""
        with self._turn:
            self._stop()
        return result_types.Done()

    def reset(self) -> result_types.SessionStatus:
        """End the session, and begin anew in the same directories; virtual machines start from their image. Raises
        `RefusedError` (``no_session``) without a session.
        """
        with self._turn:
            session = self._current()
            self._stop()
            for hosted in session.host.directories:
                hosted.reset_machine()
            self._start(session.asked)
        return self.status()

    def status(self) -> result_types.SessionStatus:
        """The state of the session."""
        session = self._session
        if session is None:
            return result_types.SessionStatus(state="stopped", backend=_BACKEND, directories=[])
        directories = [_directory_status(*each) for each in zip(session.host.directories, session.lanes, strict=True)]
        states = {each.state for each in directories}
        state = "error" if "failed" in states else "running" if "running" in states else "idle"
        return result_types.SessionStatus(state=state, backend=_BACKEND, directories=directories)

    def close(self) -> None:
        """End it, and let none begin any more."""
        with self._turn:
            self._is_closed = True
            self._stop()

    def hosted(self, which: int | str | None) -> HostedDirectory:
        """A working directory. Raises `RefusedError` (``no_session``) and `NotFoundError` (``no_directory``)."""
        return self._current().host.directory(which)

    def lane(self, which: int | str | None) -> tuple[HostedDirectory, CommandLane]:
        """A working directory, and its commands. Raises as `hosted`."""
        session = self._current()
        hosted = session.host.directory(which)
        return hosted, session.lanes[hosted.index]

    def cancel(self, request_id: str) -> result_types.Cancelled:
        """End a command, or take it out of the queue."""
        return result_types.Cancelled(cancelled=any(lane.cancel(request_id) for lane in self._current().lanes))

    def confirm(self, asked: SafeguardConfirm) -> result_types.Answered:
        """Pass a person's answer on. Raises `NotFoundError` if nothing waits for it (any more)."""
        try:
            index, ticket, asked_at = (int(part) for part in asked.safeguard_id[:100].split("-"))
        except ValueError:
            raise NotFoundError(f"safeguard_id: there was no {asked.safeguard_id[:100]!r}") from None
        self.hosted(index).answer(ticket, asked_at=asked_at, allow=asked.action == "allow")
        return result_types.Answered(safeguard_id=asked.safeguard_id, action=asked.action)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _start(self, asked: SessionStart) -> None:
        if self._is_closed:
            raise RefusedError("the process is ending", code="session_stopped")
        said = {
            name: value for name, value in msgspec.structs.asdict(asked.isolation).items() if value is not msgspec.UNSET
        }

        def isolation(configured: Isolation) -> Isolation:
            return adjust(configured, said)

        given = [
            DirectorySpec(os.path.join(self._directory, parse_display(each.path)), each.label, each.access)
            for each in asked.working_directories or ()
        ] or [DirectorySpec(self._directory)]
        host = Host(
            given,
            home=self._home,
            flags={
                name: said
                for name, said in (("undo.outside", asked.outside), ("vm.mode", asked.vm_mode))
                if said is not None
            },
            isolation=isolation if said else None,
            guard=asked.guard,
            face="stdio",
            notify=self._told,
        )
        try:
            _begin_all(host.directories)
        except BaseException:
            host.close()
            raise
        lanes = [
            CommandLane(hosted, pool=self._pool, outbox=self._outbox, answer=self._answer)
            for hosted in host.directories
        ]
        self._session = _Session(asked, host, lanes)

    def _stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            for lane in session.lanes:
                lane.close()
            session.host.close()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _current(self) -> _Session:
        session = self._session
        if session is None:
            raise RefusedError("there is no session", hint="session.start begins one", code="no_session")
        return session

    def _told(self, hosted: HostedDirectory, event: HostEvent) -> None:
        try:
            self._outbox.offer(event_messages.encode_event(hosted, event))
        except Exception:  # noqa: BLE001 - the thread that tells goes on
            _log.exception("an event could not be told", event=type(event).__name__)


def _begin_all(directories: Sequence[HostedDirectory]) -> None:
    """Call `_begin` for all, concurrently: each saves a state and starts processes of its own. Raises the first error,
    after all have ended.
    """
    with ThreadPoolExecutor(len(directories), "begin") as pool:
        begun = [pool.submit(copy_context().run, _begin, hosted) for hosted in directories]
    for one in begun:
        one.result()


def _begin(hosted: HostedDirectory) -> None:
    """Start its session. A read-only directory gets none, nor one whose undo log has another version and cannot be set
    aside: it still offers everything that needs no undo log.
    """
    if hosted.access == "read_only":
        return
    try:
        hosted.start()
    except HoldfastError as error:
        if error.code != VERSION_MISMATCH:
            raise


def _directory_status(hosted: HostedDirectory, lane: CommandLane) -> result_types.DirectoryStatus:
    rules, held = _of_the_log(hosted) if hosted.access == "read_write" else (None, [])
    return result_types.DirectoryStatus(
        index=hosted.index,
        label=hosted.label,
        path=display(hosted.path),
        access=hosted.access,
        state=hosted.state,
        run=hosted.run,
        step_id=hosted.step,
        queued=lane.queued,
        isolation=None if hosted.isolation is None else hosted.isolation.level,
        machine=_machine(hosted),
        undo=None if rules is None else encode(result_types.UndoLimits, rules.limits),
        safeguard=None if rules is None else guarding_object(rules.thresholds, hosted.thresholds),
        held=held,
        unfinished_restore=None if hosted.access == "read_only" else hosted.unfinished_restore(),
    )


def _machine(hosted: HostedDirectory) -> result_types.MachineInfo | None:
    found = hosted.machine()
    if found is None:
        return None
    return result_types.MachineInfo(
        image=found.image,
        accelerator=found.accelerator,
        filesystem=found.filesystem,
        persistent=found.persistent,
        memory_bytes=found.memory_bytes,
    )


def _of_the_log(hosted: HostedDirectory) -> tuple[DirectoryRules, list[result_types.Waiting]]:
    try:
        with hosted.undo_log() as log:
            rules = hosted.rules(log)
            tickets: Sequence[TicketInfo] = () if log is None else log.held()
    except HoldfastError as error:  # the log has another version: no command runs, so no operation is held
        _log.info("%s", error.message)
        return hosted.rules(None), []
    return rules, [event_messages.waiting(hosted.index, ticket) for ticket in tickets]
