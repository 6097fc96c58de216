"""The commands of one working directory: they run one after the other, and their output goes to the client."""

from __future__ import annotations

import base64
import shlex
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from holdfast.api._error_details import FOR_FRONTENDS, hint
from holdfast.api._request_arguments import path_in
from holdfast.api.stdio import _event_messages as event_messages
from holdfast.api.stdio import _result_types as result_types
from holdfast.engine.hosting.executor import CommandOutcome
from holdfast.model.errors import ChannelError, HoldfastError, RefusedError, UsageError, unexpected
from holdfast.model.log import Log, logged
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from holdfast.api.stdio._outbox import Outbox
    from holdfast.api.stdio._result_types import Result
    from holdfast.engine.hosting.executor import LostCommand
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.wire.control_channel import Stream

_log = Log(__name__)

MAX_QUEUED: Final = 64
MAX_COMMAND_BYTES: Final = 128 << 10
"""The kernel's limit for one argument, including its terminator."""
_PROMPT = "{prompt}"
_PAUSE_SECONDS = 0.02


class QueuedCommand:
    """One that waits, or runs."""

    def __init__(
        self,
        request_id: str,
        command: str,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        output: type[event_messages.TerminalOutput] = event_messages.TerminalOutput,
        prompt: str | None = None,
    ) -> None:
        """``output`` is the event for pieces of output; ``cwd`` is as clients give it; ``prompt`` is the agent's task,
        for the history. Raises `UsageError`.
        """
        if len(command.encode("utf-8", "surrogatepass")) >= MAX_COMMAND_BYTES:
            raise UsageError(
                f"a command, or a prompt with the agent's command, has less than {MAX_COMMAND_BYTES} bytes",
                hint="put long input into a file",
                code="too_large",
            )
        self.request_id = request_id
        self.command = command
        self.cwd = cwd
        self.env = env or {}
        self.output = output
        self.prompt = prompt
        self.step: int | None = None
        self.is_abandoned = False
        """The session ends: no client waits for it any more."""
        self.is_cancelled = False
        """The client has asked for its end."""
        self.was_cancelled = False
        """And that was its end."""
        self.over = threading.Event()


class CommandLane:
    """See the module. Any thread may call."""

    def __init__(
        self,
        hosted: HostedDirectory,
        *,
        pool: Executor,
        outbox: Outbox,
        answer: Callable[[str, Result | HoldfastError], object],
    ) -> None:
        """``answer`` receives the answer to each request, once."""
        self._hosted = hosted
        self._pool = pool
        self._outbox = outbox
        self._answer = answer
        self._turn = threading.Lock()
        """Of all that follows."""
        self._waiting: deque[QueuedCommand] = deque()
        self._running: QueuedCommand | None = None
        self._is_draining = False
        self._is_closed = False

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def submit(self, command: QueuedCommand) -> None:
        """Run it when its turn has come. Raises `RefusedError` (``queue_full``, ``session_stopped``)."""
        with self._turn:
            if self._is_closed:
                raise _stopped()
            if len(self._waiting) >= MAX_QUEUED:
                raise RefusedError(f"{MAX_QUEUED} commands are waiting already", code="queue_full")
            self._waiting.append(command)
            if not self._is_draining:
                self._is_draining = True
                self._pool.submit(self._drain)

    def cancel(self, request_id: str) -> bool:
        """End it, or take it out of the queue; False if it is not here, or has ended by itself meanwhile."""
        with self._turn:
            waiting = next((each for each in self._waiting if each.request_id == request_id), None)
            if waiting is not None:
                self._waiting.remove(waiting)
            command = self._running
            if command is not None and command.request_id == request_id:
                command.is_cancelled = True
        if waiting is not None:
            self._answer(request_id, _cancelled())
            return True
        if command is None or command.request_id != request_id:
            return False
        # The command may be on its way to the shim. Until the shim knows its step, nothing can cancel it.
        while not command.over.wait(_PAUSE_SECONDS):
            if command.step is not None and self._hosted.cancel(command.step):
                return True
        return command.was_cancelled

    def close(self) -> None:
        """Answer the waiting requests and accept no more; does not wait for a running command and its output."""
        with self._turn:
            self._is_closed = True
            left = list(self._waiting)
            self._waiting.clear()
            if self._running is not None:
                self._running.is_abandoned = True
        self._outbox.nudge()
        for command in left:
            self._answer(command.request_id, _stopped())

    def _drain(self) -> None:
        while True:
            with self._turn:
                if not self._waiting:
                    self._running = None
                    self._is_draining = False
                    return
                command = self._running = self._waiting.popleft()
            with logged(request_id=command.request_id):
                result = self._outcome(command)
                command.over.set()
                self._answer(command.request_id, result)

    def _outcome(self, command: QueuedCommand) -> Result | HoldfastError:
        try:
            done = self._run(command)
        except ChannelError as error:
            if self._is_closed:
                return _stopped()
            advice = hint(error, FOR_FRONTENDS)
            said = event_messages.Error(
                directory=self._hosted.index, code=error.code, message=error.message, hint=advice
            )
            self._outbox.owe(event_messages.line(said))
            return error
        except HoldfastError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is waiting for an answer
            _log.exception("a command failed by a mistake")
            return unexpected(error)
        command.was_cancelled = done.cancelled
        self._outbox.owe(event_messages.line(_completed(self._hosted.index, command, done)))
        return result_types.Executed(
            step_id=done.step,
            exit_code=done.exit_code,
            cancelled=done.cancelled,
            denied=done.denied,
            changed=len(done.changes),
        )

    def _run(self, command: QueuedCommand) -> CommandOutcome:
        index = self._hosted.index
        directory = path_in(self._hosted.path, command.cwd)
        if command.prompt is not None and not command.is_cancelled:
            self._hosted.record_prompt(command.prompt)
        with ExitStack() as stack:

            def begins(step: int) -> None:
                if command.is_cancelled:
                    command.was_cancelled = True
                    raise _cancelled()
                stack.enter_context(logged(step_id=step))
                command.step = step
                begun = event_messages.StepStarted(request_id=command.request_id, directory=index, step_id=step)
                self._outbox.owe(event_messages.line(begun))

            def writes(stream: Stream, data: bytes) -> None:
                line = event_messages.line(_output(index, command, stream, data))
                if not self._outbox.stream(line, lambda: command.is_abandoned):
                    raise _stopped()

            return self._hosted.execute(
                command.command,
                directory=directory,
                environment=command.env,
                on_output=writes,
                on_start=begins,
                on_lost=lambda lost: self._outbox.owe(event_messages.line(_completed(index, command, lost))),
            )


def prompt_command(words: Sequence[str], prompt: str) -> str:
    """The command line that gives ``prompt`` to the agent ``words``: in the place of ``{prompt}`` in a word, else on
    standard input. Raises `RefusedError` if there is no agent.
    """
    if not words:
        raise RefusedError(
            "no agent is configured",
            hint='agent.command in config.toml in the home, as in ["claude", "-p", "{prompt}"]',
            code="no_agent",
        )
    if any(_PROMPT in word for word in words):
        return shlex.join(word.replace(_PROMPT, prompt) for word in words)
    return f"printf %s {shlex.quote(prompt)} | {shlex.join(words)}"


def _output(index: int, command: QueuedCommand, stream: Stream, data: bytes) -> event_messages.TerminalOutput:
    try:
        text, encoded = data.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(data).decode("ascii")
    assert command.step is not None
    return command.output(
        request_id=command.request_id,
        directory=index,
        step_id=command.step,
        stream=stream,
        data=text,
        data_base64=encoded,
    )


def _completed(index: int, command: QueuedCommand, done: CommandOutcome | LostCommand) -> event_messages.StepCompleted:
    changed = [display(change.path) for change in done.changes[: result_types.MAX_LISTED]]
    exit_code, step = None, None
    if done.info is not None:
        step = event_messages.step(done.info, done.changes[: result_types.MAX_LISTED], done.conflicts, 0)
        exit_code = done.info.exit_code  # the log may have the end of a lost command
    if isinstance(done, CommandOutcome):
        exit_code = done.exit_code
    return event_messages.StepCompleted(
        request_id=command.request_id,
        directory=index,
        step_id=done.step,
        exit_code=exit_code,
        affected_paths=changed,
        affected_count=len(done.changes),
        cancelled=done.cancelled,
        denied=done.denied,
        output_open=isinstance(done, CommandOutcome) and done.output_open,
        step=step,
    )


def _stopped() -> RefusedError:
    return RefusedError("the session was stopped", code="session_stopped")


def _cancelled() -> RefusedError:
    return RefusedError("it was cancelled before it began", code="cancelled")
