"""Commands in one workspace, one after the other, by a supervised shim; each is a step.

The session owns the numbers: it has the keeper open a step, sends the command with the step's id, and has the step
closed when the shim reports the command's end. Of the shim's messages, only output and exit code are trusted.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from holdfast.engine.hosting.launcher import Launch, Launcher
from holdfast.engine.running.child_start import refused_call
from holdfast.engine.running.run import new_run_id
from holdfast.model.errors import ChannelError, HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log, child_level
from holdfast.model.paths import display
from holdfast.processes.child_environment import inherited_environment
from holdfast.sandbox.channel import Channel
from holdfast.undo.service import OFF

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.hosting._nested_session import EnclosingRun, InnerShim
    from holdfast.model.config.settings import Isolation
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.undo.service import (
        ConflictInfo,
        LogLimits,
        PathChange,
        StepInfo,
        StepOutcome,
        Thresholds,
        UndoService,
    )
    from holdfast.wire.control_channel import Stream

_log = Log(__name__)

START_SECONDS: Final = 60.0
"""For the checkpoint that a run begins with, too."""
STOP_SECONDS: Final = 60.0
_PAUSE_SECONDS = 0.02

State = Literal["stopped", "idle", "running", "failed"]


class CommandOutcome(NamedTuple):
    """The result of a command."""

    step: int
    """Its id, also if it changed nothing."""
    exit_code: int
    """128 and the number of the signal that ended it, if one did."""
    info: StepInfo | None
    """The step in the undo log; None if it changed nothing."""
    changes: Sequence[PathChange]
    conflicts: Sequence[ConflictInfo]
    """The conflicts where the step was rolled back."""
    cancelled: bool
    denied: bool
    """A person denied one of its operations, or did not answer: it was rolled back."""
    output_open: bool
    """A background process still holds its output; later output is discarded."""
    oldest: int | None
    """Of the steps of commands that the undo log still holds."""


class LostCommand(NamedTuple):
    """The facts about a command whose end is unknown."""

    step: int
    info: StepInfo | None
    """None if it changed nothing, or the keeper was lost: then it is rolled back."""
    changes: Sequence[PathChange]
    conflicts: Sequence[ConflictInfo]
    """The conflicts where the step was rolled back."""
    cancelled: bool
    denied: bool


class CommandExecutor:
    """See the module. Any thread may call; commands wait for each other."""

    def __init__(
        self,
        root: bytes,
        log: bytes,
        *,
        home: bytes,
        flags: Mapping[str, object] | None = None,
        isolation: Isolation | None = None,
        thresholds: Thresholds = OFF,
        inside: EnclosingRun | None = None,
        face: str = "",
        start_seconds: float = START_SECONDS,
    ) -> None:
        """``root`` and ``log`` are the directories of the workspace and of its undo log; ``thresholds`` are the limits
        at which a person is asked. ``inside`` is this process's run, if any: then commands belong to that. ``face``
        is the interface that the history shows. ``start_seconds`` limits the start of the shim. Nothing runs yet.
        """
        self._root = root
        self._undo_log = log
        self._home = home
        self._flags = dict(flags or {})
        self._isolation = isolation
        self._thresholds = thresholds
        self._environment = inherited_environment(os.environb)
        self._inside = inside
        self._face = face
        self._start_seconds = start_seconds
        self._turn = threading.Lock()
        """Held by the thread that starts, stops, or has a command run."""
        self._launcher: Launcher | InnerShim | None = None
        self._channel: Channel | None = None
        self._step: int | None = None
        self._cancelled = False
        self._failure: HoldfastError | None = None
        self.run = ""
        """The id of the run, while there is one, and of the last one."""
        self.read_only: Sequence[bytes] = ()
        """The real paths of directories that no command may change anything beneath, from the next start on."""
        self.limits: LogLimits | None = None
        """Of the undo log, where a start begins to keep it; None: as the settings say."""
        self.on_join: Callable[[RemoteUndoService], object] = lambda _keeper: None
        """Called with the keeper before the first command."""

    @property
    def state(self) -> State:
        """Its present state."""
        if self._channel is None:
            return "failed" if self._failure is not None else "stopped"
        return "idle" if self._step is None else "running"

    @property
    def step(self) -> int | None:
        """The step of the command that runs now."""
        return self._step

    def start(self) -> None:
        """Save the state, and begin a run; nothing if there is one. Raises what `holdfast run` does."""
        with self._turn:
            self._start()

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
        """Run ``command`` with ``sh -c`` in ``directory`` (absolute, or in the workspace), after earlier ones.

        ``environment`` is added to the session's. ``on_start`` receives the step's id; ``on_output`` the output, in
        order for each stream: while a call of it lasts, the command may block. Starts the session if necessary.
        Raises `NotFoundError` (``no_directory``), `ChannelError` if the shim is gone: then the session has failed, its
        processes end, and the next command begins another. If it raises after ``on_start``, ``on_lost`` receives the
        known facts about the step.
        """
        cwd = os.path.join(self._root, directory)
        if not os.path.isdir(cwd):
            raise NotFoundError(f"there is no directory {display(directory)}", code="no_directory")
        with self._turn:
            channel = self._start()
            keeper = self._keeper()
            with keeper:
                self._step = step = self._open(keeper, command)
                self._cancelled = False
                has_begun = False
                try:
                    on_start(step)
                    has_begun = True
                    done = channel.execute(step, command, cwd=cwd, env=environment or {}, on_output=on_output)
                except BaseException as error:
                    if isinstance(error, ChannelError):
                        self._fail(error)  # first: changes until the command's end belong to its step
                    lost = self._left(keeper, step)
                    if has_begun:
                        on_lost(lost)
                    if isinstance(error, ChannelError) and (cause := self._failure) is not None:
                        # The launcher knows the cause better than the channel.
                        raise ChannelError(cause.message, hint=cause.hint, code=cause.code) from error
                    raise
                finally:
                    self._step = None
                if why := refused_call(done.exit_code):
                    on_output("stderr", f"holdfast: {why}\n".encode())
                settled = self._close(keeper, step, done.exit_code)
                changes = keeper.changes(step) if settled.info is not None else ()
                conflicts = keeper.conflicts(step) if settled.info is not None else ()
                return CommandOutcome(
                    step,
                    done.exit_code,
                    settled.info,
                    changes,
                    conflicts,
                    self._cancelled,
                    settled.denied,
                    done.output_open,
                    oldest_step(keeper),
                )

    def cancel(self, only: int | None = None) -> bool:
        """End the running command (``only``: if that is its step): SIGTERM to its process group, and then SIGKILL.
        False if there is none, or it has not been sent yet.
        """
        step, channel = self._step, self._channel
        if step is None or channel is None or only not in (None, step):
            return False
        self._cancelled = True
        return channel.cancel(step)

    def guard(self, thresholds: Thresholds) -> None:
        """Change the limits at which a person is asked, now and for every later start."""
        self._thresholds = thresholds
        keeper = self._visited() if self._channel is not None else None
        if keeper is None:
            return
        with keeper:
            if keeper.serves(self.run):
                keeper.guard(self.run, thresholds)

    def notify_rollback(self, step: int) -> None:
        """Tell what runs that a step was rolled back."""
        channel = self._channel
        if channel is not None:
            with suppress(ChannelError):
                channel.notify_rollback(step)

    def stop(self) -> None:
        """End the running command, the shim, and the run, whose final state is saved. Raises the errors of that."""
        channel = self._channel
        if channel is not None:
            channel.close()  # wakes the thread that waits for a command
        with self._turn:
            self._failure = None
            if (error := self._end()) is not None:
                raise error

    # -- the rest --------------------------------------------------------------------------------------------------

    def _start(self) -> Channel:
        if self._channel is not None:
            if self._launcher is not None and not self._launcher.is_over:
                return self._channel
            self._fail(ChannelError("the process that runs the commands has ended", code="shim_gone"))
        self.run = new_run_id(os.urandom) if self._inside is None else self._inside.run
        launch = Launch(
            home=self._home,
            root=self._root,
            flags=self._flags,
            run=self.run,
            thresholds=self._thresholds,
            limits=self.limits,
            isolation=self._isolation,
            environment=self._environment,
            read_only=tuple(self.read_only),
            face=self._face,
            log_level=child_level(),
        )
        try:
            self._launcher = Launcher(launch) if self._inside is None else self._inside.launch(launch)
        except OSError as error:
            raise StorageError(f"a session cannot be started: {error.strerror}") from error
        self._channel = Channel(self._launcher.reader, self._launcher.writer, start_seconds=self._start_seconds)
        try:
            self._wait_for_join()
            self._channel.await_shim(self._start_seconds, self._launcher.hindered_seconds)
        except HoldfastError as error:
            failure = self._end()
            self._failure = failure or error
            raise self._failure from None
        self._failure = None
        _log.info("session started", run=self.run)
        return self._channel

    def _wait_for_join(self) -> None:
        """Until the keeper knows the run."""
        assert self._launcher is not None
        deadline = time.monotonic() + START_SECONDS
        while not self._launcher.is_over:
            keeper = self._visited()
            if keeper is not None:
                with keeper:
                    if keeper.serves(self.run):
                        if self._inside is None:
                            keeper.guard(self.run, self._thresholds)  # which may have been changed meanwhile
                        self.on_join(keeper)
                        return
            if time.monotonic() > deadline:
                raise HoldfastError(f"the session has not begun within {START_SECONDS:g} s", code="not_started")
            time.sleep(_PAUSE_SECONDS)
        raise HoldfastError("the process that runs the commands ended at once", code="launcher_gone")

    def _open(self, keeper: RemoteUndoService, command: str) -> int:
        if self._inside is not None:
            return self._inside.begin(keeper, command)
        return keeper.expect(self.run, [b"sh", b"-c", command.encode("utf-8", "surrogateescape")])

    def _close(self, keeper: RemoteUndoService, step: int, exit_code: int | None) -> StepOutcome:
        if self._inside is not None:
            return self._inside.settle(keeper, step)
        return keeper.settle(step, exit_code)

    def _left(self, keeper: RemoteUndoService, step: int) -> LostCommand:
        """Close the step of a command that was lost, if that has not been done with its run."""
        denied, info, changes, conflicts = False, None, (), ()
        with suppress(HoldfastError):
            denied = self._close(keeper, step, None).denied
        with suppress(HoldfastError):  # the lost process may be the keeper
            info = next((info for info in keeper.steps() if info.id == step), None)
            changes = keeper.changes(step) if info is not None else ()
            conflicts = keeper.conflicts(step) if info is not None else ()
        return LostCommand(step, info, changes, conflicts, self._cancelled, denied)

    def _keeper(self) -> RemoteUndoService:
        keeper = self._visited()
        if keeper is None:
            raise RefusedError("the keeper of the undo log has ended", code="keeper_gone")
        return keeper

    def _visited(self) -> RemoteUndoService | None:
        from holdfast.supervisor.control.remote_service import visit

        return visit(self._undo_log)

    def _fail(self, error: HoldfastError) -> None:
        self._failure = self._end() or error
        if error.code != "channel_closed":
            _log.warning("the session has failed: %s", self._failure.message)

    def _end(self) -> HoldfastError | None:
        channel, launcher = self._channel, self._launcher
        self._channel = self._launcher = None
        if channel is not None:
            channel.close()
        if launcher is None:
            return None
        outcome = launcher.wait(STOP_SECONDS)
        _log.info("session ended", run=self.run, exit_code=outcome.exit_code)
        return outcome.error


def oldest_step(log: UndoService) -> int | None:
    """The oldest finished step of a command that the undo log still holds."""
    return min((step.id for step in log.steps() if step.id > 0 and step.state != "open"), default=None)
