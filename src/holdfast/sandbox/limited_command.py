"""Running a command to its end with limits: on its time, its memory, and what is kept of what it prints; and with no
process of it left afterwards, however it or this process ends (`holdfast.sandbox.reaper`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Literal, cast

from holdfast.model.errors import StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from holdfast.supervisor.launch.sandbox_port import Sandbox

Why = Literal["", "time", "memory", "start", "stopped"]
"""Why a command was ended, or could not begin; empty: it ended by itself."""

_PIECE = 1 << 16
_LOOK_SECONDS = 0.1
_REAPER_GRACE = 10.0
"""Seconds in which what watches over a command has ended all of it, once it was asked to."""


class CommandLimits(NamedTuple):
    """What a command may take."""

    seconds: float
    memory: int
    """Bytes, of all its processes together; 0: any amount."""
    output: int
    """Bytes of output that are kept: the first half and the last."""
    grace: float = 5.0
    """Seconds from SIGTERM to SIGKILL."""


class CommandEnd(NamedTuple):
    """How a command ended."""

    exit_code: int
    """128 and the signal's number where one ended it; 124 for its time, 137 for its memory, 127 if it is not there."""
    why: Why


def run_contained(
    command: Sequence[bytes],
    *,
    box: Sandbox | None,
    directory: bytes,
    environment: Mapping[bytes, bytes],
    limits: CommandLimits,
    output: bytes,
    stop: threading.Event | None = None,
    keep: Sequence[int] = (),
) -> CommandEnd:
    """Run ``command`` in ``directory``, in the ``box`` (None: as any program of the user's), until it has ended.

    What it prints goes to the new file ``output`` (mode 0600), the beginning and the end of it, never more than
    `CommandLimits.output`. ``keep`` are descriptors that it gets besides the standard ones; there is nothing to read
    for it. Setting ``stop`` ends it. When this returns, and when this process is killed, nothing that it has started
    runs any more: without a box only as long as it does not kill what watches over it. To be called on a thread that
    lives as long as the process. Raises `StorageError`, and `UnsupportedError` as `Sandbox.prepare`.
    """
    if box is None:
        return _run_watched(command, environment, (), directory, limits, output, stop, keep)
    with box.prepare(command, directory=directory, environment=environment, keep=keep) as prepared:
        descriptors = (*prepared.descriptors, *keep)
        return _run_watched(prepared.arguments, prepared.environment, descriptors, b"/", limits, output, stop, ())


def watch_command(said: int, limits: CommandLimits) -> list[str | bytes]:
    """What to put before a command so that nothing of it lives on, neither after its end nor after that of this
    process; how it ended is written to the descriptor ``said``, which is to be passed on, and read by `read_end`.

    Ends all of it on SIGTERM. Of ``limits``, the output is up to the caller, who reads it.
    """
    order = {"seconds": limits.seconds, "memory": limits.memory, "grace": limits.grace, "parent": os.getpid()}
    reaper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reaper.py")
    return [sys.executable, "-I", "-S", "-B", reaper, str(said), json.dumps(order)]


def _run_watched(
    arguments: Sequence[bytes],
    environment: Mapping[bytes, bytes],
    descriptors: Sequence[int],
    directory: bytes,
    limits: CommandLimits,
    output: bytes,
    stop: threading.Event | None,
    keep: Sequence[int],
) -> CommandEnd:
    said = os.memfd_create("holdfast")
    try:
        try:
            process = subprocess.Popen(
                [*watch_command(said, limits), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd=directory,
                env=dict(environment),
                pass_fds=(said, *descriptors, *keep),
                start_new_session=True,
            )
        except OSError as error:
            raise StorageError(
                f"{display(arguments[0])} cannot be started: {error.strerror}",
                hint=room_hint(error),
                code="cannot_start",
            ) from error
        try:
            _follow(process, output, limits, stop)
        finally:
            end_watched(process)
        return read_end(said)
    finally:
        os.close(said)


def read_end(said: int) -> CommandEnd:
    """How a command ended, as was written to ``said``."""
    try:
        found = json.loads(os.pread(said, 4096, 0) or b"{}")
        return CommandEnd(int(found["exit_code"]), cast("Why", found["ended"]))
    except (ValueError, KeyError, TypeError):
        return CommandEnd(137, "stopped")  # what watched over it was killed


def _follow(
    process: subprocess.Popen[bytes], output: bytes, limits: CommandLimits, stop: threading.Event | None
) -> None:
    """Keep what it prints, until all is ended that could print."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    os.set_blocking(fd, False)
    kept = _Output(output, limits.output)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    asked = False
    with process.stdout, kept:
        while True:
            if stop is not None and stop.is_set() and not asked:
                asked = True
                process.send_signal(signal.SIGTERM)
            if not poll.poll(_LOOK_SECONDS * 1000):
                if process.poll() is not None:
                    return
                continue
            piece = os.read(fd, _PIECE)
            if not piece:
                return
            kept.add(piece)


def end_watched(process: subprocess.Popen[bytes]) -> None:
    """Wait until what watches over a command has ended all of it; ask for that if it takes long."""
    if process.poll() is None:
        try:
            process.wait(_REAPER_GRACE)
            return
        except subprocess.TimeoutExpired:
            process.terminate()
    try:
        process.wait(_REAPER_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Output:
    """A file that takes the first bytes of something at once, and the last ones when it is closed."""

    def __init__(self, path: bytes, most: int) -> None:
        self._half = max(1, most // 2)
        self._left = self._half
        self._tail = bytearray()
        self._taken = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise StorageError(f"cannot write {display(path)}: {error.strerror}", hint=room_hint(error)) from error

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        left_out = self._taken - self._half - min(len(self._tail), self._half)
        try:
            if left_out > 0:
                self._write(b"\n[... %d bytes left out ...]\n" % left_out)
            self._write(bytes(self._tail[-self._half :]))
        finally:
            os.close(self._fd)

    def add(self, data: bytes) -> None:
        self._taken += len(data)
        if self._left:
            head, data = data[: self._left], data[self._left :]
            self._left -= len(head)
            self._write(head)
        self._tail += data
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            return  # a full disk fails the command, and need not fail what watches it as well
