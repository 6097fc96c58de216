"""Connects this process's standard streams and terminal with a command at a control channel, as if the command ran
here: input, output, signals, and the job control of the shell that has started this process.

Only one of the two terminals interprets input. Until the command uses its terminal, ours does, as for any program.
Ctrl-C is then a signal to this process, which passes it on, and other programs in the pipeline read their own input.
When the command reads from its terminal, or changes its modes, its kernel stops it as a background process. If this
process is in the foreground, our terminal then becomes raw, and the command's terminal interprets the input. A command
whose standard streams are all the terminal gets it at the start.

When the command stops, this process stops in the same way; after it is continued, it gives the command the terminal
when it has that again.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import struct
import sys
import termios
import threading
import time
import tty
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.model.message_text import visible
from holdfast.model.paths import display
from holdfast.sandbox.channel import raise_failure
from holdfast.wire.control_channel import (
    Continued,
    Failure,
    Foreground,
    Input,
    InputEnd,
    Output,
    OutputClose,
    Resize,
    Signal,
    StepCompleted,
    StepStarted,
    Stopped,
    Terminal,
    exec_request,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from holdfast.sandbox.channel import Channel, RemoteCommand
    from holdfast.wire.control_channel import CommandReply, InputStream, OutputStream, StandardStream

_STANDARD: Final[tuple[StandardStream, ...]] = ("stdin", "stdout", "stderr")
_TO_GROUP: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
"""Signals that a terminal sends to a whole process group."""
_TO_COMMAND: Final = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM})
_TAKEN: Final = _TO_GROUP | _TO_COMMAND | {signal.SIGCONT, signal.SIGWINCH}
_ENDING: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
_STOPPED_BY_TERMINAL: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_NEEDS_TERMINAL: Final = frozenset({signal.SIGTTIN, signal.SIGTTOU})
_SETTLE_SECONDS = 0.02
"""The delay from the command's stop to ours: its earlier output, and a SIGCONT for both, may come a moment later."""
_READ_BYTES = 1 << 16
_PIPE_BYTES = select.PIPE_BUF
"""So much can be written to a pipe that `poll` finds ready without waiting."""


def run_at_channel(
    channel: Channel, identity: int, argv: Sequence[bytes], directory: bytes, environment: Mapping[bytes, bytes]
) -> int:
    """Run a command at ``channel`` as if it were a child of this process, until it has ended and its output is written;
    returns its exit code as a shell would. ``environment`` is added to the shim's.

    Passes on signals if called in a process's first thread. The terminal's modes are restored in every case. 127 or
    126, and a line on standard error, if there is no such program or it cannot be executed. Raises `NotFoundError`
    (``no_directory``), `UsageError`, `RefusedError` and `ChannelError` as `Channel.execute`.
    """
    with ExitStack() as context:
        terminal = context.enter_context(terminal_) if (terminal_ := _find_terminal()) is not None else None
        on_terminal = () if terminal is None else terminal.streams
        signals = context.enter_context(_signals())
        has_input = "stdin" not in on_terminal and _is_open(0)
        request = exec_request(
            identity,
            argv,
            cwd=directory,
            env=environment,
            stdin=has_input,
            terminal=None if terminal is None else terminal.description(),
        )
        command = context.enter_context(channel.begin(request))
        ended = _Connection(command, terminal, signals, has_input=has_input).run()
    if isinstance(ended, StepCompleted):
        return ended.exit_code
    if ended.code not in ("no_command", "cannot_start"):
        raise_failure(ended)
    os.write(2, f"holdfast: cannot run {display(argv[0])}: {visible(ended.message)}\n".encode())
    return 127 if ended.code == "no_command" else 126


def pass_on_streams(
    command: RemoteCommand, streams: tuple[int, int, int], signals: socket.socket
) -> StepCompleted | Failure:
    """Connect a started command with other descriptors, until it has ended and its output is written; returns its end.
    Each byte from ``signals`` is the number of a signal for it. Raises `ChannelError`.
    """
    return _Connection(command, None, signals, has_input=True, others=streams).run()


class _Connection:
    def __init__(
        self,
        command: RemoteCommand,
        terminal: _OwnTerminal | None,
        signals: socket.socket,
        *,
        has_input: bool,
        others: tuple[int, int, int] | None = None,
    ) -> None:
        """``others``: its streams, in place of ours; when it stops, we go on."""
        self._command = command
        self._stops_with_it = others is None
        self._input, *outputs = others or (number if _is_open(number) else None for number in range(3))
        self._terminal = terminal
        self._signals = signals
        self._has_input = has_input
        self._wants_terminal = terminal is not None and terminal.is_given
        """The command has asked for the terminal: it gets it whenever we have it."""
        self._reads_terminal = True
        """Ours has not been hung up."""
        self._stop: tuple[int, float] | None = None
        """By which signal we are to stop, and when."""
        self._sinks: dict[OutputStream, _Sink] = {
            "stdout": _Sink(outputs[0]),
            "stderr": _Sink(outputs[1]),
        }
        if terminal is not None:
            self._sinks["terminal"] = _Sink(terminal.fileno(), terminal)

    def run(self) -> StepCompleted | Failure:
        """Until the command has ended, and its output has been written."""
        ended: StepCompleted | Failure | None = None
        while ended is None:
            self._turn()
            while ended is None and (reply := self._command.poll()) is not None:
                ended = self._accept(reply)
            if self._stop is not None and time.monotonic() >= self._stop[1]:
                number, self._stop = self._stop[0], None
                self._stop_as(number)
        while any(sink.pending for sink in self._sinks.values()):
            if _ENDING.intersection(self._turn(is_over=True)):
                break  # as if the command were still writing it
        return ended

    def _turn(self, *, is_over: bool = False) -> list[int]:
        """Wait for events, and handle all but the command's replies. Returns the received signals."""
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        for sink in self._sinks.values():
            if sink.pending and sink.descriptor is not None:
                poll.register(sink.descriptor, select.POLLOUT)
        timeout = None
        if not is_over:
            poll.register(self._command, select.POLLIN)
            for descriptor, stream in self._inputs():
                # A terminal may be registered for its output.
                sink = self._sinks.get("terminal")
                is_written = stream == "terminal" and sink is not None and sink.pending
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if is_written else 0))
            waits = [self._command.seconds(), None if self._stop is None else self._stop[1] - time.monotonic()]
            timeout = min((max(0, wait) * 1000 for wait in waits if wait is not None), default=None)
        ready = dict(poll.poll(timeout))
        came = _received(self._signals)
        for stream, sink in self._sinks.items():
            if sink.pending and sink.descriptor is not None and ready.get(sink.descriptor, 0) & ~select.POLLIN:
                self._write(stream, sink, is_over)
        if not is_over:
            for number in came:  # before later input, for example after a change of size
                self._pass_on(number)
            for descriptor, stream in self._inputs():
                if ready.get(descriptor, 0) & ~select.POLLOUT:
                    self._read(descriptor, stream)
        return came

    def _inputs(self) -> list[tuple[int, InputStream]]:
        """The inputs that can be read now, and passed on."""
        found: list[tuple[int, InputStream]] = []
        if self._input is not None and self._has_input and self._command.room("stdin"):
            found.append((self._input, "stdin"))
        terminal = self._terminal
        if terminal is not None and terminal.is_raw and self._reads_terminal and self._command.room("terminal"):
            found.append((terminal.fileno(), "terminal"))
        return found

    def _read(self, descriptor: int, stream: InputStream) -> None:
        try:
            data = os.read(descriptor, min(_READ_BYTES, self._command.room(stream)))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._command.send(Input(id=self._command.id, stream=stream, data=data))
        elif stream == "stdin":
            self._has_input = False
            self._command.send(InputEnd(id=self._command.id))
        else:  # it was hung up
            self._reads_terminal = False
            self._signal(signal.SIGHUP)

    def _accept(self, reply: CommandReply) -> StepCompleted | Failure | None:
        if isinstance(reply, StepCompleted | Failure):
            return reply
        if isinstance(reply, Output):
            sink = self._sinks.get(reply.stream)
            if sink is None or sink.descriptor is None:
                self._command.take(reply)
            else:
                sink.pending.append(reply)
        elif isinstance(reply, StepStarted):
            if self._wants_terminal:
                self._give_terminal()
        elif isinstance(reply, Stopped) and self._stops_with_it:
            if reply.signal in _NEEDS_TERMINAL:
                self._wants_terminal = True
                if self._terminal is not None and self._terminal.is_ours():
                    self._resume()
                    return None
            self._stop = (reply.signal, time.monotonic() + _SETTLE_SECONDS)
        elif isinstance(reply, Continued):
            self._stop = None
        return None

    def _write(self, stream: OutputStream, sink: _Sink, is_over: bool) -> None:
        try:
            taken = sink.write()
        except OSError:
            taken = sink.drop()
            if stream != "terminal" and not is_over:
                self._command.send(OutputClose(id=self._command.id, stream=stream))
        if not is_over:
            for output in taken:
                self._command.take(output)

    # -- signals and the terminal --------------------------------------------------------------------------------------

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCONT:
            self._stop = None
            self._resume()
        elif number == signal.SIGWINCH:
            self._resize()
        elif number in _TAKEN:
            # Without a terminal, SIGTSTP could stop no process in the command's session.
            stops = number == signal.SIGTSTP and self._terminal is None
            self._signal(signal.SIGSTOP if stops else number, group=number in _TO_GROUP)

    def _signal(self, number: int, *, group: bool = True) -> None:
        self._command.send(Signal(id=self._command.id, signal=number, group=group))

    def _resize(self) -> None:
        if self._terminal is not None:
            rows, columns = self._terminal.size()
            self._command.send(Resize(id=self._command.id, rows=rows, columns=columns))

    def _give_terminal(self) -> None:
        """If we have it; else the command has it no more either."""
        if self._terminal is not None:
            is_ours = self._terminal.is_ours()
            if is_ours:
                self._terminal.make_raw()
            self._command.send(Foreground(id=self._command.id, foreground=is_ours))

    def _resume(self) -> None:
        self._resize()
        if self._wants_terminal:
            self._give_terminal()
        self._signal(signal.SIGCONT)

    def _stop_as(self, number: int) -> None:
        """Stop as the command has, until we are continued."""
        terminal = self._terminal
        if terminal is not None:
            terminal.restore()
        if number in _STOPPED_BY_TERMINAL and terminal is not None:
            # Others in our process group, such as the script that runs us, stop as well.
            with _default(number):
                os.kill(0, number)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        came = _received(self._signals)
        if number in _NEEDS_TERMINAL and signal.SIGCONT not in came and terminal is not None and not terminal.is_ours():
            # No shell has stopped us, or could give us the terminal; the command would ask for it again and again.
            self._signal(signal.SIGHUP)
        self._resume()
        for each in came:
            if each != signal.SIGCONT:
                self._pass_on(each)


class _Sink:
    """Where a stream of output goes, and what of it has not been written yet."""

    def __init__(self, descriptor: int | None, terminal: _OwnTerminal | None = None) -> None:
        """Without a descriptor, it goes nowhere."""
        self.descriptor = descriptor
        self.pending: deque[Output] = deque()
        self._terminal = terminal
        self._left = b""
        """Of the first piece, if a part of it has been written."""
        self._most = _READ_BYTES
        if descriptor is not None and terminal is None and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._most = _PIPE_BYTES

    def write(self) -> list[Output]:
        """Write what can be written without waiting; the pieces that are done. Raises `OSError`."""
        assert self.descriptor is not None
        if not self._left:
            data = self.pending[0].data
            self._left = data if self._terminal is None else self._terminal.for_output(data)
        with suppress(BlockingIOError):
            self._left = self._left[os.write(self.descriptor, self._left[: self._most]) :]
        return [] if self._left else [self.pending.popleft()]

    def drop(self) -> list[Output]:
        """Nothing reads it any more: all that was waiting is done."""
        dropped = list(self.pending)
        self.pending.clear()
        self.descriptor = None
        return dropped


class _OwnTerminal:
    """The terminal of this process, opened anew: only this descriptor is non-blocking, all others still wait."""

    def __init__(self, descriptor: int, streams: tuple[StandardStream, ...]) -> None:
        self.streams = streams
        """Our standard streams that are this terminal."""
        self._descriptor = descriptor
        self._modes = termios.tcgetattr(descriptor)
        self.is_raw = False
        self.is_given = len(streams) == len(_STANDARD) and self.is_ours()
        """The command has it from the start."""

    def __enter__(self) -> _OwnTerminal:
        """Restored and closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `restore`."""
        self.restore()
        os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, which does not block."""
        return self._descriptor

    def is_ours(self) -> bool:
        """Whether this process is in the foreground. Of a terminal that is not that of our session, it always is."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return True

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        with suppress(OSError):
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(self._descriptor, termios.TIOCGWINSZ, bytes(8)))
            return rows, columns
        return 0, 0

    def description(self) -> Terminal:
        """The description of the command's terminal."""
        rows, columns = self.size()
        modes: tuple[int, ...] = ()
        characters = b""
        if self.is_ours():  # a shell may have those for editing its lines
            modes = tuple(self._modes[:4])
            characters = b"".join(each if isinstance(each, bytes) else bytes([each]) for each in self._modes[6])
        return Terminal(
            rows=rows,
            columns=columns,
            streams=self.streams,
            foreground=self.is_given,
            modes=modes,
            characters=characters,
        )

    def make_raw(self) -> None:
        """Let all that is typed through. To be called in the foreground."""
        with suppress(termios.error):
            if not self.is_raw:
                self._modes = termios.tcgetattr(self._descriptor)
            tty.setraw(self._descriptor, termios.TCSANOW)
            self.is_raw = True

    def restore(self) -> None:
        """The modes from before `make_raw`; another process's terminal keeps that one's modes."""
        if self.is_raw:
            self.is_raw = False
            if self.is_ours():
                with suppress(termios.error):
                    termios.tcsetattr(self._descriptor, termios.TCSANOW, self._modes)

    def for_output(self, data: bytes) -> bytes:
        """The output with only one carriage return before a newline: the command's terminal has added one already."""
        both = termios.OPOST | termios.ONLCR
        return data if self.is_raw or self._modes[1] & both != both else data.replace(b"\r\n", b"\n")


def _find_terminal() -> _OwnTerminal | None:
    """The terminal of our session; without one, that of our standard streams."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    terminals = [number for number in range(3) if _is_open(number) and os.isatty(number)]
    try:
        descriptor = os.open("/dev/tty", flags)
        streams = [number for number in terminals if _is_controlling(number)]
    except OSError:
        if not terminals:
            return None
        descriptor = os.open(f"/proc/self/fd/{terminals[0]}", flags)
        device = os.fstat(descriptor).st_rdev
        streams = [number for number in terminals if os.fstat(number).st_rdev == device]
    try:
        return _OwnTerminal(descriptor, tuple(_STANDARD[number] for number in streams))
    except termios.error:  # it was hung up
        os.close(descriptor)
        return None


def _is_controlling(descriptor: int) -> bool:
    try:
        os.tcgetpgrp(descriptor)
    except OSError:
        return False
    return True


def _is_open(number: int) -> bool:
    """Whether a standard stream was open when this process began: since then, its number may have become another's."""
    return (sys.__stdin__, sys.__stdout__, sys.__stderr__)[number] is not None


@contextmanager
def _signals() -> Generator[socket.socket]:
    """Take signals for the length of the block; the socket gives their numbers. Outside of a process's first thread,
    none come.
    """
    awake, wake = socket.socketpair()
    with awake, wake:
        for end in (awake, wake):
            end.setblocking(False)
        if threading.current_thread() is not threading.main_thread():
            yield awake
            return
        # Keep a disposition that nohup, or code outside of Python, has set.
        found = ((number, signal.getsignal(number)) for number in _TAKEN)
        before = {number: handler for number, handler in found if handler not in (signal.SIG_IGN, None)}
        others = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, _notice)
        try:
            yield awake
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(others)


@contextmanager
def _default(number: int) -> Generator[None]:
    """Use a signal's default disposition."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(number, signal.SIG_DFL) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(number, handler)


def _received(signals: socket.socket) -> list[int]:
    """The signals until now, each once, in order."""
    try:
        return list(dict.fromkeys(signals.recv(4096)))
    except BlockingIOError:
        return []


def _notice(_number: int, _frame: object) -> None:
    """The wake-up descriptor reports it."""
