"""The host's end of a control channel (docs/internals/control-channel.md): commands that a shim runs.

Neither the shim nor any other writer to the channel is trusted. A message out of turn, too long or not understood ends
the channel, and so does a missing answer; of all messages, only output and exit code are used.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from holdfast.model.errors import ChannelError, FormatError, HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.log import Log
from holdfast.processes.helper_process import program_words
from holdfast.wire.control_channel import (
    MAX_LINE_BYTES,
    OUTPUT_WINDOW,
    VERSION,
    Cancel,
    Continued,
    Execution,
    Failure,
    Hello,
    InputClosed,
    InputTaken,
    Output,
    OutputTaken,
    RollbackNotify,
    StepCompleted,
    StepStarted,
    Stopped,
    cost,
    decode_reply,
    encode_request,
    exec_request,
    shell_words,
)
from holdfast.wire.json_lines import Lines
from holdfast.wire.whole_characters import WholeCharacters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from holdfast.wire.control_channel import CommandReply, Exec, InputStream, OutputStream, Reply, Request, Stream

START_SECONDS: Final = 30.0
CANCEL_SECONDS: Final = 30.0

_log = Log(__name__)

_READ_BYTES = 1 << 16
_SHOWN = 400
"""So much of the shim's own words goes into an error."""


def shim_command(*arguments: str) -> list[bytes]:
    """The command line of a shim on its standard input and output; see its ``--help`` for ``arguments``. Neither
    environment nor working directory influence which code runs.
    """
    shim = Path(__file__).with_name("shim.py")
    return [os.fsencode(word) for word in program_words(str(shim), *arguments)]


class Endpoint(Protocol):
    """A pipe, a socket, a device: an object with a descriptor."""

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Channel:
    """The connection to one shim. Any thread may call; commands run concurrently.

    A thread reads the shim's messages from the first command on. From then on a violation by the shim is a
    `ChannelError`: it ends the channel for all commands, and every later call raises it too. The shim notices the
    closed channel and ends its commands.
    """

    def __init__(
        self,
        reader: Endpoint,
        writer: Endpoint,
        *,
        start_seconds: float = START_SECONDS,
        cancel_seconds: float = CANCEL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        greeted: bool = False,
    ) -> None:
        """Both ends are the channel's from now on; they may be one. ``greeted``: the shim has said hello to an earlier
        channel, in a machine that goes on from a snapshot. ``start_seconds``: how long the shim may take to
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
        """Of the commands and their state."""
        self._commands: dict[int, RemoteCommand] = {}
        self._over: ChannelError | None = None
        self._thread: threading.Thread | None = None
        self._greeted = threading.Event()
        """The shim has said hello, or the channel is over."""
        if greeted:
            self._greeted.set()
        self._writing = threading.Lock()
        """Of the ends, as far as they are written to or closed. Taken before `_lock`, if both are."""
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

    def await_shim(self, seconds: float, hindered: Callable[[], float] = lambda: 0.0) -> None:
        """Wait until the shim is ready: starting its box may take longer than a command may. Raises `ChannelError`
        (``shim_silent`` after ``seconds``, not counting those for which the box was ``hindered`` until now).
        """
        self._begin_reading()
        until = self._clock() + seconds
        left = seconds
        while left > 0 and not self._greeted.wait(left):
            left = until + hindered() - self._clock()
        if not self._greeted.is_set():
            self._end(ChannelError(f"the shim has not begun within {seconds:g} s", code="shim_silent"))
        self.require_open()

    def execute(
        self,
        identity: int,
        command: str,
        *,
        cwd: bytes,
        env: Mapping[str, str] | None = None,
        on_output: Callable[[Stream, bytes], None],
    ) -> StepCompleted:
        """Run ``command`` by ``sh -c`` in the directory ``cwd`` until it ends, with ``env`` added to the shim's
        variables; returns the exit code, and whether a background process still holds its output.

        ``identity`` is a number of the host that no command of this channel had before. ``on_output`` is called in this
        thread, in order for each stream, with pieces that do not end inside a character; if it takes long,
        the command waits. If it raises, the channel is closed.

        Raises `UsageError` for a command that cannot be sent, `RefusedError` (``busy``) while too many commands run,
        `NotFoundError` (``no_directory``) and `HoldfastError` (``cannot_start``) if the shim cannot start it, and
        `ChannelError` (``shim_gone``, ``shim_silent``, ``shim_violation``, ``channel_closed``).
        """
        request = exec_request(identity, shell_words(command), cwd=cwd, env=env or {})
        texts: dict[Stream, WholeCharacters] = {"stdout": WholeCharacters(), "stderr": WholeCharacters()}
        with self.begin(request) as remote:
            try:
                while not isinstance(reply := remote.next(), StepCompleted | Failure):
                    if isinstance(reply, Output) and reply.stream != "terminal":
                        began = self._clock()
                        if whole := texts[reply.stream].feed(reply.data):
                            on_output(reply.stream, whole)
                        remote.take(reply, busy=self._clock() - began)
                for stream, text in texts.items():
                    if rest := text.rest():
                        on_output(stream, rest)
            except BaseException as error:
                self._give_up(error)
                raise
        if isinstance(reply, Failure):
            raise_failure(reply)
        return reply

    def begin(self, request: Exec) -> RemoteCommand:
        """Let the shim run a command; the caller must read the replies. Raises `UsageError` and `ChannelError`."""
        line = encode_request(request)
        with self._lock:
            self.require_open()
            if request.id in self._commands:
                raise UsageError(f"id: {request.id} is running")
            patience = _Patience(self._clock, self._start_seconds, self._cancel_seconds)
            command = self._commands[request.id] = RemoteCommand(self, request.id, patience, self._lock)
        try:
            self._begin_reading()
            self._send(line)
        except BaseException:
            command.close()
            raise
        _log.info("command %d was sent to the shim", request.id)
        return command

    def cancel(self, identity: int) -> bool:
        """End the command ``identity``, by SIGTERM and then SIGKILL to its process group; then `execute` returns.
        False if it does not run (any more). Raises `ChannelError`.
        """
        with self._lock:
            self.require_open()
            command = self._commands.get(identity)
        if command is None:
            return False
        command.cancel()
        return True

    def notify_rollback(self, step: int) -> None:
        """Tell the shim that ``step`` was rolled back. Raises `ChannelError`."""
        self.send(RollbackNotify(step_id=step))

    def close(self) -> None:
        """Close both ends, from any thread; commands that run are ended by the shim, and `execute` raises
        `ChannelError`. Waits for a request that is just being written. More than once is once.
        """
        self._give_up(None)

    def require_open(self) -> None:
        """Raise the `ChannelError` that has ended the channel, if one has."""
        if self._over is not None:
            raise ChannelError(self._over.message, hint=self._over.hint, code=self._over.code)

    def send(self, request: Request) -> None:
        """Write a request. Raises `UsageError` and `ChannelError`."""
        self._send(encode_request(request))

    def forget(self, command: RemoteCommand) -> None:
        """Under the lock: what the shim says of it from now on is out of turn."""
        if self._commands.get(command.id) is command:
            del self._commands[command.id]

    # -- reading -------------------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        with self._lock:
            if self._thread is None and self._over is None:
                self._thread = threading.Thread(target=self._read_all, name="control channel", daemon=True)
                self._thread.start()

    def _read_all(self) -> None:
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        try:
            while self._over is None:
                if self._reader.fileno() in dict(poll.poll()):
                    self._read()
        except ChannelError as error:
            self._end(error)
        finally:
            self._shut()

    def _read(self) -> None:
        try:
            data = os.read(self._reader.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise _gone(error) from error
        if not data:
            raise _gone(None)
        self._lines.feed(data)
        try:
            while (line := self._lines.take()) is not None:
                self._accept(decode_reply(line))
        except FormatError as error:
            raise ChannelError(
                f"the shim does not keep to the protocol: {error.message[:_SHOWN]}", code="shim_violation"
            ) from error

    def _accept(self, reply: Reply) -> None:
        if isinstance(reply, Hello) or not self._greeted.is_set():
            if not isinstance(reply, Hello) or self._greeted.is_set():
                raise FormatError("hello: expected as the first line, and once")
            if reply.version != VERSION:
                raise FormatError(f"hello: its version is {reply.version}, and ours {VERSION}")
            self._greeted.set()
            return
        if isinstance(reply, Failure) and reply.id is None:
            raise FormatError(f"the shim did not understand a line ({reply.code[:40]}): {reply.message}")
        with self._lock:
            command = self._commands.get(reply.id or 0)
            if command is None:
                raise FormatError(f"id: {reply.__struct_config__.tag} of {reply.id}, which does not run")
            command.accept(reply)
            if command.is_over:
                del self._commands[command.id]

    # -- writing, and the end ------------------------------------------------------------------------------------------

    def _send(self, line: bytes) -> None:
        with self._writing:
            self.require_open()
            try:
                self._write(line)
            except ChannelError as error:
                self._end(error)
                raise

    def _write(self, line: bytes) -> None:
        descriptor = self._writer.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        until = self._clock() + self._start_seconds
        left = memoryview(line)
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

    def _give_up(self, cause: BaseException | None) -> None:
        is_ours = isinstance(cause, ChannelError)
        self._end(cause if is_ours else ChannelError("the channel is closed", code="channel_closed"))
        if self._thread is None:
            self._shut()
        else:
            self._thread.join()

    def _end(self, error: ChannelError) -> None:
        with self._lock:
            if self._over is not None:
                return
            self._over = error
            if error.code != "channel_closed":
                _log.warning("the control channel has ended: %s", error.message)
            self._greeted.set()
            for command in self._commands.values():
                command.wake()
            os.eventfd_write(self._wake, 1)

    def _shut(self) -> None:
        with self._writing:
            if not self._is_shut:
                self._is_shut = True
                self._reader.close()
                self._writer.close()
                os.close(self._wake)


class RemoteCommand:
    """A command that a shim runs, or should have run; made by `Channel.begin`. For one thread, except `cancel`.

    It ends with a `StepCompleted`, or with a `Failure` if it could not be started. To wait for other events as well,
    wait until `fileno` is readable, at most `seconds`, and then call `poll` until it returns None.
    """

    def __init__(self, channel: Channel, identity: int, patience: _Patience, lock: threading.Lock) -> None:
        self.id = identity
        self._channel = channel
        self._lock = lock
        self._patience = patience
        self._execution = Execution(identity)
        self._replies: deque[CommandReply] = deque()
        """Replies that were not read yet: the windows of the streams limit them."""
        self._taken: dict[OutputStream, int] = {"stdout": 0, "stderr": 0, "terminal": 0}
        self._is_cancelled = False
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __enter__(self) -> RemoteCommand:
        """Closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """Forget it: for one that is over, or whose channel is."""
        with self._lock:
            self._channel.forget(self)
            ready, self._ready = self._ready, -1
            if ready >= 0:
                os.close(ready)

    def fileno(self) -> int:
        """Readable when `poll` has a reply."""
        return self._ready

    def poll(self) -> CommandReply | None:
        """The next reply; None if it has not come. Raises `ChannelError`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        try:
            reply = self._replies.popleft()
        except IndexError:
            self._channel.require_open()
            self._patience.left()
            return None
        if isinstance(reply, StepStarted):
            self._patience.is_running()
        elif isinstance(reply, StepCompleted | Failure):
            result = reply.message[:_SHOWN] if isinstance(reply, Failure) else f"exit code {reply.exit_code}"
            _log.info("command %d has ended: %s", self.id, result)
        return reply

    def next(self) -> CommandReply:
        """The next reply, when it has come. Raises `ChannelError`."""
        while (reply := self.poll()) is None:
            waiting = select.poll()
            waiting.register(self._ready, select.POLLIN)
            seconds = self.seconds()
            waiting.poll(None if seconds is None else seconds * 1000)
        return reply

    def seconds(self) -> float | None:
        """How long there may be nothing to `poll`; None: as long as it likes. Raises `ChannelError`."""
        return self._patience.left()

    def take(self, output: Output, *, busy: float = 0) -> None:
        """A piece of output was consumed, so that as much can come again. ``busy``: the seconds that this took, which
        do not count as the shim's. Raises `ChannelError`.
        """
        self._patience.extend(busy)
        self._taken[output.stream] += cost(output)
        if self._taken[output.stream] >= OUTPUT_WINDOW // 4:
            taken, self._taken[output.stream] = self._taken[output.stream], 0
            self.send(OutputTaken(id=self.id, stream=output.stream, bytes=taken))

    def room(self, stream: InputStream) -> int:
        """How many bytes of `Input` can be sent now; more when `fileno` was readable."""
        return self._execution.room(stream)

    def is_closed(self, stream: InputStream) -> bool:
        """Whether nothing reads this input any more."""
        return self._execution.is_over or stream in self._execution.closed

    def send(self, request: Request) -> None:
        """Send a request about it. Raises `ChannelError`."""
        self._execution.send(request)
        self._channel.send(request)

    def cancel(self) -> None:
        """See `Channel.cancel`."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self.send(Cancel(id=self.id))
            self._patience.is_cancelled()
            with self._lock:
                self.wake()

    # -- under the lock of the channel -------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether no more replies may come."""
        return self._execution.is_over

    def accept(self, reply: CommandReply) -> None:
        """Raises `FormatError` for a reply out of turn."""
        self._execution.accept(reply)
        if (
            isinstance(reply, Stopped | Continued)
            and self._replies
            and isinstance(self._replies[-1], Stopped | Continued)
        ):
            self._replies.pop()  # only the last of them matters, and any number may come
        if not isinstance(reply, InputTaken | InputClosed):
            self._replies.append(reply)
        self.wake()

    def wake(self) -> None:
        """Have the thread look."""
        if self._ready >= 0:
            os.eventfd_write(self._ready, 1)


class _Patience:
    """The deadline of the next message: an answer to a request, or the end after a cancel."""

    def __init__(self, clock: Callable[[], float], start_seconds: float, cancel_seconds: float) -> None:
        self._clock = clock
        self._cancel_seconds = cancel_seconds
        self._start_by: float | None = clock() + start_seconds
        self._end_by: float | None = None

    def is_running(self) -> None:
        self._start_by = None

    def is_cancelled(self) -> None:
        self._end_by = self._clock() + self._cancel_seconds

    def extend(self, seconds: float) -> None:
        """The caller did not read for ``seconds``, which is not the shim's fault."""
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


def raise_failure(failure: Failure) -> NoReturn:
    """As an error of ours. Its words are the shim's."""
    message = f"the shim could not run the command: {failure.message[:_SHOWN]}"
    if failure.code == "no_directory":
        raise NotFoundError(message, code="no_directory")
    if failure.code == "busy":
        raise RefusedError(message, code="busy")
    raise HoldfastError(message, code="cannot_start")
