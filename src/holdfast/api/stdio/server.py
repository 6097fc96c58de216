"""The server: reads requests line by line, starts their work, and ends in order.

One thread reads, one writes (`outbox`), and each request in progress has one of its own, since the engine is
synchronous. Nothing here depends on an event loop: either stream may be a pipe, a socket, a terminal or a file.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from holdfast.api._error_details import with_details
from holdfast.api._log_redaction import field_or_length, without_contents
from holdfast.api.stdio import _event_messages as event_messages
from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio import _result_types as result_types
from holdfast.api.stdio._command_queue import MAX_QUEUED, QueuedCommand, prompt_command
from holdfast.api.stdio._directory_operations import HELLO, MAX_DIFF_BYTES, OPERATIONS, REQUESTS
from holdfast.api.stdio._frontend_session import FrontendSessions
from holdfast.api.stdio._messages import BadRequestError, Request
from holdfast.api.stdio._outbox import Outbox
from holdfast.engine.hosting.host import MAX_DIRECTORIES
from holdfast.model.errors import FormatError, HoldfastError, RefusedError, UsageError, unexpected
from holdfast.model.log import Log, logged
from holdfast.processes.stop_signals import stopped_by_signals
from holdfast.wire.json_lines import Lines

if TYPE_CHECKING:
    from holdfast.api.stdio._result_types import Result

_log = Log(__name__)

MAX_REQUESTS: Final = 32
"""Unanswered requests, commands not counted."""
_MAX_URGENT = MAX_REQUESTS + 16
"""For what others may be waiting for."""
_THREADS = 8
"""For all but urgent requests. Their number bounds the memory of answers in progress."""
_READ_BYTES = 1 << 16
_PATIENCE_SECONDS = 5.0
"""For a client that does not read, from the moment on at which the end begins."""

_URGENT = frozenset({"agent.cancel", "safeguard.confirm", "session.status", "session.stop"})
_COMMANDS = frozenset({"agent.execute", "agent.prompt"})

LIMITS: Final = result_types.Limits(
    line_bytes=messages.MAX_LINE_BYTES,
    requests=MAX_REQUESTS,
    queued_commands=MAX_QUEUED,
    read_bytes=messages.MAX_PART_BYTES,
    listed=result_types.MAX_LISTED,
    diff_bytes=MAX_DIFF_BYTES,
)

_PAYLOADS: dict[str, type[messages.Payload]] = {name: payload for name, (payload, _) in REQUESTS.items()}


class Server:
    """Serves one client; see the module."""

    def __init__(self, reader: int, writer: int, *, directory: bytes, home: bytes | None = None) -> None:
        """``reader`` and ``writer`` are descriptors; ``directory`` is where to work if the client does not say."""
        self._reader = reader
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._outbox = Outbox(writer, lost=_lost, changed=self._poke)
        self._pool = ThreadPoolExecutor(_THREADS, "request")
        self._urgent = ThreadPoolExecutor(_MAX_URGENT + MAX_DIRECTORIES, "urgent")
        """For that, and for the commands of each directory."""
        self._sessions = FrontendSessions(
            home=home, directory=directory, pool=self._urgent, outbox=self._outbox, answer=self._answer
        )
        self._lines = Lines(messages.MAX_LINE_BYTES)
        self._is_greeted = False
        self._is_stopped = False
        self._turn = threading.Lock()
        """Of what follows."""
        self._unanswered: dict[str, str] = {}
        """The operation of each request."""

    def serve(self) -> None:
        """Serve until the client closes its end, stops reading, or a signal comes. Then end the commands, answer the
        open requests, and close.
        """
        try:
            with stopped_by_signals(self._stop, self._wake):
                while not self._is_stopped and not self._outbox.is_broken and self._read():
                    pass
                since = time.monotonic()
                self._sessions.close()
                self._pool.shutdown(wait=True)
                self._urgent.shutdown(wait=True)
                self._outbox.finish(_PATIENCE_SECONDS, since)
        finally:
            os.close(self._woken)
            os.close(self._wake)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Wait for input, and take the client's requests; False at the end.

        While the client does not read its answers, its requests wait in the buffer, then in the pipe.
        """
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._take_all():
            poll.register(self._reader, select.POLLIN)
        else:
            _log.debug("requests wait for the client to read")
        ready = {fd for fd, _ in poll.poll()}
        if self._woken in ready:
            os.read(self._woken, _READ_BYTES)
        if self._reader not in ready:
            return True
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:  # a terminal that is gone
            _log.info("the client is gone: %s", error.strerror)
            return False
        self._lines.feed(data)
        return bool(data)

    def _take_all(self) -> bool:
        """Take the lines that have arrived; False if some are left, because there is no room for the answers."""
        while self._outbox.has_room:
            try:
                line = self._lines.take()
            except FormatError as error:
                _log.warning("malformed request", reason=error.message)
                self._outbox.owe(messages.refusal(None, error))
                continue
            if line is None:
                return True
            self._take(line)
        return False

    def _take(self, line: bytes) -> None:
        if _log.wants("trace"):
            from holdfast.api.stdio.schema import known

            _log.trace("received", line=without_contents(line, known()))
        try:
            request = messages.decode(line, _PAYLOADS)
            with logged(request_id=request.request_id):
                _log.info("request received", operation=request.type)
                self._accept(request)
        except BadRequestError as error:
            what = "unknown operation" if error.code == "unknown_operation" else "malformed request"
            _log.warning(what, request_id=error.request_id, code=error.code, field=_loggable(error.field))
            self._outbox.owe(messages.refusal(error.request_id, error, {"field": error.field}))

    def _accept(self, request: Request) -> None:
        """Have ``request`` worked on, in its turn."""
        identity = request.request_id
        refused = self._register(request)
        if refused is not None:
            _log.warning("request refused", operation=request.type, code=refused.code)
            self._outbox.owe(messages.refusal(identity, refused))
        elif request.type == HELLO:
            self._answer(identity, self._greet(request.payload))
        elif request.type in _COMMANDS:
            try:
                self._queue(request)
            except HoldfastError as error:
                self._answer(identity, error)
        else:
            pool = self._urgent if request.type in _URGENT else self._pool
            pool.submit(self._work, request)

    def _register(self, request: Request) -> HoldfastError | None:
        """Why ``request`` cannot be accepted, if so; else it counts as unanswered."""
        if not self._is_greeted and request.type != HELLO:
            return RefusedError("the first message is hello", code="hello_first")
        if self._is_greeted and request.type == HELLO:
            return RefusedError("the version is agreed on already", code="hello_twice")
        with self._turn:
            if request.request_id in self._unanswered:
                return UsageError("a request with this request_id is unanswered", code="duplicate_request_id")
            if request.type not in _COMMANDS:
                count = sum(operation not in _COMMANDS for operation in self._unanswered.values())
                if count >= (_MAX_URGENT if request.type in _URGENT else MAX_REQUESTS):
                    return RefusedError(f"{count} requests are unanswered", code="too_many_requests")
            self._unanswered[request.request_id] = request.type
        return None

    def _greet(self, asked: messages.Hello) -> result_types.Welcome | HoldfastError:
        if messages.VERSION not in asked.versions:
            return RefusedError(
                f"this server speaks version {messages.VERSION} of the protocol", code="unsupported_version"
            )
        from holdfast import __version__

        self._is_greeted = True
        return result_types.Welcome(
            version=messages.VERSION,
            server=result_types.Server(name="holdfast", version=__version__),
            operations=list(REQUESTS),
            events=list(event_messages.EVENTS),
            limits=LIMITS,
        )

    def _queue(self, request: Request) -> None:
        asked: messages.AgentExecute | messages.AgentPrompt = request.payload
        hosted, lane = self._sessions.lane(asked.directory)
        prompt, output = None, event_messages.TerminalOutput
        if isinstance(asked, messages.AgentPrompt):
            prompt, output = asked.prompt, event_messages.AgentOutput
            words = prompt_command(hosted.agent_command, prompt)
        else:
            words = asked.command
        lane.submit(
            QueuedCommand(request.request_id, words, cwd=asked.cwd, env=asked.env, output=output, prompt=prompt)
        )

    # -- working -------------------------------------------------------------------------------------------------------

    def _work(self, request: Request) -> None:
        with logged(request_id=request.request_id):
            try:
                operation = OPERATIONS.get(request.type)
                if operation is None:
                    result = self._of_the_session(request)
                else:
                    hosted = self._sessions.hosted(request.payload.directory)
                    with with_details(hosted):
                        result = operation.work(hosted, request.payload)
            except HoldfastError as error:
                result = error
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is waiting for an answer
                _log.exception("a request failed by a mistake", operation=request.type)
                result = unexpected(error)
            self._answer(request.request_id, result)

    def _of_the_session(self, request: Request) -> Result:
        asked: Any = request.payload
        match request.type:
            case "session.start":
                return self._sessions.start(asked)
            case "session.stop":
                return self._sessions.stop()
            case "session.reset":
                return self._sessions.reset()
            case "session.status":
                return self._sessions.status()
            case "agent.cancel":
                return self._sessions.cancel(asked.request_id)
            case _:
                return self._sessions.confirm(asked)

    def _answer(self, request_id: str, result: Result | HoldfastError) -> None:
        with self._turn:
            operation = self._unanswered.pop(request_id)
        if isinstance(result, HoldfastError):
            _log.info("response sent", request_id=request_id, operation=operation, status="error", code=result.code)
            self._outbox.owe(messages.refusal(request_id, result))
        else:
            _log.info("response sent", request_id=request_id, operation=operation, status="ok")
            self._outbox.owe(messages.response(request_id, result))

    # -- ending --------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._is_stopped = True

    def _poke(self) -> None:
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:  # it is woken already
            return


def serve(*, directory: bytes, home: bytes | None = None) -> None:
    """Serve a client on standard input and output, which carry only the protocol from then on (I13). Any other code of
    this process and its children reads an empty input, and its output goes to standard error.
    """
    sys.stdout.flush()
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        Server(reader, writer, directory=directory, home=home).serve()
    finally:
        os.close(reader)
        os.close(writer)


def _loggable(field: str | None) -> str | None:
    """The name of a field as the log may have it: an unknown name may hold anything, so it is left out."""
    from holdfast.api.stdio.schema import known

    return field_or_length(field, known().names)


def _lost(count: int) -> bytes:
    return event_messages.line(
        event_messages.Warned(
            directory=None,
            step_id=None,
            code="events_lost",
            message=f"{count} events were dropped, because the client did not read them in "
            "time; session.status lists all that waits",
        )
    )
