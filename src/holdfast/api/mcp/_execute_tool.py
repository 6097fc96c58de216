"""Running one command for a call: its turn, its output in bounds, its end by time or by the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio import CapacityLimiter, to_thread

from holdfast.api._request_arguments import path_in
from holdfast.api.mcp._text_content import OutputExcerpt
from holdfast.api.mcp._tool_results import step_object
from holdfast.engine.hosting.host import MAX_DIRECTORIES
from holdfast.model.answers.steps import Ticket
from holdfast.model.errors import ChannelError, HoldfastError
from holdfast.model.json_encoder import encode_all
from holdfast.model.log import Log, logged

if TYPE_CHECKING:
    from holdfast.api.mcp import _tool_results as tool_results
    from holdfast.api.mcp._call_progress import CallActivity
    from holdfast.api.mcp._shared_host import SharedHost
    from holdfast.api.mcp._tool_arguments import ExecuteCommand
    from holdfast.engine.hosting.executor import CommandOutcome
    from holdfast.engine.hosting.monitor import OperationHeld
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.wire.control_channel import Stream

_log = Log(__name__)

_AGAIN_SECONDS = 0.02
_threads = CapacityLimiter(MAX_DIRECTORIES)


class _NotWantedError(HoldfastError):
    """The call was cancelled, or its time was up, before its command began."""

    code = "timed_out"


class _CommandThread:
    """A command on its thread."""

    def __init__(self, hosted: HostedDirectory, request: ExecuteCommand) -> None:
        self._hosted = hosted
        self._request = request
        self.output: dict[Stream, OutputExcerpt] = {
            each: OutputExcerpt(request.max_output_bytes) for each in ("stdout", "stderr")
        }
        self.step: int | None = None
        self.wanted = True
        self.over = anyio.Event()
        self._done: CommandOutcome | None = None
        self._failure: HoldfastError | None = None
        self._newest: Stream = "stdout"

    async def run(self) -> None:
        """Have it run, to its end also if the call is cancelled meanwhile."""
        with anyio.CancelScope(shield=True):
            try:
                self._done = await to_thread.run_sync(self._work, limiter=_threads)
            except HoldfastError as error:
                self._failure = error
            finally:
                self.over.set()

    async def end(self) -> None:
        """Cancel it, and wait until it has ended."""
        with anyio.CancelScope(shield=True):
            self.wanted = False
            while not self.over.is_set():
                # The command may not have started yet; then there is nothing to cancel.
                if await to_thread.run_sync(self._cancel):
                    break
                with anyio.move_on_after(_AGAIN_SECONDS):
                    await self.over.wait()
            await self.over.wait()

    def result(self) -> CommandOutcome:
        """The outcome of the command. Raises the exception that it ended with."""
        if self._failure is not None:
            raise self._failure
        assert self._done is not None
        return self._done

    def says(self) -> str:
        """The last line of its output."""
        return self.output[self._newest].last_line() or "running"

    def _work(self) -> CommandOutcome:
        request = self._request
        return self._hosted.execute(
            request.command,
            directory=path_in(self._hosted.path, request.cwd),
            environment=request.environment,
            on_output=self._take,
            on_start=self._begin,
        )

    def _begin(self, step: int) -> None:
        if not self.wanted:
            raise _NotWantedError("the time was up before the command began")
        self.step = step
        with logged(step_id=step):
            _log.info("command started")

    def _take(self, stream: Stream, data: bytes) -> None:
        self.output[stream].add(data)
        self._newest = stream

    def _cancel(self) -> bool:
        try:
            return self._hosted.cancel()
        except ChannelError:
            return False  # it is over, or will be


async def execute(
    host: SharedHost, hosted: HostedDirectory, request: ExecuteCommand, activity: CallActivity
) -> tuple[tool_results.Executed, str]:
    """Run the tool ``execute_command``: the result as an object, and as text for the model.

    A call that is cancelled in the queue runs nothing. Later cancellation ends the command: SIGTERM, then SIGKILL to
    its process group. Its changes stay, as a step.
    """
    activity.tell(lambda: "waiting for another command to end")
    async with host.turn(hosted):
        command = _CommandThread(hosted, request)

        def concerns(held: OperationHeld) -> bool:
            return held.ticket.step == command.step

        activity.concerns = concerns
        activity.tell(command.says)
        timed_out = False
        with host.listening(hosted, activity):
            async with anyio.create_task_group() as group:
                group.start_soon(command.run)
                try:
                    with anyio.move_on_after(request.timeout_seconds):
                        await command.over.wait()
                finally:
                    timed_out = not command.over.is_set()
                    await command.end()
    return _answer(command, command.result(), activity, timed_out)


def _answer(
    command: _CommandThread, done: CommandOutcome, activity: CallActivity, timed_out: bool
) -> tuple[tool_results.Executed, str]:
    out, err = command.output["stdout"], command.output["stderr"]
    value: tool_results.Executed = {
        "exit_code": done.exit_code,
        "stdout": out.text(),
        "stderr": err.text(),
        "stdout_omitted": out.omitted,
        "stderr_omitted": err.omitted,
        "step": None if done.info is None else step_object(done.info, done.changes, done.conflicts),
        "timed_out": timed_out,
        "denied": done.denied,
        "held": encode_all(Ticket, activity.held),
        "output_open": done.output_open,
    }
    notes = [f"exit code {done.exit_code}"]
    if timed_out:
        notes.append("cancelled, as its time was up")
    if done.info is None:
        notes.append("it changed nothing" if not done.denied else "what it had changed was taken back")
    elif done.info.state == "undone":
        notes.append(f"step {done.step} was taken back")
    else:
        notes.append(f"step {done.step}, paths changed: {done.info.paths}")
    if done.denied:
        notes.append("denied: " + ("; ".join(ticket.message for ticket in activity.held) or "a safeguard"))
    if done.output_open:
        notes.append("something that it left running still holds its output")
    shown = [part.rstrip("\n") for part in (value["stdout"], value["stderr"]) if part]
    return value, "\n".join([*shown, f"[{'; '.join(notes)}]"])
