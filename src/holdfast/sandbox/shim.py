"""Runs commands for a host that is on the other end of a control channel (docs/internals/control-channel.md).

A program of its own: one file, the standard library of Python 3.8 or later and nothing of Holdfast, so that it can be
copied into any box. It reads requests from standard input and writes to standard output, or does both on a device whose
path it is given. One command at a time runs, in a session of its own; when the channel closes, or the shim is told to
end by a signal, it ends its command and then itself.

One thread, one loop; nothing in it waits but `Shim.turn`. Memory is bounded: while the host does not read, neither
does the shim read what its command writes, until that has to wait as well.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 1 << 20
MAX_ID = (1 << 53) - 1
PIECE_BYTES = 1 << 15
"""What is read at once of a command's output. As JSON it becomes six times as long at most, within a line."""
OUTPUT_WAITING_BYTES = 1 << 17
"""With so much unsent, the command's output is not read."""
WAITING_BYTES = 1 << 20
"""With so much unsent, no requests are read. Output never makes it so much: one that cancels is read anyhow."""
REQUEST_BYTES = 1 << 12
"""What is read at once of requests: each of these bytes could be a line, and be answered."""
MAX_WORDS = 1000
"""Characters of what is said for people. The name of a directory can be as long as a line."""
MAX_LEFT = 64
"""So many pipes of earlier commands are kept from filling up; then the oldest is closed."""
LOOK_SECONDS = 0.02

MOST_DIGITS = 20
"""Digits; longer ones take Python before 3.11 a time that grows with their square."""


class BadRequestError(Exception):
    """A line that is no request, with the code and id to answer it with."""

    def __init__(self, message: str, code: str = "bad_request", identity: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.id = identity if is_id(identity) else None


def is_id(value: Any) -> bool:
    """Whether ``value`` can be the id of a command."""
    return type(value) is int and 1 <= value <= MAX_ID


class RequestParser:
    """Makes requests of what arrives, in bounded memory."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._is_skipping = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | BadRequestError]:
        """What ``data`` completes; in the place of a line that is no request, what is wrong with it."""
        self._buffer += data
        while True:
            at = self._buffer.find(b"\n", self._searched)
            length = len(self._buffer) if at < 0 else at
            line = None if at < 0 or length > MAX_LINE_BYTES or self._is_skipping else bytes(self._buffer[:at])
            if length > MAX_LINE_BYTES and not self._is_skipping:
                yield BadRequestError(f"a line is longer than {MAX_LINE_BYTES} bytes", "line_too_long")
                self._is_skipping = True
            if at < 0:
                if self._is_skipping:
                    self._buffer.clear()
                self._searched = len(self._buffer)
                return
            del self._buffer[: at + 1]
            self._searched = 0
            self._is_skipping = False
            if line is not None:
                try:
                    yield parse(line)
                except BadRequestError as error:
                    yield error


def parse(line: bytes) -> dict[str, Any]:
    """The request in a line, its fields of the right types. Raises `BadRequestError`."""
    request = _object(line)
    kind, identity = request.get("type"), request.get("id")

    def check(is_right: bool, name: str, expected: str) -> None:
        if not is_right:
            raise BadRequestError(f"{name}: expected {expected}", identity=identity)

    if kind == "rollback_notify":
        step = request.get("step_id")
        check(type(step) is int and abs(step) <= MAX_ID, "step_id", "an integer")
        return request
    check(kind in ("exec", "cancel"), "type", "exec, cancel or rollback_notify")
    check(is_id(identity), "id", f"an integer from 1 to {MAX_ID}")
    if kind == "exec":
        check(type(request.get("command")) is str, "command", "text")
        check(type(request.get("cwd", "")) is str, "cwd", "text")
        check(type(request.get("cwd_base64", "")) is str, "cwd_base64", "text")
        check(_is_texts(request.get("env", {})), "env", "texts by their names")
    return request


def _object(line: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(line.decode("utf-8"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"not JSON in UTF-8: {error}") from error
    if type(value) is dict:
        return value  # pyright: ignore[reportUnknownVariableType]
    raise BadRequestError("expected an object")


def _is_texts(value: dict[str, Any]) -> bool:
    return type(value) is dict and all(type(text) is str for text in value.values())


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def incomplete_utf8(data: bytes) -> int:
    """How many bytes at the end of ``data`` begin a character of UTF-8 that they do not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC2 or byte > 0xF4 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0


class OutputPipe:
    """The reading end of a pipe that a command writes to."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self.pipe = pipe
        """Closed at its end."""
        self.tail = b""
        """The beginning of a character."""
        self.owed = 0
        """So many bytes were in the pipe when the command ended, and are to be passed on however long that takes."""

    def read(self) -> bytes:
        """What can be passed on of what is there. At the end, the pipe is closed."""
        data = os.read(self.pipe.fileno(), PIECE_BYTES)
        self.owed -= len(data)
        if not data:
            self.pipe.close()
            return b""
        data = self.tail + data
        cut = len(data) - incomplete_utf8(data)
        self.tail = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """What was held back."""
        tail, self.tail = self.tail, b""
        return tail

    def look(self) -> None:
        """Note what is in the pipe."""
        if not self.pipe.closed:
            self.owed = struct.unpack("i", fcntl.ioctl(self.pipe, termios.FIONREAD, bytes(4)))[0]


class RunningCommand:
    """A command that runs, or has ended and still has something in its pipes."""

    def __init__(self, request: dict[str, Any], grace: float, drain: float) -> None:
        """Starts it. Raises `BadRequestError` if that is not possible."""
        self.id = request["id"]
        self._grace = grace
        self._drain = drain
        self._kill_at: float | None = None
        self._was_killed = False
        self._drained_at: float | None = None
        directory = b"."
        try:
            directory = request.get("cwd", ".").encode()
            if "cwd_base64" in request:
                directory = base64.b64decode(request["cwd_base64"], validate=True)
            variables = {name.encode(): value.encode() for name, value in request.get("env", {}).items()}
            # (What follows -- is the command, whatever it begins with.)
            self._process = subprocess.Popen(
                [b"/bin/sh", b"-c", b"--", request["command"].encode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=directory,
                env={**os.environb, **variables},
                start_new_session=True,
            )
        except ValueError as error:
            raise BadRequestError(f"exec: {error}", identity=self.id) from error
        except OSError as error:
            code = "no_directory" if error.filename == directory else "cannot_start"
            raise BadRequestError(str(error), code, self.id) from error
        self.streams = [OutputPipe("stdout", self._process.stdout), OutputPipe("stderr", self._process.stderr)]

    def cancel(self) -> None:
        """Ask it to end, and see to it that it does."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._drained_at = None
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        """Whether it has, and all that is to be passed on was read."""
        now = time.monotonic()
        if self._kill_at is not None and not self._was_killed and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._was_killed = True
        if self._drained_at is None and self._is_gone():
            self._drained_at = now + self._drain
            for stream in self.streams:
                stream.look()
        if self._drained_at is None:
            return False
        return all(stream.pipe.closed or (now >= self._drained_at and stream.owed <= 0) for stream in self.streams)

    def _is_gone(self) -> bool:
        """Its process has ended; of one that was cancelled, all of its group."""
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        return self._kill_at is None or self._was_killed or not group_lives(self._process.pid)

    def seconds(self) -> float | None:
        """When `has_ended` is to be asked at the latest, besides when something can be read or a child has ended."""
        now = time.monotonic()
        if self._drained_at is not None:
            # (Later than that, there is something to read, or to send before.)
            return self._drained_at - now if self._drained_at > now else None
        if self._kill_at is None or self._was_killed:
            return None
        return LOOK_SECONDS if self._kill_at > now else 0.0

    def exit_code(self) -> int:
        """Of a command that has ended, as a shell says it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _signal(self, number: signal.Signals) -> None:
        # Until the last question its process is not waited for, so that the number of the group means no other.
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def group_lives(group: int) -> bool:
    """Whether a process of the group runs, or may. (To `os.killpg` those that were not waited for are there too.)"""
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
        """From ``signals`` come the numbers of those that this process got."""
        self._reader = reader
        self._writer = writer
        self._signals = signals
        self._grace = grace
        self._drain = drain
        self._requests = RequestParser()
        self._waiting = bytearray()
        self._command: RunningCommand | None = None
        self._left: list[Any] = []
        self._is_ending = False
        self._is_deaf = False
        """The host reads no more."""

    def serve(self) -> None:
        """Return when the channel has closed, or a signal came, and no command runs."""
        while not self._is_ending or self._command is not None:
            self.turn()
        self._send()

    def turn(self) -> None:
        """Wait until there is something to do, and do it."""
        seconds = None if self._command is None else self._command.seconds()
        poll = select.poll()
        for descriptor, mask in self._wanted().items():
            poll.register(descriptor, mask)
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        if self._signals in ready and set(os.read(self._signals, 512)) - {signal.SIGCHLD}:
            self._end()
        if self._writer in ready and not self._is_deaf:
            if ready[self._writer] & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                self._is_deaf = True
                self._end()
            elif ready[self._writer] & select.POLLOUT:
                self._send()
        for pipe in [pipe for pipe in self._left if pipe.fileno() in ready]:
            if not os.read(pipe.fileno(), PIECE_BYTES):
                pipe.close()
                self._left.remove(pipe)
        if self._command is not None:
            self._follow(self._command, ready)
        if ready.get(self._reader, 0) & ~select.POLLOUT and not self._is_ending:
            self._receive()

    def _wanted(self) -> dict[int, int]:
        """What to wait for, by descriptor."""
        wanted = {self._signals: select.POLLIN}
        if not self._is_ending and len(self._waiting) < WAITING_BYTES:
            wanted[self._reader] = select.POLLIN
        if not self._is_deaf:
            # (Without any mask it is told if the host goes.)
            wanted[self._writer] = wanted.get(self._writer, 0) | (select.POLLOUT if self._waiting else 0)
        pipes = self._left[:]
        is_read = self._is_ending or len(self._waiting) < OUTPUT_WAITING_BYTES
        if self._command is not None and is_read:
            pipes += [stream.pipe for stream in self._command.streams if not stream.pipe.closed]
        wanted.update((pipe.fileno(), select.POLLIN) for pipe in pipes)
        return wanted

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
                self._say("error", code=error.code, message=error.message[:MAX_WORDS], **about)

    def _serve(self, request: dict[str, Any]) -> None:
        running = self._command
        if request["type"] == "exec":
            if running is not None:
                raise BadRequestError(f"command {running.id} is running", "busy", request["id"])
            self._command = RunningCommand(request, self._grace, self._drain)
            self._say("step_started", id=request["id"])
        elif request["type"] == "cancel" and running is not None and running.id == request["id"]:
            running.cancel()
        # One that has ended needs no cancelling. And of a rollback there is nothing to be told here: nothing is cached,
        # and what the command does about it is between the host and those who gave it the command.

    def _follow(self, command: RunningCommand, ready: dict[int, int]) -> None:
        for stream in command.streams:
            if not stream.pipe.closed and stream.pipe.fileno() in ready:
                self._output(command, stream, stream.read())
        if command.has_ended():
            self._command = None
            for stream in command.streams:
                self._output(command, stream, stream.rest())
            # Who writes to them later neither has to wait nor is ended by it.
            left = [stream.pipe for stream in command.streams if not stream.pipe.closed]
            self._left += left
            while len(self._left) > MAX_LEFT:
                self._left.pop(0).close()
            also = {"output_open": True} if left else {}
            self._say("step_completed", id=command.id, exit_code=command.exit_code(), **also)

    def _output(self, command: RunningCommand, stream: OutputPipe, data: bytes) -> None:
        if not data:
            return
        try:
            self._say("output", id=command.id, stream=stream.name, data=data.decode("utf-8"))
        except UnicodeDecodeError:
            content = base64.b64encode(data).decode("ascii")
            self._say("output", id=command.id, stream=stream.name, data_base64=content)

    def _say(self, kind: str, **fields: Any) -> None:
        if not self._is_ending:
            message = dict(type=kind, **fields)
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
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
        if self._command is not None:
            self._command.cancel()


def main(argv: list[str]) -> int:
    """Serve until the channel closes."""
    parser = argparse.ArgumentParser(description="Run commands for the host at the other end of a control channel.")
    parser.add_argument("device", nargs="?", help="read from and write to this instead of standard input and output")
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
    os.set_blocking(writer, False)
    try:
        Shim(reader, writer, signals, arguments.grace, arguments.drain).serve()
    finally:
        os.set_blocking(writer, True)  # others may have it as well
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
