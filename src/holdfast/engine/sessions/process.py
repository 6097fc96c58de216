"""One command of a session, run by a real shell in a process group of its own, until it has ended or is made to."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING, Final, Literal

from holdfast.engine.sessions import carrying, shells
from holdfast.engine.sessions.in_flight import in_flight
from holdfast.engine.sessions.output import Kept
from holdfast.model.errors import StorageError, room_hint
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.session import CommandResult
from holdfast.sandbox.shim import Stream, group_lives

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from holdfast.engine.sessions.answering import Door
    from holdfast.engine.sessions.carrying import Carried
    from holdfast.engine.sessions.in_flight import InFlight
    from holdfast.model.session import ShellName

StreamName = Literal["stdout", "stderr"]

GRACE_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL, for a command that is to end."""
DRAIN_SECONDS: Final = 0.2
"""So long output may come after its command has ended, from what that has left running."""
_LOOK_SECONDS = 0.02


class Ran(NamedTuple):
    """What became of a command."""

    result: CommandResult
    carried: Carried | None
    """What the shell leaves; None if it could not say."""
    duration_ms: int
    interrupted: bool
    """There was a Ctrl-C, which the command has got."""


def run_command(
    command: str,
    *,
    shell: ShellName = "bash",
    cwd: bytes,
    environment: Mapping[str, str],
    timeout: float | None = None,
    max_output_bytes: int = 65_536,
    stdin: int | None = None,
    output: Callable[[StreamName, bytes], None] | None = None,
    stop: threading.Event | None = None,
    door: Door | None = None,
    noted: AbstractContextManager[InFlight] | None = None,
    grace: float = GRACE_SECONDS,
) -> Ran:
    """Run ``command`` with a shell in the directory ``cwd`` until it has ended.

    ``stdin`` is a descriptor that it reads from (None: nothing to read). ``output`` gets all that it writes, as it
    comes; of that `max_output_bytes` are kept of each stream. After ``timeout`` seconds (None or 0: never), or when
    ``stop`` is set, its process group is asked to end (SIGTERM), and after ``grace`` seconds made to (SIGKILL). A
    Ctrl-C (`KeyboardInterrupt`) is passed on to the group; a second one ends it. What is asked at ``door`` is done
    meanwhile. Should this process be killed, what it has started is known by ``noted`` (None: by nobody).

    What it leaves running goes on, and what that writes goes nowhere. An error in ``output`` ends the command, and is
    raised. Raises `UnsupportedError` if there is no such shell, `UsageError` for a command with a NUL in it,
    `StorageError` if no process can be started.
    """
    with in_flight() if noted is None else noted as flight:
        said = os.path.join(flight.folder, b"said")
        started = shells.start(shell, command, environment, folder=flight.folder, said=said)
        running = _Running(started, cwd, stdin, max_output_bytes, output, grace, door)
        flight.started(running.pid)
        try:
            timed_out = running.follow(timeout or None, stop)
        except BaseException:
            running.end_now()
            raise
        finally:
            running.let_go()
        return Ran(running.result(timed_out), carrying.read(said), running.duration_ms, running.interrupted)


class _Running:
    """A shell that was started. For one thread."""

    def __init__(
        self,
        started: shells.Started,
        cwd: bytes,
        stdin: int | None,
        most: int,
        output: Callable[[StreamName, bytes], None] | None,
        grace: float,
        door: Door | None,
    ) -> None:
        self._began = time.monotonic()
        self._duration = 0.0
        try:
            self._process = subprocess.Popen(
                started.arguments,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=started.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise StorageError(
                f"{display(started.arguments[0])} cannot be started in {display(cwd)}: {error.strerror}",
                hint=room_hint(error) or "a command, with its environment, may be too long for the system",
                code="cannot_start",
            ) from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pidfd = os.pidfd_open(self._process.pid)
        self._streams: dict[StreamName, Stream] = {
            "stdout": Stream("stdout", self._process.stdout),
            "stderr": Stream("stderr", self._process.stderr),
        }
        self._kept: dict[StreamName, Kept] = {"stdout": Kept(most), "stderr": Kept(most)}
        self._output = output
        self._grace = grace
        self._door = door
        self._kill_at: float | None = None
        self._was_killed = False
        self._drained_at: float | None = None
        self.interrupted = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def duration_ms(self) -> int:
        return round(self._duration * 1000)

    def follow(self, timeout: float | None, stop: threading.Event | None) -> bool:
        """Pass on what it writes until it has ended; whether its time was over before."""
        timed_out = False
        deadline = None if timeout is None else self._began + timeout
        while True:
            try:
                if self._kill_at is None and deadline is not None and time.monotonic() >= deadline:
                    timed_out = self._drained_at is None
                    self._ask_to_end()
                if self._kill_at is None and stop is not None and stop.is_set():
                    self._ask_to_end()
                if self._has_ended():
                    for name, stream in self._streams.items():
                        self._take(name, stream.rest())
                    return timed_out
                self._turn(self._seconds(deadline, stop is not None))
            except KeyboardInterrupt:
                if self.interrupted:
                    self._ask_to_end()
                self.interrupted = True
                self._signal(signal.SIGINT)

    def _turn(self, seconds: float | None) -> None:
        poll = select.poll()
        if self._drained_at is None:
            poll.register(self._pidfd, select.POLLIN)
        for stream in self._streams.values():
            if not stream.pipe.closed:
                poll.register(stream.pipe.fileno(), select.POLLIN)
        if self._door is not None:
            poll.register(self._door.fileno(), select.POLLIN)
        ready = dict(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
        for name, stream in self._streams.items():
            if not stream.pipe.closed and stream.pipe.fileno() in ready:
                self._take(name, stream.read())
        if self._door is not None and self._door.fileno() in ready:
            self._door.serve()

    def _take(self, name: StreamName, data: bytes) -> None:
        if data:
            self._kept[name].add(data)
            if self._output is not None:
                self._output(name, data)

    def _seconds(self, deadline: float | None, has_stop: bool) -> float | None:
        """How long nothing has to be looked at, if nothing comes."""
        now = time.monotonic()
        waits = [_LOOK_SECONDS] if has_stop or (self._kill_at is not None and not self._was_killed) else []
        if self._drained_at is not None and self._drained_at > now:
            waits.append(self._drained_at - now)
        elif deadline is not None and self._kill_at is None:
            waits.append(deadline - now)
        return min(waits, default=None)

    def _has_ended(self) -> bool:
        now = time.monotonic()
        if self._kill_at is not None and not self._was_killed and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._was_killed = True
        if self._drained_at is None and self._is_gone():
            self._duration = now - self._began
            self._drained_at = now + DRAIN_SECONDS
            for stream in self._streams.values():
                stream.look()
        if self._drained_at is None:
            return False
        return all(
            stream.pipe.closed or (now >= self._drained_at and stream.owed <= 0) for stream in self._streams.values()
        )

    def _is_gone(self) -> bool:
        """The shell has ended; of a command that was to end, all of its group."""
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        return self._kill_at is None or self._was_killed or not group_lives(self._process.pid)

    def _ask_to_end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._drained_at = None
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # (Nobody has waited for the shell yet: the number of the group means nobody else.)
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def end_now(self) -> None:
        """Kill all of the group."""
        self._signal(signal.SIGKILL)

    def let_go(self) -> None:
        """Wait for the shell, which has ended, and let go of its pipes."""
        self._process.wait()
        os.close(self._pidfd)
        for stream in self._streams.values():
            if not stream.pipe.closed:
                _drain(stream.pipe)
                stream.pipe.close()

    def result(self, timed_out: bool) -> CommandResult:
        code = self._process.returncode
        return CommandResult(
            exit_code=code if code >= 0 else 128 - code,
            stdout=self._kept["stdout"].text(),
            stderr=self._kept["stderr"].text(),
            truncated=any(kept.truncated for kept in self._kept.values()),
            timed_out=timed_out,
        )


def _drain(pipe: IO[bytes]) -> None:
    """See to it that whoever still writes to ``pipe`` neither has to wait nor is ended by that."""
    # (What a shell has in the background reads from nowhere, unless told; and it is nobody's child to wait for.)
    subprocess.run(
        [b"/bin/sh", b"-c", b"exec 3<&0; /bin/cat <&3 3<&- &"],
        stdin=pipe,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=b"/",
        start_new_session=True,
        check=False,
    )
