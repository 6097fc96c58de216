"""One working directory of a host: its commands and files, its undo log, and what happens there that is an event."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.engine.diffs import file_browser
from holdfast.engine.hosting._nested_session import EnclosingRun
from holdfast.engine.hosting.executor import START_SECONDS, CommandExecutor, oldest_step
from holdfast.engine.hosting.monitor import HostWarning, Monitor, StepsRolledBack, VersionMismatch
from holdfast.engine.opening.current_run import current_run
from holdfast.engine.opening.home import own_directories
from holdfast.engine.opening.opener import Opener
from holdfast.engine.opening.undo_log import log_directory, make_log, open_service, prepare_log, require_service
from holdfast.engine.opening.undo_log import log_limits as configured_limits
from holdfast.engine.running.run import configured_thresholds
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.undo.service import OFF, strictest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.hosting.executor import CommandOutcome, LostCommand, State
    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.opening.context import Context
    from holdfast.model.config.settings import Isolation
    from holdfast.model.ids import CheckpointId
    from holdfast.model.machine import RunningMachine
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.undo.service import LogLimits, StepInfo, Thresholds, TicketInfo, UndoReport, UndoService
    from holdfast.wire.control_channel import Stream

_log = Log(__name__)

MAX_EDITED_BYTES: Final = file_browser.MAX_READ_BYTES

Access = Literal["read_write", "read_only"]


class DirectorySpec(NamedTuple):
    """The specification of a working directory."""

    path: bytes
    label: str = ""
    """Another name for it. Empty: the last part of its path, or all of it if that is ambiguous."""
    access: Access = "read_write"


class DirectoryRules(NamedTuple):
    """The rules in a working directory."""

    thresholds: Thresholds
    """The limits at which a person is asked."""
    limits: LogLimits
    """How much the undo log holds."""


class FileEdit(NamedTuple):
    """The result of `HostedDirectory.edit_file`."""

    step: StepInfo | None
    replaced: int
    """How many times."""


class HostedDirectory:
    """One working directory of a host. Any thread may call; only commands wait for each other.

    In a read-only directory every method raises `RefusedError` (``read_only``), except those that only read files.
    """

    def __init__(
        self,
        index: int,
        given: DirectorySpec,
        *,
        home: bytes | None,
        flags: Mapping[str, object] | None,
        isolation: Isolation | Callable[[Isolation], Isolation] | None,
        guard: bool,
        face: str,
        notify: Callable[[HostedDirectory, HostEvent], object],
    ) -> None:
        self.index = index
        self.access: Access = given.access
        self.given: bytes = os.path.realpath(given.path)
        self.path: bytes = self.given
        """The workspace's root, which may be above the given directory."""
        self.isolation: Isolation | None = None
        """Where its commands run; None where none do."""
        self.agent_command: Sequence[str] = ()
        """The coding agent that prompts go to, as the settings have it."""
        self.home = home
        self.flags: Mapping[str, object] = flags or {}
        """Settings that go before all others."""
        self._notify = notify
        self._session: CommandExecutor | None = None
        self._inside: EnclosingRun | None = None
        self._undo_log = b""
        self._own: Sequence[bytes] = ()
        """Directories that clients cannot reach, wherever they lie."""
        self._thresholds: Thresholds | None = None
        self._limits: LogLimits | None = None
        self._others: Sequence[bytes] = ()
        """The other working directories."""
        self._monitor: Monitor | None = None
        self._group: int | None = None
        """The step that `begin_step` has opened."""
        self._attendance: RemoteUndoService | None = None
        """The connection with which that ends: with this process, if it is killed."""
        self._oldest: int | None = None
        """Of the steps of commands in the undo log, after the last command."""
        self._is_mismatched = False
        """The version mismatch of the undo log was reported."""
        self._lock = threading.Lock()
        if given.access == "read_only":
            if not os.path.isdir(self.path):
                raise NotFoundError(f"there is no directory {display(self.path)}", code="no_such_path")
            opener = Opener(home=home, flags=flags)
            self._own = own_directories(opener.home, opener.settings(None))
            file_browser.find_directory(self.path, b"", own=self._own)
        else:
            self._begin(isolation, guard, face)
        self.label = given.label or os.fsdecode(os.path.basename(self.path)) or "/"

    def _begin(self, isolation: Isolation | Callable[[Isolation], Isolation] | None, guard: bool, face: str) -> None:
        opener = Opener(home=self.home, flags=self.flags)
        try:
            context, _ = opener.open_or_init(self.path)
            self.path = context.workspace.path
            self._own = own_directories(opener.home, context.settings)
            file_browser.find_directory(self.path, b"", own=self._own)
            self._thresholds = configured_thresholds(context.settings.safeguard, guard=guard)
            self._limits = configured_limits(context)
            self.agent_command = context.settings.agent.command
            configured = context.settings.isolation
            self.isolation = isolation(configured) if callable(isolation) else isolation or configured
            inside = current_run(context)
            self._undo_log = make_log(context) if inside is None else log_directory(context)
            self._own = (*self._own, self._undo_log)
            if inside is not None:
                self._inside = EnclosingRun(inside, self.path, self._undo_log, self._own)
                self.isolation = None  # it is as the run's
                self._thresholds = OFF
                _warn_ineffective(guard=guard, isolation=isolation)
            is_in_machine = self.isolation is not None and self.isolation.level == "vm"
            self._session = CommandExecutor(
                self.path,
                self._undo_log,
                home=opener.home,
                flags=self.flags,
                isolation=self.isolation,
                thresholds=self._thresholds,
                inside=self._inside,
                face=face,
                start_seconds=context.settings.vm.start_timeout if is_in_machine else START_SECONDS,
            )
            self._session.on_join = self._joined
        finally:
            opener.close()

    def keep_off(self, others: Sequence[bytes]) -> None:
        """No command here may change anything beneath these directories."""
        self._others = others
        if self._session is not None:
            self._session.read_only = others

    def refuse_others(self, path: bytes) -> None:
        """Raise `RefusedError` if the path lies in another working directory, where nothing is written from here."""
        real = os.path.realpath(path)
        for other in self._others:
            if under(real, other.rstrip(b"/")):
                raise RefusedError(
                    f"{display(path)} lies in {display(other)}, another working directory of this session",
                    hint="choose a path outside of them",
                )

    # -- commands ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the session."""
        return "stopped" if self._session is None else self._session.state

    @property
    def inside(self) -> str | None:
        """The id of the run that this process belongs to and is recorded with; None outside of runs.

        Commands are part of that run; undo must be requested outside of it, and the run's safeguards apply.
        """
        return None if self._inside is None else self._inside.run

    @property
    def run(self) -> str:
        """The id of the session's run; empty before the first one."""
        return "" if self._session is None else self._session.run

    @property
    def step(self) -> int | None:
        """The step of the command that runs now."""
        return None if self._session is None else self._session.step

    def start(self) -> None:
        """Finish what a killed keeper has left, which is an event, and begin a session. Nothing if there is one."""
        session = self._writable()
        if session.state in ("idle", "running"):
            return
        self.recover()
        session.start()

    def recover(self) -> None:
        """Finish what a killed keeper has left. All that was rolled back and not reported yet is an event; so
        is, once, an undo log of another version, which is set aside, or raises `VersionMismatchError` (`prepare_log`).
        """
        from holdfast.undo.journal.log_ownership import VersionMismatchError

        self._writable()
        with self._opened() as (_, context):
            try:
                self._take_notice(context)
            except VersionMismatchError as error:
                if not self._is_mismatched:
                    self._is_mismatched = True
                    self._notify(self, VersionMismatch(error))
                with context.lock(as_found=True):
                    prepare_log(context)
        self._is_mismatched = False

    def stop(self) -> None:
        """End what runs, and the session; its end is saved."""
        with self._lock:
            monitor, self._monitor = self._monitor, None
        if self._session is not None:
            if self._group is not None:
                with suppress(HoldfastError):  # it may have been closed, or ended with its keeper
                    self.commit_step()
            try:
                self._session.stop()
            finally:
                if monitor is not None:
                    monitor.stop()

    def execute(
        self,
        command: str,
        *,
        directory: bytes = b"",
        environment: Mapping[str, str] | None = None,
        on_output: Callable[[Stream, bytes], None],
        on_start: Callable[[int], None] = lambda _step: None,
        on_lost: Callable[[LostCommand], None] = lambda _lost: None,
    ) -> CommandOutcome:
        """See `Session.execute`. ``directory`` may lead there by links; raises `EscapeError` for one that leads out."""
        self.start()
        session = self._writable()
        try:
            place = file_browser.find_directory(self.path, directory, own=self._own)
        except HoldfastError as error:
            if error.code not in ("no_such_path", "not_a_directory"):
                raise
            raise NotFoundError(error.message, code="no_directory") from None
        try:
            done = session.execute(
                command,
                directory=place,
                environment=environment,
                on_output=on_output,
                on_start=on_start,
                on_lost=on_lost,
            )
        except HoldfastError:
            if session.state == "failed":
                with suppress(HoldfastError):
                    self.recover()
            raise
        if self._oldest is not None and (done.oldest is None or done.oldest > self._oldest):
            gone = (
                f"the undo log has forgotten step {self._oldest}, and maybe later ones: they cannot be undone any more"
            )
            self._notify(self, HostWarning("forgotten", gone))
        self._oldest = done.oldest
        if done.info is not None and done.info.unprotected:
            self._notify(self, HostWarning("unprotected", done.info.unprotected, done.step))
        return done

    def record_prompt(self, text: str) -> None:
        """Save the present state, and record in the history that the configured agent receives the prompt ``text``."""
        with self.workspace() as workspace:
            workspace.prompt(text, author=os.path.basename(self.agent_command[0]) if self.agent_command else None)

    def cancel(self, only: int | None = None) -> bool:
        """See `Session.cancel`."""
        return self._writable().cancel(only)

    # -- files ---------------------------------------------------------------------------------------------------------

    def list_directory(
        self, path: bytes = b"", *, after: bytes = b"", limit: int | None = None
    ) -> file_browser.DirectoryListing:
        """See `file_browser.list_directory`."""
        return file_browser.list_directory(self.path, path, own=self._own, after=after, limit=limit)

    def read_file(self, path: bytes, *, offset: int = 0, limit: int = file_browser.MAX_READ_BYTES) -> file_browser.Read:
        """See `file_browser.read_file`."""
        return file_browser.read_file(self.path, path, own=self._own, offset=offset, limit=limit)

    def read_saved(self, checkpoint: str, path: bytes, *, offset: int, limit: int) -> file_browser.Read:
        """A part of the file ``path`` as a checkpoint holds it, see `queries.read_part`."""
        from holdfast.engine.history.queries import read_part

        self._writable()
        with self._opened() as (workspace, context):
            return read_part(context, workspace.resolve(checkpoint), path, offset, limit)

    def write_file(self, path: bytes, content: bytes, *, expected: bytes | None = None) -> StepInfo | None:
        """See `UndoService.write`: a step of its own."""
        self._writable()
        if self._inside is not None:
            self._inside.require_served()
        fd = os.memfd_create("content", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(content)
            with self._opened() as (_, context), self._reached(context, always=True) as log:
                if self._inside is not None:
                    return self._inside.write(require_service(log), path, fd, expected)
                return require_service(log).write(path, fd, expected=expected, run=self.run)
        finally:
            os.close(fd)

    def edit_file(self, path: bytes, old: bytes, new: bytes, *, every: bool = False) -> FileEdit:
        """Replace ``old``, which must occur once (``every``: at least once), by ``new``: a step of its own.

        Nothing is written if another process changes the file meanwhile (``changed``). Raises `NotFoundError`
        (``no_match``), `RefusedError` (``many_matches``, ``too_large``), and as `read_file` and `write_file` do.
        """
        self._writable()
        if not old:
            raise UsageError("the text to replace is empty")
        read = self.read_file(path, limit=MAX_EDITED_BYTES)
        if read.hash is None and len(read.content) < MAX_EDITED_BYTES:
            raise RefusedError(
                f"{display(path)} was not written: another process changed it while it was read",
                hint="read it again",
                code="changed",
            )
        if read.hash is None:
            raise RefusedError(f"{display(path)} is larger than {MAX_EDITED_BYTES} bytes", code="too_large")
        count = read.content.count(old)
        if len(read.content) + count * (len(new) - len(old)) > MAX_EDITED_BYTES:
            raise RefusedError(f"{display(path)} would become larger than {MAX_EDITED_BYTES} bytes", code="too_large")
        if not count:
            raise NotFoundError(f"the text to replace is not in {display(path)}", code="no_match")
        if count > 1 and not every:
            raise RefusedError(
                f"the text to replace is in {display(path)} {count} times",
                hint="give more of the text around it, or replace all",
                code="many_matches",
            )
        return FileEdit(self.write_file(path, read.content.replace(old, new), expected=read.hash), count)

    # -- undo ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def workspace(self) -> Generator[Workspace]:
        """The workspace, opened for the length of the block: checkpoints, undo, history; for one thread.

        An unfinished step of a killed keeper is recovered first, with an event.
        """
        from holdfast.undo.journal.log_ownership import VersionMismatchError

        self._writable()
        with self._opened() as (workspace, context):
            with suppress(VersionMismatchError):  # operations that need the undo log raise it
                self._take_notice(context)
            yield workspace

    def unfinished_restore(self) -> CheckpointId | None:
        """The target of an interrupted restore: until it is finished or reversed there is no other undo or redo."""
        self._writable()
        with self._opened() as (workspace, _):
            journal = workspace.unfinished()
            return None if journal is None else journal.target

    @contextmanager
    def undo_log(self) -> Generator[UndoService | None]:
        """The undo log, or its keeper, for the length of the block; None if nothing was recorded yet."""
        self._writable()
        with self._opened() as (_, context), self._reached(context) as log:
            yield log

    def begin_step(self, label: str = "") -> int:
        """Open a step that takes in all that is changed until it is closed, by commands, writes and other runs here;
        its id. Begins the session. Raises `RefusedError` if such a step is open already, by any process.
        """
        self.start()
        with self.workspace() as workspace:
            try:
                self._group = self._begin_attended(workspace, label)
            except RefusedError as error:
                if self._group is None:
                    raise
                raise RefusedError(error.message, code="open_step") from error
            return self._group

    def _begin_attended(self, workspace: Workspace, label: str) -> int:
        from holdfast.supervisor.control.remote_service import visit

        # A step that a process of a run opens ends with the run anyway, so no connection has to end it.
        keeper = visit(self._undo_log) if self._inside is None else None
        if keeper is None:
            return workspace.begin_step(label)
        try:
            step = keeper.begin_attended(label)
        except BaseException:
            keeper.close()
            raise
        self._attendance = keeper
        return step

    def commit_step(self) -> StepInfo:
        """Close the step that `begin_step` has opened. Raises `NotFoundError` (``no_open_step``) if it is not open, and
        `RefusedError` (``denied``).
        """
        with self.workspace() as workspace, self._closing_group() as group:
            return workspace.commit_step(group)

    def rollback_step(self) -> UndoReport:
        """Close the step and roll it back. Raises as `commit_step`."""
        with self.workspace() as workspace, self._closing_group() as group:
            report = workspace.rollback_step(group)
        self.rolled_back(report.steps)
        return report

    def abandon_step(self, step: int) -> None:
        """The client that began the step has disconnected: the step is committed, if it is still open, and its label
        says so.
        """
        if self._group != step:
            return
        attended = self._attendance is not None  # the keeper commits it when the connection ends
        with suppress(HoldfastError), self._closing_group():
            if not attended:
                with self.workspace() as workspace:
                    workspace.commit_step(step)

    @contextmanager
    def _closing_group(self) -> Generator[int]:
        """Take over the step that was opened here, to close it. A client cannot close a person's step."""
        group, self._group = self._group, None
        if group is None:
            raise NotFoundError("no step was begun here that is open", code="no_open_step")
        attendance, self._attendance = self._attendance, None
        try:
            yield group
        finally:
            if attendance is not None:
                attendance.close()

    def rolled_back(self, steps: Sequence[int]) -> None:
        """Call it after an undo: running commands are informed about the undone steps."""
        session = self._writable()
        for step in steps:
            session.notify_rollback(step)

    def answer(self, ticket: int, *, asked_at: int, allow: bool) -> TicketInfo:
        """Allow or deny the operation that was held at ``asked_at``. Raises `NotFoundError` if it no longer waits:
        another keeper counts its tickets anew, and a late answer must not apply to one of those.
        """
        with self.undo_log() as found:
            log = require_service(found)
            if not any(held.id == ticket and held.asked_at == asked_at for held in log.held()):
                raise NotFoundError("no change waits for this answer, or it no longer does")
            return log.answer(ticket, allow=allow)

    def guard(self, thresholds: Thresholds) -> None:
        """Change the limits of this host at which a person is asked, for its lifetime. Others' limits apply as
        well, see `rules`.
        """
        session = self._writable()
        with self._lock:
            self._thresholds = thresholds
            session.guard(thresholds)

    def limit(self, limits: LogLimits) -> None:
        """Change how much the undo log holds: at once, if a process keeps it, and where this host begins to."""
        session = self._writable()
        with self._lock:
            self._limits = session.limits = limits
            with self.undo_log() as log:
                if log is not None:
                    log.configure(limits)

    @property
    def thresholds(self) -> Thresholds:
        """The limits of this host at which a person is asked."""
        self._writable()
        assert self._thresholds is not None
        return self._thresholds

    def rules(self, log: UndoService | None) -> DirectoryRules:
        """The rules for a command here, by the undo log (see `undo_log`): the strictest limits at which any present
        client wants a person asked, and the undo log's own limits as they were last set.
        """
        assert self._limits is not None
        if log is None:
            return DirectoryRules(self.thresholds, self._limits)
        held_to = strictest([self.thresholds, log.thresholds()])
        return DirectoryRules(held_to if held_to.asks else self.thresholds, log.limits())

    # -- its virtual machine -------------------------------------------------------------------------------------------

    def machine(self) -> RunningMachine | None:
        """The virtual machine that its commands run in; None if none does."""
        if self.isolation is None or self.isolation.level != "vm":
            return None
        with self._opened() as (workspace, _):
            return next((one for one in workspace.vm_status().running if one.run == self.run), None)

    def reset_machine(self) -> None:
        """Have the next virtual machine begin as its image is. Raises `RefusedError` while one runs."""
        if self.isolation is not None and self.isolation.level == "vm":
            with self._opened() as (workspace, _):
                workspace.vm_reset()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _writable(self) -> CommandExecutor:
        if self._session is None:
            raise RefusedError(f"{self.label} is read-only here", code="read_only")
        return self._session

    @contextmanager
    def _opened(self) -> Generator[tuple[Workspace, Context]]:
        opener = Opener(home=self.home, flags=self.flags)
        try:
            context = opener.open(self.path)
            yield Workspace(opener, context), context
        finally:
            opener.close()

    def _reached(self, context: Context, *, always: bool = False) -> AbstractContextManager[UndoService | None]:
        return open_service(context, always=always, on_report=self._told, own_limits=self._limits)

    def _take_notice(self, context: Context) -> None:
        from holdfast.undo.reports.unreported_rollbacks import take_rollbacks

        if self._inside is not None:
            return  # the run did it before it began
        with self._reached(context) as log:  # opening it recovers unfinished steps
            for report in () if log is None else take_rollbacks(self._undo_log):
                self._told(report)

    def _told(self, report: UndoReport) -> None:
        self._notify(self, StepsRolledBack(report))

    def _joined(self, keeper: RemoteUndoService) -> None:
        self._oldest = oldest_step(keeper)
        with self._lock:
            if self._monitor is None:
                self._monitor = Monitor(self._undo_log, lambda event: self._notify(self, event), keeper)


def _warn_ineffective(*, guard: bool, isolation: object) -> None:
    for name, is_given in (("guard", guard), ("isolation", isolation is not None)):
        if is_given:
            _log.warning("%s has no effect inside of a run: the options of `holdfast run` apply", name)
