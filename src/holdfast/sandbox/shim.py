"""Runs commands for a host at the other end of a control channel (docs/internals/control-channel.md).

A program of its own: one file, with the standard library of Python 3.8 or later and nothing of Holdfast, so that it can
be copied into any box. It reads requests from standard input and writes to standard output, or uses a device for both,
given its path. Commands run concurrently, each in a session of its own; when the channel closes, or a signal ends the
shim, it ends them and then itself.

One thread, one loop; only `Shim.turn` waits. Memory is bounded: while the host does not read, the shim does not read
its commands' output, so that they block as well; and the host sends a command no more input than there is room for.

Between the shim and a command with a terminal there is one more process (`lead_session`): without a parent in its own
session, the kernel stops no command by Ctrl-Z, nor as it reads in the background.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 2
MAX_LINE_BYTES = 1 << 20
MAX_ID = (1 << 53) - 1
MAX_COMMANDS = 64
INPUT_WINDOW = 1 << 16
"""The most bytes of one stream to hold for a command that does not read."""
OUTPUT_WINDOW = 1 << 18
"""So much of one stream the host holds: each piece counts its bytes and `PIECE_COST`."""
PIECE_COST = 1 << 8
PIECE_BYTES = 1 << 16
"""The size of a read of a command's output."""
OUTPUT_WAITING_BYTES = 1 << 17
"""With so much unsent, no output is read."""
WAITING_BYTES = 1 << 20
"""With so much unsent, no requests are read. Output never makes it so much: one that cancels is read anyhow."""
REQUEST_BYTES = 1 << 13
"""The size of a read of requests: each of these bytes could be a line that needs an answer."""
MAX_WORDS = 1000
"""The limit of messages for people, in characters. The name of a directory can be as long as a line."""
MAX_LEFT = 64
"""How many pipes of earlier commands are drained; then the oldest is closed."""
MOST_DIGITS = 20
"""Digits; longer ones take Python before 3.11 a time that grows with their square."""
LOOK_SECONDS = 0.02
HOST_SECONDS = 0.05
"""How often a device is checked for the host's connection."""

STREAMS = ("stdin", "stdout", "stderr")
SIZE = {"rows": int, "columns": int}
TERMINAL = {**SIZE, "streams": [str], "foreground": bool, "modes": [int], "characters": bytes}
REQUESTS: dict[str, dict[str, Any]] = {
    "exec": {"argv": [bytes], "cwd": bytes, "env": [bytes], "stdin": bool, "terminal": TERMINAL},
    "input": {"stream": str, "data": bytes},
    "input_end": {},
    "output_taken": {"stream": str, "bytes": int},
    "output_close": {"stream": str},
    "signal": {"signal": int, "group": bool},
    "resize": SIZE,
    "foreground": {"foreground": bool},
    "cancel": {},
    "rollback_notify": {"step_id": int},
}
"""The host's requests: fields and their types; bytes are in Base64."""
OPTIONAL: dict[str, Any] = {"env": [], "stdin": False, "terminal": None, "modes": [], "characters": b""}


class BadRequestError(Exception):
    """An invalid request, or one that cannot be carried out, with the code and id for the answer."""

    def __init__(self, message: str, code: str = "bad_request", identity: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.id = identity if is_id(identity) else None


def is_id(value: Any) -> bool:
    """Whether ``value`` can be the id of a command."""
    return type(value) is int and 1 <= value <= MAX_ID


class RequestParser:
    """Makes requests of what arrives, in bounded memory."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_skipping = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | BadRequestError]:
        """The requests that ``data`` completes; an error in the place of an invalid line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in [*lines, None]:
            length = len(self._rest if line is None else line)
            if length > MAX_LINE_BYTES and not self._is_skipping:
                self._is_skipping = True
                yield BadRequestError(f"a line is longer than {MAX_LINE_BYTES} bytes", "line_too_long")
            if line is not None and not self._is_skipping:
                try:
                    yield parse(line)
                except BadRequestError as error:
                    yield error
            self._is_skipping = self._is_skipping and line is None
        if self._is_skipping:
            self._rest = b""


def parse(line: bytes) -> dict[str, Any]:
    """The request in a line, with all its fields. Raises `BadRequestError`."""
    try:
        request: Any = json.loads(line.decode("utf-8"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"not JSON in UTF-8: {error}") from error
    if not _is(request, dict):
        raise BadRequestError("expected an object")
    kind, identity = request.get("type"), request.get("id")
    if not _is(kind, str) or kind not in REQUESTS:
        raise BadRequestError(f"type: expected one of {', '.join(REQUESTS)}", identity=identity)
    if kind != "rollback_notify" and not is_id(identity):
        raise BadRequestError(f"id: expected an integer from 1 to {MAX_ID}")
    try:
        fields = {name: _field(name, request, expected) for name, expected in REQUESTS[kind].items()}
    except ValueError as error:
        raise BadRequestError(f"{kind}: {error}", identity=identity) from error
    return {"type": kind, "id": identity, **fields}


def _is(value: Any, kind: type) -> bool:
    return type(value) is kind


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _field(name: str, fields: Any, expected: Any) -> Any:
    """A field, checked by its type in `REQUESTS`."""
    if name in OPTIONAL and name not in fields:
        return OPTIONAL[name]
    value = fields.get(name)
    if _is(expected, dict) and _is(value, dict):
        return {each: _field(each, value, expected[each]) for each in expected}
    if _is(expected, list) and _is(value, list):
        return [_field(name, {name: each}, expected[0]) for each in value]
    if expected is bytes and _is(value, str):
        return base64.b64decode(value, validate=True)
    if not _is(value, expected) or (expected is int and abs(value) > MAX_ID):
        raise ValueError(f"{name}: expected another type")
    return value


class OutputPipe:
    """The output of a command: the reading end of a pipe, or a terminal."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self.pipe = pipe
        """Closed at its end."""
        self.held = 0
        """So much of it the host has not taken yet."""
        self.owed = 0
        """The bytes that were there when the command ended: they must be passed on however long that takes."""

    def read(self, most: int = PIECE_BYTES) -> bytes:
        """Some of the available bytes. At the end, the pipe is closed."""
        try:
            data = os.read(self.pipe.fileno(), most)
        except BlockingIOError:
            return b""
        except OSError:  # a terminal that no process has open any more
            data = b""
        self.owed -= len(data)
        if not data:
            self.pipe.close()
        return data

    def look(self) -> None:
        """Note the number of available bytes."""
        if self.name == "terminal":
            self.owed = 2 * PIECE_BYTES  # only a part of it could be counted
        elif not self.pipe.closed:
            self.owed = struct.unpack("i", fcntl.ioctl(self.pipe, termios.FIONREAD, bytes(4)))[0]

    def is_passed_on(self) -> bool:
        """Whether all that was there then has been read."""
        if self.pipe.closed or self.owed <= 0:
            return True
        return self.name == "terminal" and not select.select([self.pipe], [], [], 0)[0]


class InputPipe:
    """The input of a command: the writing end of a pipe, or a terminal."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self.pipe = pipe
        """Closed when nothing reads it any more, or no more data comes."""
        self.waiting = bytearray()
        self.is_over = False
        """No data comes after the waiting data."""
        os.set_blocking(pipe.fileno(), False)

    def write(self) -> int:
        """Write what the command takes now; how much."""
        try:
            written = os.write(self.pipe.fileno(), self.waiting) if self.waiting else 0
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0
        del self.waiting[:written]
        if self.is_over and not self.waiting:
            self.close()
        return written

    def close(self) -> None:
        """Close it, even with waiting data."""
        self.waiting.clear()
        self.pipe.close()


def start_process(request: dict[str, Any], streams: list[int], **how: Any) -> Any:
    """Start the command of an ``exec`` with these standard streams. Raises `BadRequestError` if it cannot be."""
    try:
        variables = dict(each.split(b"=", 1) for each in request["env"])
        stdin, stdout, stderr = streams
        environment = {**os.environb, **variables}
        return subprocess.Popen(
            request["argv"], stdin=stdin, stdout=stdout, stderr=stderr, cwd=request["cwd"], env=environment, **how
        )
    except (ValueError, IndexError) as error:
        raise BadRequestError(f"exec: {error}", identity=request["id"]) from error
    except (OSError, subprocess.SubprocessError) as error:
        code, why = "cannot_start", str(getattr(error, "strerror", error))
        if isinstance(error, OSError) and error.filename == request["cwd"]:
            code, why = "no_directory", str(error)
        elif isinstance(error, FileNotFoundError):
            code = "no_command"
        raise BadRequestError(why, code, request["id"]) from error


def state_changes(pid: int) -> Iterator[tuple[str, int]]:
    """The changes of a child since the last call: stopped, continued, ended; with the signal or exit code. An ended
    child is not reaped, so that its number, and that of its group, are not reused.
    """
    with suppress(ChildProcessError):  # raised for an ended child
        while (found := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)) is not None:
            if found.si_code != os.CLD_TRAPPED:
                yield ("stopped" if found.si_code == os.CLD_STOPPED else "continued"), found.si_status
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is not None:
        yield "ended", found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)


def send_signal(command: int, number: int, group: bool) -> None:
    """To the first process of a command, or to its group."""
    with suppress(OSError, OverflowError):
        (os.killpg if group else os.kill)(command, number)


def set_foreground(terminal: int, group: int) -> None:
    """Give the terminal of this process's session to a process group."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])  # which comes to one in the background
    with suppress(OSError):
        os.tcsetpgrp(terminal, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def lead_session(link: socket.socket, request: dict[str, Any], streams: list[int], terminal: int) -> None:
    """In a process of its own: lead a session on the terminal, start the command in it, and report its changes to the
    shim, until the shim closes the link. Only then is the command reaped.
    """
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(2):
        os.dup2(null, descriptor)
    # Open here, the channel and other commands' pipes would never appear closed.
    kept = {2, 0, 1, link.fileno(), terminal, woken, wake, *streams}
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with suppress(OSError):
            os.close(descriptor)

    def enter_group() -> None:
        os.setpgid(0, 0)
        if request["terminal"]["foreground"]:
            set_foreground(terminal, os.getpid())

    try:
        process = start_process(request, streams, preexec_fn=enter_group)  # without this reference, it would be reaped
    except BadRequestError as error:
        link.send(json.dumps([error.code, str(error)[:MAX_WORDS]]).encode())
        return
    command = process.pid
    link.send(json.dumps(["started", command]).encode())
    for descriptor in {*streams} - {terminal}:
        os.close(descriptor)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(woken, select.POLLIN)
    is_over = False
    while True:
        for change in () if is_over else state_changes(command):
            if change[0] == "ended":
                set_foreground(terminal, os.getpgrp())  # what the command has left running gets no SIGHUP by our end
                os.close(terminal)
                is_over = True
            link.send(json.dumps(change).encode())
        ready = dict(poll.poll())
        if woken in ready:
            os.read(woken, 512)
        if link.fileno() in ready:
            asked = json.loads(link.recv(1 << 10) or b"null")
            if asked is None:
                return
            if asked["type"] == "signal":
                send_signal(command, asked["signal"], asked["group"])
            elif not is_over and not asked["foreground"]:
                set_foreground(terminal, os.getpgrp())
            elif not is_over and os.tcgetpgrp(terminal) == os.getpgrp():
                set_foreground(terminal, command)  # otherwise it is a shell, which has given it to a job of its own


class RunningCommand:
    """A command that runs, or has ended with data still in its pipes. Its methods are the requests about it."""

    def __init__(self, request: dict[str, Any], say: Callable[..., None], grace: float, drain: float) -> None:
        """Starts it. Raises `BadRequestError` if that is not possible."""
        self.id = request["id"]
        self._say = say
        self._grace = grace
        self._drain = drain
        self._kill_at: float | None = None
        self._was_killed = False
        self._drained_at: float | None = None
        self.exit_code: int | None = None
        """Of its first process, as a shell says it, when that has ended."""
        self.outputs: dict[str, OutputPipe] = {}
        self.inputs: dict[str, InputPipe] = {}
        self.link: socket.socket | None = None
        """To the process that leads its session on a terminal."""
        with ExitStack() as its:
            try:
                streams, terminal = self._open_streams(request, its)
                if terminal is None:
                    self._child = start_process(request, streams, start_new_session=True)
                    self.pid = self._child.pid
                else:
                    self._start_on_terminal(request, streams, terminal)
            except (OSError, BadRequestError) as error:
                self.close(*self.outputs.values())
                if isinstance(error, OSError):
                    raise BadRequestError(str(error), "cannot_start", self.id) from error
                raise

    def _open_streams(self, request: dict[str, Any], its: ExitStack) -> tuple[list[int], int | None]:
        """The command's standard streams, and its terminal if it has one; on ``its`` stack, to be closed here."""
        wanted: dict[str, Any] = request["terminal"] or {}
        terminal: int | None = None
        if wanted:
            master, terminal = os.openpty()
            its.callback(os.close, terminal)
            self.outputs["terminal"] = OutputPipe("terminal", os.fdopen(master, "rb", 0))
            self.inputs["terminal"] = InputPipe("terminal", os.fdopen(os.dup(master), "wb", 0))
            prepare_terminal(terminal, wanted)
        streams: list[int] = []
        for name in STREAMS:
            if terminal is not None and name in wanted["streams"]:
                streams.append(terminal)
                continue
            if name == "stdin" and not request["stdin"]:
                streams.append(os.open(os.devnull, os.O_RDONLY))
            elif name == "stdin":
                reader, writer = os.pipe()
                streams.append(reader)
                self.inputs[name] = InputPipe(name, os.fdopen(writer, "wb", 0))
            else:
                reader, writer = os.pipe()
                streams.append(writer)
                self.outputs[name] = OutputPipe(name, os.fdopen(reader, "rb", 0))
            its.callback(os.close, streams[-1])
        return streams, terminal

    def _start_on_terminal(self, request: dict[str, Any], streams: list[int], terminal: int) -> None:
        self.link, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._leader = os.fork()
            if not self._leader:
                try:
                    lead_session(its, request, streams, terminal)
                finally:
                    os._exit(0)
        found, self.pid = self._hear(self.link)
        if found != "started":
            self.reap()
            raise BadRequestError(str(self.pid), found, self.id)

    def _hear(self, link: socket.socket) -> tuple[str, Any]:
        with suppress(OSError):
            data = link.recv(1 << 13)
            if data:
                found, value = json.loads(data)
                return found, value
        return "cannot_start", "the process that leads its session has ended"

    def changes(self, ready: dict[int, int]) -> Iterator[tuple[str, int]]:
        """See `state_changes`."""
        if self.link is None:
            yield from state_changes(self.pid)
        elif self.link.fileno() in ready:
            found, value = self._hear(self.link)
            if found == "cannot_start":  # nothing reports its changes any more
                send_signal(self.pid, signal.SIGKILL, group=True)
                found, value = "ended", 128 + signal.SIGKILL
            yield found, value

    def reap(self) -> None:
        """When it has ended: its group gets no more signals."""
        if self.link is None:
            self._child.wait()
        else:
            self.link.close()
            os.waitpid(self._leader, 0)

    def close(self, *outputs: OutputPipe) -> None:
        """Close its input, and these of its outputs."""
        for stream in (*self.inputs.values(), *outputs):
            stream.pipe.close()

    def on_cancel(self, _request: Any = None) -> None:
        """Ask it to end, and see to it that it does."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._drained_at = None
            for number in (signal.SIGTERM, signal.SIGCONT):
                send_signal(self.pid, number, group=True)

    def on_signal(self, request: dict[str, Any]) -> None:
        """To its process group, or to its first process alone. Of a terminal, in order with what gives it that."""
        if self.link is None:
            send_signal(self.pid, request["signal"], request["group"])
        else:
            self.on_foreground(request)

    def on_resize(self, request: dict[str, Any]) -> None:
        """Its terminal has another size: the kernel notifies the terminal's processes."""
        if "terminal" in self.outputs and not self.outputs["terminal"].pipe.closed:
            set_size(self.outputs["terminal"].pipe, request)

    def on_foreground(self, request: dict[str, Any]) -> None:
        """Give it the terminal, or take it back."""
        if self.link is not None:
            with suppress(OSError):
                self.link.send(json.dumps(request).encode(), socket.MSG_DONTWAIT)

    def on_input(self, request: dict[str, Any]) -> None:
        """More for it to read."""
        stream = self.inputs.get(request["stream"])
        if stream is not None and not stream.pipe.closed and not stream.is_over:
            if len(stream.waiting) + len(request["data"]) > INPUT_WINDOW:
                raise BadRequestError(f"input: more of {stream.name} than there is room for")
            stream.waiting += request["data"]
            self.pass_input(stream)

    def on_input_end(self, _request: Any) -> None:
        """Nothing more for its standard input."""
        stream = self.inputs.get("stdin")
        if stream is not None and not stream.pipe.closed:
            stream.is_over = True
            self.pass_input(stream)

    def on_output_taken(self, request: dict[str, Any]) -> None:
        """The host has room again."""
        stream = self.outputs.get(request["stream"])
        if stream is not None:
            stream.held -= max(0, min(request["bytes"], stream.held))

    def on_output_close(self, request: dict[str, Any]) -> None:
        """Nothing reads it any more."""
        if request["stream"] in ("stdout", "stderr") and request["stream"] in self.outputs:
            self.outputs[request["stream"]].pipe.close()

    def pass_input(self, stream: InputPipe) -> None:
        """As much as it takes now."""
        written = stream.write()
        if written:
            self._say("input_taken", id=self.id, stream=stream.name, bytes=written)
        if stream.pipe.closed and not stream.is_over:
            self._say("input_closed", id=self.id, stream=stream.name)

    def pass_output(self, stream: OutputPipe, most: int) -> None:
        """Pass on ``most`` bytes of it, or the available ones."""
        data = stream.read(most)
        if data:
            stream.held += len(data) + PIECE_COST
            self._say("output", id=self.id, stream=stream.name, data=base64.b64encode(data).decode("ascii"))

    def follow(self, ready: dict[int, int]) -> bool:
        """Report its changes. Returns whether it has ended, and all its output was read."""
        for found, value in self.changes(ready) if self.exit_code is None else ():
            if found == "ended":
                self.exit_code = value
            else:
                self._say(found, id=self.id, **({"signal": value} if found == "stopped" else {}))
        now = time.monotonic()
        if self._kill_at is not None and not self._was_killed and now >= self._kill_at:
            send_signal(self.pid, signal.SIGKILL, group=True)
            self._was_killed = True
        if self._drained_at is None and self._is_gone():
            self._drained_at = now + self._drain
            for stream in self.outputs.values():
                stream.look()
        if self._drained_at is None:
            return False
        is_drained = now >= self._drained_at
        return all(stream.pipe.closed or (is_drained and stream.is_passed_on()) for stream in self.outputs.values())

    def _is_gone(self) -> bool:
        """Its process has ended; of one that was cancelled, all of its group."""
        if self.exit_code is None:
            return False
        return self._kill_at is None or self._was_killed or not group_lives(self.pid)

    def seconds(self) -> float | None:
        """When to call `follow` at the latest, apart from readable output and changed children."""
        now = time.monotonic()
        if self._drained_at is not None:
            # After that, output is readable, or there is data to send first.
            return self._drained_at - now if self._drained_at > now else None
        if self._kill_at is None or self._was_killed:
            return None
        return LOOK_SECONDS if self._kill_at > now else 0.0


def prepare_terminal(terminal: int, wanted: dict[str, Any]) -> None:
    """Give a new terminal its size, and its modes if there are any."""
    set_size(terminal, wanted)
    attributes = termios.tcgetattr(terminal)
    if len(wanted["modes"]) == 4:
        attributes[:4] = wanted["modes"]
    for index, character in enumerate(wanted["characters"][: len(attributes[6])]):
        attributes[6][index] = bytes([character])
    with suppress(termios.error, OverflowError):
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def set_size(terminal: Any, wanted: dict[str, Any]) -> None:
    """Change the size of a terminal."""
    with suppress(OSError, struct.error):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", wanted["rows"], wanted["columns"], 0, 0))


def group_lives(group: int) -> bool:
    """Whether a process of the group runs, or may. (`os.killpg` also finds zombies.)"""
    try:
        names = os.listdir("/proc")
    except OSError:
        return True
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, _parent, number = file.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue
            if int(number) == group and state not in (b"Z", b"X"):
                return True
    return False


class Shim:
    """Serves one channel: ``reader`` and ``writer`` are descriptors, or one."""

    def __init__(self, reader: int, writer: int, signals: int, grace: float, drain: float) -> None:
        """``signals`` delivers the numbers of this process's signals."""
        self._reader = reader
        self._writer = writer
        self._signals = signals
        self._grace = grace
        self._drain = drain
        self._requests = RequestParser()
        self._waiting = bytearray()
        self._commands: dict[int, RunningCommand] = {}
        self._left: list[OutputPipe] = []
        self._is_ending = False
        self._is_deaf = False
        """The host reads no more."""

    def serve(self) -> None:
        """Return when the channel has closed, or a signal came, and no command runs."""
        self._say("hello", version=VERSION)
        while not self._is_ending or self._commands:
            self.turn()
        self._send()

    def turn(self) -> None:
        """Wait for an event, and handle it."""
        waits = [seconds for each in self._commands.values() if (seconds := each.seconds()) is not None]
        poll = select.poll()
        for descriptor, mask in self._wanted().items():
            poll.register(descriptor, mask)
        ready = dict(poll.poll(min(waits) * 1000 if waits else None))
        if self._signals in ready and set(os.read(self._signals, 512)) - {signal.SIGCHLD}:
            self._end()
        if self._writer in ready and not self._is_deaf:
            if ready[self._writer] & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self._is_deaf = True
                self._end()
            elif ready[self._writer] & select.POLLOUT:
                self._send()
        for stream in [stream for stream in self._left if stream.pipe.fileno() in ready]:
            stream.read()
            if stream.pipe.closed:
                self._left.remove(stream)
        for command in list(self._commands.values()):
            self._follow(command, ready)
        if ready.get(self._reader, 0) & ~select.POLLOUT and not self._is_ending:
            self._receive()

    def _wanted(self) -> dict[int, int]:
        """The events to wait for, by descriptor."""
        wanted = {self._signals: select.POLLIN}
        if not self._is_ending and len(self._waiting) < WAITING_BYTES:
            wanted[self._reader] = select.POLLIN
        if not self._is_deaf:
            # An empty mask still reports the host's disconnection.
            wanted[self._writer] = wanted.get(self._writer, 0) | (select.POLLOUT if self._waiting else 0)
        wanted.update((stream.pipe.fileno(), select.POLLIN) for stream in self._left)
        for command in self._commands.values():
            wanted.update((out.pipe.fileno(), select.POLLIN) for out in command.outputs.values() if self._room(out))
            for stream in command.inputs.values():
                # An empty mask still reports that a pipe's reader is gone; for a terminal it would do so endlessly.
                if not stream.pipe.closed and (stream.waiting or stream.name != "terminal"):
                    wanted[stream.pipe.fileno()] = select.POLLOUT if stream.waiting else 0
            if command.link is not None and command.exit_code is None:
                wanted[command.link.fileno()] = select.POLLIN
        return wanted

    def _room(self, stream: OutputPipe) -> int:
        """How much of an output can be read now."""
        if stream.pipe.closed or (len(self._waiting) >= OUTPUT_WAITING_BYTES and not self._is_ending):
            return 0
        return PIECE_BYTES if self._is_ending else max(0, min(PIECE_BYTES, OUTPUT_WINDOW - PIECE_COST - stream.held))

    def _receive(self) -> None:
        try:
            data = os.read(self._reader, REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
        for request in self._requests.feed(data):
            try:
                if isinstance(request, BadRequestError):
                    raise request
                self._serve(request)
            except BadRequestError as error:
                about = {} if error.id is None else {"id": error.id}
                self._say("error", code=error.code, message=str(error)[:MAX_WORDS], **about)

    def _serve(self, request: dict[str, Any]) -> None:
        identity = request["id"]
        command = self._commands.get(identity)
        if request["type"] == "exec":
            if command is not None or len(self._commands) == MAX_COMMANDS:
                raise BadRequestError(f"{len(self._commands)} commands are running", "busy", identity)
            self._commands[identity] = RunningCommand(request, self._say, self._grace, self._drain)
            self._say("step_started", id=identity)
        elif command is not None:
            getattr(command, "on_" + request["type"])(request)
        # An ended command needs nothing. A rollback needs no message either: nothing is cached here, and the command's
        # reaction is between the host and its client.

    def _follow(self, command: RunningCommand, ready: dict[int, int]) -> None:
        for stream in command.outputs.values():
            room = self._room(stream)
            if room and stream.pipe.fileno() in ready:
                command.pass_output(stream, room)
        for stream in command.inputs.values():
            if not stream.pipe.closed and stream.pipe.fileno() in ready:
                if ready[stream.pipe.fileno()] & select.POLLERR:
                    stream.close()
                command.pass_input(stream)
        if command.follow(ready):
            del self._commands[command.id]
            command.close()
            # Later writers must neither block nor be ended by SIGPIPE.
            left = [stream for stream in command.outputs.values() if not stream.pipe.closed]
            self._left += left
            while len(self._left) > MAX_LEFT:
                self._left.pop(0).pipe.close()
            command.reap()
            also = {"output_open": True} if left else {}
            self._say("step_completed", id=command.id, exit_code=command.exit_code, **also)

    def _say(self, kind: str, **fields: Any) -> None:
        if not self._is_ending:
            text = json.dumps(dict(type=kind, **fields), ensure_ascii=False, separators=(",", ":"))
            self._waiting += text.encode("utf-8", "replace") + b"\n"

    def _send(self) -> None:
        """As much as the host takes now."""
        try:
            while self._waiting and not self._is_deaf:
                del self._waiting[: os.write(self._writer, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._is_deaf = True
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        for command in self._commands.values():
            command.on_cancel()


def await_host(device: int, signals: int) -> bool:
    """Wait until the host has opened its end of a device; False if a signal came before that."""
    poll = select.poll()
    poll.register(device, 0)
    while any(mask & select.POLLHUP for _, mask in poll.poll(0)):
        if select.select([signals], [], [], HOST_SECONDS)[0]:  # a device reports no connection
            return False
    return True


def main(argv: list[str]) -> int:
    """Serve until the channel closes."""
    parser = argparse.ArgumentParser(description="Run commands for the host at the other end of a control channel.")
    parser.add_argument("--device", help="read from and write to this instead of standard input and output")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds from SIGTERM to SIGKILL (default: 5)")
    parser.add_argument(
        "--drain", type=float, default=0.2, help="seconds that output may stay open after its command (default: 0.2)"
    )
    arguments = parser.parse_args(argv)
    reader, writer = 0, 1
    if arguments.device is not None:
        reader = writer = os.open(arguments.device, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    signals, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    if arguments.device is not None and not await_host(reader, signals):
        return 0
    os.set_blocking(writer, False)
    try:
        Shim(reader, writer, signals, arguments.grace, arguments.drain).serve()
    finally:
        os.set_blocking(writer, True)  # others may have it as well
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
