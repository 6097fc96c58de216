"""The host's end of a control channel (docs/internals/control-channel.md): commands that a shim runs.

The shim is not trusted, nor is anything else that could write to the channel. What it says out of turn, too long or not
understood ends the channel, and so does silence where an answer is due; nothing that it says is believed to be more
than output and an exit code.
"""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from holdfast.model.errors import ChannelError, FormatError, HoldfastError, NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.processes.helper_process import program_words
from holdfast.wire.control_channel import (
    MAX_LINE_BYTES,
    Cancel,
    Execution,
    Failure,
    Output,
    RollbackNotify,
    StepCompleted,
    StepStarted,
    decode_reply,
    encode_request,
    exec_request,
)
from holdfast.wire.json_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from holdfast.wire.control_channel import Reply, Stream

START_SECONDS: Final = 30.0
CANCEL_SECONDS: Final = 30.0

_log = Log(__name__)

_READ_BYTES = 1 << 16
_SHOWN = 400
"""So much of the shim's own words goes into an error."""


def shim_command(*arguments: str) -> list[bytes]:
    """What to execute for a shim on its standard input and output; see ``--help`` of it for ``arguments``. Neither the
    environment nor the working directory has a say in what code that is.
    """
    shim = Path(__file__).with_name("shim.py")
    return [os.fsencode(word) for word in program_words(str(shim), *arguments)]


class Endpoint(Protocol):
    """A pipe, a socket, a device: what has a descriptor."""

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Channel:
    """Talks to one shim. Any thread may call; `execute` is busy for as long as the command runs.

    An error that is a `ChannelError` ends the channel, and every later call raises it too; the shim sees its channel
    close and ends its command.
    """

    def __init__(
        self,
        reader: Endpoint,
        writer: Endpoint,
        *,
        start_seconds: float = START_SECONDS,
        cancel_seconds: float = CANCEL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Both ends are the channel's from now on; they may be one. ``start_seconds``: how long the shim may take to
        read a request, and to begin with it. ``cancel_seconds``: how long a cancelled command may take to end; more
        than the shim waits before it kills. A command may be silent as long as it likes.
        """
        self._reader = reader
        self._writer = writer
        self._start_seconds = start_seconds
        self._cancel_seconds = cancel_seconds
        self._clock = clock
        self._lines = Lines(MAX_LINE_BYTES)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        """Of all that follows, and of what is written."""
        self._running: int | None = None
        self._is_cancelled = False
        self._over: ChannelError | None = None
        self._is_shut = False
        for end in (reader, writer):
            os.set_blocking(end.fileno(), False)

    def __enter__(self) -> Channel:
        """Closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def execute(
        self,
        identity: int,
        command: str,
        *,
        cwd: bytes,
        env: Mapping[str, str] | None = None,
        on_output: Callable[[Stream, bytes], None],
    ) -> StepCompleted:
        """Run ``command`` by ``sh -c`` in the directory ``cwd`` until it ends, with ``env`` besides the shim's own
        variables; returns the exit code, and whether something that it left running still holds its output.

        ``identity`` is the host's: a number that no command of this channel had before. ``on_output`` is called in this
        thread, in order for each stream; while it has not returned nothing more is read, so that the command waits in
        the end. If it raises, the channel is closed.

        Raises `UsageError` for what cannot be sent, `RefusedError` (``busy``) while another command runs,
        `NotFoundError` (``no_directory``) and `HoldfastError` (``cannot_start``) if the shim cannot start it, and
        `ChannelError` (``shim_gone``, ``shim_silent``, ``shim_violation``, ``channel_closed``).
        """
        request = encode_request(exec_request(identity, command, cwd=cwd, env=env or {}))
        with self._lock:
            self._require_open()
            if self._running is not None:
                raise RefusedError("a command is running already, and a shim runs one at a time", code="busy")
            self._send(request)
            self._running, self._is_cancelled = identity, False
        try:
            final = self._converse(identity, on_output)
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            with self._lock:
                self._running = None
                if self._over is not None:
                    self._shut()
        if isinstance(final, Failure):
            _raise(final)
        return final

    def cancel(self, identity: int) -> bool:
        """End the command ``identity``, by SIGTERM and then SIGKILL to its process group; then `execute` returns.
        False if it does not run (any more). Raises `ChannelError`.
        """
        with self._lock:
            self._require_open()
            if self._running != identity:
                return False
            if not self._is_cancelled:
                self._send(encode_request(Cancel(id=identity)))
                self._is_cancelled = True
                os.eventfd_write(self._wake, 1)
            return True

    def notify_rollback(self, step: int) -> None:
        """Tell the shim that ``step`` was rolled back. Raises `ChannelError`."""
        with self._lock:
            self._require_open()
            self._send(encode_request(RollbackNotify(step_id=step)))

    def close(self) -> None:
        """Close both ends, from any thread; a command that runs is ended by its shim, and `execute` raises
        `ChannelError`. Waits for a request that is just being written. More than once is once.
        """
        self._give_up(None)

    # -- one command ---------------------------------------------------------------------------------------------------

    def _converse(self, identity: int, on_output: Callable[[Stream, bytes], None]) -> StepCompleted | Failure:
        execution = Execution(identity)
        _log.info("command %d was sent to the shim", identity)
        patience = _Patience(self._clock, self._start_seconds)
        while True:
            reply = self._next(execution, patience)
            if isinstance(reply, Output):
                began = self._clock()
                on_output(reply.stream, reply.content)
                patience.extend(self._clock() - began)
            elif isinstance(reply, StepStarted):
                patience.is_running()
            else:
                result = reply.message[:_SHOWN] if isinstance(reply, Failure) else f"exit code {reply.exit_code}"
                _log.info("command %d has ended: %s", identity, result)
                return reply

    def _next(self, execution: Execution, patience: _Patience) -> Reply:
        """The next reply, which is in turn."""
        while True:
            try:
                line = self._lines.take()
                if line is not None:
                    reply = decode_reply(line)
                    execution.accept(reply)
                    return reply
            except FormatError as error:
                raise ChannelError(
                    f"the shim does not keep to the protocol: {error.message[:_SHOWN]}", code="shim_violation"
                ) from error
            self._fill(patience)

    def _fill(self, patience: _Patience) -> None:
        """Read something."""
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            with self._lock:
                self._require_open()
                if self._is_cancelled:
                    patience.is_cancelled(self._cancel_seconds)
            seconds = patience.left()
            ready = dict(poll.poll(None if seconds is None else seconds * 1000))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            elif ready:
                break
        try:
            data = os.read(self._reader.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone(error) from error
        if not data:
            raise _gone(None)
        self._lines.feed(data)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._over is not None:
            raise ChannelError(self._over.message, hint=self._over.hint, code=self._over.code)

    def _send(self, line: bytes) -> None:
        descriptor = self._writer.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        until = self._clock() + self._start_seconds
        left = memoryview(line)
        try:
            while left:
                seconds = until - self._clock()
                if seconds <= 0:
                    raise ChannelError("the shim does not read what it is sent", code="shim_silent")
                poll.poll(seconds * 1000)
                try:
                    left = left[os.write(descriptor, left) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise _gone(error) from error
        except ChannelError as error:
            self._end(error)
            raise

    def _give_up(self, cause: BaseException | None) -> None:
        with self._lock:
            if isinstance(cause, ChannelError):
                self._end(cause)
            else:
                self._end(ChannelError("the channel is closed", code="channel_closed"))

    def _end(self, error: ChannelError) -> None:
        if self._over is None:
            self._over = error
            if error.code != "channel_closed":
                _log.warning("the control channel has ended: %s", error.message)
        if self._running is None:
            self._shut()
        else:  # the thread that reads closes what it reads from
            os.eventfd_write(self._wake, 1)

    def _shut(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._reader.close()
            self._writer.close()
            os.close(self._wake)


class _Patience:
    """Until when something has to come: an answer to a request, or after a cancel the end."""

    def __init__(self, clock: Callable[[], float], start_seconds: float) -> None:
        self._clock = clock
        self._start_by: float | None = clock() + start_seconds
        self._end_by: float | None = None

    def is_running(self) -> None:
        self._start_by = None

    def is_cancelled(self, seconds: float) -> None:
        if self._end_by is None:
            self._end_by = self._clock() + seconds

    def extend(self, seconds: float) -> None:
        """So long the caller did not listen, which is not the shim's fault."""
        if self._end_by is not None:
            self._end_by += seconds

    def left(self) -> float | None:
        """Seconds; None if there is no limit. Raises `ChannelError` when it is over."""
        limits = [limit for limit in (self._start_by, self._end_by) if limit is not None]
        if not limits:
            return None
        seconds = min(limits) - self._clock()
        if seconds <= 0:
            what = "has not begun with a command" if self._start_by is not None else "has not ended a cancelled command"
            raise ChannelError(f"the shim does not answer: it {what} in time", code="shim_silent")
        return seconds


def _gone(error: OSError | None) -> ChannelError:
    reason = "" if error is None else f" ({error.strerror})"
    return ChannelError(f"the shim has ended, or its box has{reason}", code="shim_gone")


def _raise(failure: Failure) -> NoReturn:
    """As an error of ours. Its words are the shim's."""
    message = f"the shim could not run the command: {failure.message[:_SHOWN]}"
    if failure.code == "no_directory":
        raise NotFoundError(message, code="no_directory")
    if failure.code == "busy":
        # Something has said for it that the command before was over.
        raise ChannelError(message, code="shim_violation")
    raise HoldfastError(message, code="cannot_start")
