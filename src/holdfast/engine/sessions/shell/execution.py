"""A command in a session: journalled, run by a real shell, and journalled again with how it ended."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from contextlib import ExitStack, nullcontext
from typing import IO, TYPE_CHECKING, Final, Literal, Protocol

from holdfast.engine.running.child_start import ChildStart, refused_call
from holdfast.engine.sessions.holder.lock import in_flight
from holdfast.engine.sessions.holder.request_server import servers_for
from holdfast.engine.sessions.identifiers import AGENT_VARIABLE, SESSION_VARIABLE
from holdfast.engine.sessions.shell import _shell_programs as shell_programs
from holdfast.engine.sessions.shell._shell_programs import OWN
from holdfast.model.errors import HoldfastError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.message_text import plural, visible
from holdfast.model.paths import display
from holdfast.model.session_types import CommandResult
from holdfast.processes.helper_process import start_in_own_session
from holdfast.processes.process_tree import signal_group
from holdfast.sandbox.shim import OutputPipe, group_lives
from holdfast.wire.whole_characters import WholeCharacters, incomplete_utf8

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from holdfast.engine.running.session_machine import SessionMachine
    from holdfast.engine.running.session_tree import SessionTree
    from holdfast.engine.sessions.holder.lock import InFlight
    from holdfast.engine.sessions.holder.request_server import RequestServer, Served
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.shell._shell_programs import ShellState
    from holdfast.model.session_types import CommandEntry, Level, ShellName


_LOG = Log(__name__)
_KILLED = 137
_NOT_STARTED = 126
_BAD_CALL = 128 + signal.SIGSYS
_REFUSED_PROGRAMS = re.compile(
    r"(?<![\w/.-])(?:/\S*bin/)?(?:sudo|doas|su|pkexec|strace|ltrace|gdb|lldb|rr|perf|mount|umount|unshare|bwrap)(?![\w/.-])"
)
"""Set-id programs, tracers and what mounts, as words of a command."""
_REFUSED_CALLS = re.compile(r"Operation not permitted|no new privileges", re.IGNORECASE)
"""Messages of programs that were refused a signal, ptrace or another user's rights, by any caller."""


def classify_command(session: Session, command: str, *, cwd: bytes, environment: Mapping[str, str]) -> Level:
    """The level of ``command`` in the directory ``cwd`` with these variables (docs/reference/classify.md)."""
    from holdfast.engine.safety.classify import classify, levels_of

    programs = levels_of(session.context.settings.safety.programs)
    return classify(command, cwd=cwd, root=session.root, env=environment, programs=programs)


class OutputExcerpt:
    """The beginning and the end of one stream, in bounded memory, with a mark for the omitted part."""

    __slots__ = ("_half", "_head", "_tail", "_taken")

    def __init__(self, most: int) -> None:
        """At most ``most`` bytes are kept, the mark not counted: the first half and the last."""
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._taken = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._taken += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:
            # Not for every piece: each time costs as much as all the kept bytes.
            del self._tail[: -self._half]

    @property
    def truncated(self) -> bool:
        """Whether a part is left out."""
        return self._taken > 2 * self._half

    def text(self) -> str:
        r"""The kept bytes as text. A byte that is not UTF-8 is ``\xHH``; the mark cuts no character in two."""
        if not self.truncated:
            return _text(self._head + self._tail)
        head = self._head[: len(self._head) - incomplete_utf8(self._head)]
        tail = self._tail[-self._half :]
        tail = tail[_continued(tail) :]
        left_out = self._taken - len(head) - len(tail)
        return f"{_text(head)}\n[… {plural(left_out, 'byte')} left out …]\n{_text(tail)}"


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")


def _continued(data: bytes | bytearray) -> int:
    """How many bytes at the beginning go on with a character that began before them."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


StreamName = Literal["stdout", "stderr"]

GRACE_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL, for a command that is to end."""
DRAIN_SECONDS: Final = 0.2
"""How long output of background processes is read after the end of the command."""
_LOOK_SECONDS = 0.02


class ShellCommand(NamedTuple):
    """A command, its shell, and its directory."""

    text: str
    cwd: bytes
    environment: Mapping[str, str]
    shell: ShellName = "bash"


class Streams(NamedTuple):
    """The input of a command, and the receivers of its output."""

    stdin: int | None = None
    """A descriptor; None: there is nothing to read."""
    output: Callable[[StreamName, bytes], None] | None = None
    """Gets all that it writes, as it comes. An error in it ends the command, and is raised."""


NO_STREAMS = Streams()


class ShellResult(NamedTuple):
    """The result of a command."""

    result: CommandResult
    carried: ShellState | None
    """The shell's final state; None if it could not report it."""
    duration_ms: int
    interrupted: bool
    """There was a Ctrl-C, which the command has got."""
    denied: bool
    """A safeguard denied an operation: all changes of the command were rolled back."""


def run_command(
    command: ShellCommand,
    streams: Streams = NO_STREAMS,
    *,
    timeout: float | None = None,
    max_output_bytes: int = 65_536,
    stop: threading.Event | None = None,
    door: RequestServer | None = None,
    noted: AbstractContextManager[InFlight] | None = None,
    grace: float = GRACE_SECONDS,
    tree: SessionTree | None = None,
) -> ShellResult:
    """Run ``command`` by a real shell, in a process group of its own, until it ends or is ended.

    ``max_output_bytes`` of each output stream are kept. After ``timeout`` seconds (None or 0: never), or when ``stop``
    is set, its process group gets SIGTERM, and after ``grace`` seconds SIGKILL. A Ctrl-C (`KeyboardInterrupt`) is
    passed on to the group; a second one ends it. Requests at ``door`` are served meanwhile. ``noted`` records its
    processes, in case this process is killed (None: no record). In a session's ``tree``, its changes are a step.

    Background processes go on, and their output is discarded. Raises `UnsupportedError` if there is no such shell, or
    it cannot be supervised, `UsageError` for a command with a NUL in it, `StorageError` if no process can be started,
    and the errors of recording it.
    """
    with in_flight() if noted is None else noted as flight:
        started, carried_by = _prepared(command, flight.folder, machine_of(tree))
        shell = ChildStart(started.arguments, command.cwd, started.environment)
        called = (command.shell.encode(), b"-c", os.fsencode(command.text))
        with nullcontext(shell) if tree is None else tree.serving(shell) as start, servers_for(door, start) as servers:
            running = _RunningShell(_start(tree, start, called, streams), streams, max_output_bytes, grace, servers)
            if running.pid:
                flight.started(running.pid)
            try:
                timed_out = running.follow(timeout or None, stop)
                if tree is not None:
                    running.explain_end()
            except BaseException:
                running.end_now()
                raise
            finally:
                running.let_go()
        carried = carried_by(start.undo_log)
        return ShellResult(running.result(timed_out), carried, running.duration_ms, running.interrupted, running.denied)


def machine_of(tree: SessionTree | None) -> SessionMachine | None:
    """The ``tree``, if it is a virtual machine."""
    if tree is None or not tree.is_machine:
        return None
    from holdfast.engine.running.session_machine import SessionMachine

    assert isinstance(tree, SessionMachine)
    return tree


def _prepared(
    command: ShellCommand, folder: bytes, machine: SessionMachine | None
) -> tuple[shell_programs.ShellStart, Callable[[bytes], ShellState | None]]:
    """The start of the shell, and a function that reads its final state after its end, given the undo log."""
    if machine is None:
        said = os.path.join(folder, b"said")
        start = shell_programs.prepare_start(command.shell, command.text, command.environment, folder=folder, said=said)
        return start, lambda log: shell_programs.read_state(said, log)
    there = b"/tmp/" + os.path.basename(folder)
    guest = shell_programs.prepare_guest_start(
        command.shell, command.text, command.environment, command.cwd, folder=there
    )

    def carried(_log: bytes) -> ShellState | None:
        try:
            return shell_programs.parse_guest_state(machine.output(shell_programs.guest_report(there)))
        except HoldfastError as error:
            _LOG.warning("%s: the session keeps its previous directory and variables", error.message)
            return None

    return guest, carried


class _Child(Protocol):
    """A shell that was started, which leads a process group."""

    pid: int
    """0: it is no process of this host."""
    denied: bool
    """A safeguard denied one of its operations; known at its end."""

    def fileno(self) -> int:
        """Can be read when it has ended."""
        ...

    def exit_code(self) -> int | None:
        """How it ended, a signal as minus its number; None while it runs."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        ...

    def group_lives(self) -> bool:
        """Whether anything of its process group lives."""
        ...

    def end(self) -> None:
        """Wait for it, and release it."""
        ...


class _OwnChild:
    """One that is a child of this process."""

    def __init__(self, start: ChildStart, streams: tuple[int, int, int]) -> None:
        stdin, stdout, stderr = streams
        self._process = start_in_own_session(
            start.words,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=start.directory,
            environment=start.environment,
        )
        self.pid = self._process.pid
        self.denied = False
        self._code: int | None = None
        self._pidfd = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        return self._pidfd

    def exit_code(self) -> int | None:
        if self._code is not None:
            return self._code
        # It is not reaped yet, so the number of its group cannot be reused.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def signal(self, number: int) -> None:
        signal_group(self.pid, number)

    def group_lives(self) -> bool:
        return group_lives(self.pid)

    def end(self) -> None:
        self._code = self._process.wait()
        os.close(self._pidfd)


class _Pipes(NamedTuple):
    """A child with its output."""

    child: _Child
    stdout: IO[bytes]
    stderr: IO[bytes]


def _start(tree: SessionTree | None, start: ChildStart, called: Sequence[bytes], streams: Streams) -> _Pipes:
    """Start a shell: in the ``tree``, or as a child. Raises `StorageError`."""
    # No `processes.child`: its background processes go on, and all output is passed on as it comes.
    with ExitStack() as theirs, ExitStack() as ours:
        writing: list[int] = []
        reading: list[IO[bytes]] = []
        for read, write in (os.pipe(), os.pipe()):
            theirs.callback(os.close, write)
            writing.append(write)
            reading.append(ours.enter_context(open(read, "rb", buffering=0)))
        stdin = streams.stdin
        if stdin is None:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, stdin)
        given = (stdin, writing[0], writing[1])
        try:
            child = _OwnChild(start, given) if tree is None else tree.start(start, called, given)
        except OSError as error:
            raise StorageError(
                f"{display(start.words[0])} cannot be started in {display(start.directory)}: {error.strerror}",
                hint=room_hint(error) or "a command, with its environment, may be too long for the system",
                code="cannot_start",
            ) from error
        ours.pop_all()
        return _Pipes(child, reading[0], reading[1])


class _RunningShell:
    """A shell that was started. For one thread."""

    def __init__(self, started: _Pipes, streams: Streams, most: int, grace: float, servers: Sequence[Served]) -> None:
        self._began = time.monotonic()
        self._duration = 0.0
        self._child = started.child
        self._streams: dict[StreamName, OutputPipe] = {
            "stdout": OutputPipe("stdout", started.stdout),
            "stderr": OutputPipe("stderr", started.stderr),
        }
        self._texts: dict[StreamName, WholeCharacters] = {"stdout": WholeCharacters(), "stderr": WholeCharacters()}
        self._kept: dict[StreamName, OutputExcerpt] = {"stdout": OutputExcerpt(most), "stderr": OutputExcerpt(most)}
        self._output = streams.output
        self._grace = grace
        self._servers = servers
        self._kill_at: float | None = None
        self._was_killed = False
        self._drained_at: float | None = None
        self.interrupted = False

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def denied(self) -> bool:
        return self._child.denied

    @property
    def duration_ms(self) -> int:
        return round(self._duration * 1000)

    def follow(self, timeout: float | None, stop: threading.Event | None) -> bool:
        """Pass on its output until it ends; whether its time was over before."""
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
                    for name, text in self._texts.items():
                        self._take(name, text.rest())
                    return timed_out
                self._turn(self._seconds(deadline, stop is not None))
            except KeyboardInterrupt:
                if self.interrupted:
                    self._ask_to_end()
                self.interrupted = True
                self._child.signal(signal.SIGINT)

    def explain_end(self) -> None:
        """Say on its standard error why it has ended, if that was its supervision."""
        if why := refused_call(self._exit_code()):
            self._take("stderr", f"holdfast: {why}\n".encode())

    def _exit_code(self) -> int:
        code = self._child.exit_code()
        assert code is not None, "it has ended"
        return code if code >= 0 else 128 - code

    def _turn(self, seconds: float | None) -> None:
        poll = select.poll()
        if self._drained_at is None:
            poll.register(self._child, select.POLLIN)
        for stream in self._streams.values():
            if not stream.pipe.closed:
                poll.register(stream.pipe.fileno(), select.POLLIN)
        for server in self._servers:
            poll.register(server.fileno(), select.POLLIN)
        ready = dict(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
        for name, stream in self._streams.items():
            if not stream.pipe.closed and stream.pipe.fileno() in ready:
                self._take(name, self._texts[name].feed(stream.read()))
        for server in self._servers:
            if server.fileno() in ready:
                server.serve()

    def _take(self, name: StreamName, data: bytes) -> None:
        if data:
            self._kept[name].add(data)
            if self._output is not None:
                self._output(name, data)

    def _seconds(self, deadline: float | None, has_stop: bool) -> float | None:
        """How long to wait at most without events."""
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
            self._child.signal(signal.SIGKILL)
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
        if self._child.exit_code() is None:
            return False
        return self._kill_at is None or self._was_killed or not self._child.group_lives()

    def _ask_to_end(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self._drained_at = None
            self._child.signal(signal.SIGTERM)
            self._child.signal(signal.SIGCONT)

    def end_now(self) -> None:
        """Kill all of the group."""
        self._child.signal(signal.SIGKILL)

    def let_go(self) -> None:
        """Wait for the shell, which has ended, and close its pipes."""
        self._child.end()
        for stream in self._streams.values():
            if not stream.pipe.closed:
                _drain(stream.pipe)
                stream.pipe.close()

    def result(self, timed_out: bool) -> CommandResult:
        return CommandResult(
            exit_code=self._exit_code(),
            stdout=self._kept["stdout"].text(),
            stderr=self._kept["stderr"].text(),
            truncated=any(kept.truncated for kept in self._kept.values()),
            timed_out=timed_out,
        )


def _drain(pipe: IO[bytes]) -> None:
    """Keep a process that still writes to ``pipe`` from blocking or being ended by SIGPIPE."""
    # A background command of a shell reads from /dev/null unless redirected. It is no child that we must wait for.
    subprocess.run(
        [b"/bin/sh", b"-c", b"exec 3<&0; /bin/cat <&3 3<&- &"],
        stdin=pipe,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=b"/",
        start_new_session=True,
        check=False,
    )


def execute(
    session: Session,
    command: str,
    *,
    input: str | None = None,  # noqa: A002 - the name of the entry's field
    generated: bool = False,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    streams: Streams = NO_STREAMS,
    stop: threading.Event | None = None,
) -> CommandEntry:
    """Run ``command`` in ``session`` until it has ended; its entry in the history, with its result.

    It begins with the directory and the exported variables of the last command. ``input`` is the original request, if
    that differs, and ``generated`` tells whether a model made the command from it. ``timeout`` (seconds; None: as the
    session is configured, 0: none) and ``stop`` end it, with all of its process group. ``env`` are variables for it
    alone; they cannot change the session's name.

    The entry is durable before it starts, and again when this returns. Errors of `run_command` are raised after the end
    is in the journal; so is a `KeyboardInterrupt`, which the command also received.
    """
    directory, is_here = session.directory(), session.config.isolation == "none"
    if is_here:
        directory = shell_programs.nearest_existing(directory, session.root)
    # Background processes are identified by the session's name.
    alone = {name: value for name, value in (env or {}).items() if name != SESSION_VARIABLE}
    environment = shell_environment(session, directory) | alone
    level = classify_command(session, command, cwd=directory, environment=environment)
    tree = session.tree()  # decides what must be saved before
    entry = session.begin(command, input=input, generated=generated, level=level)
    seconds = session.config.timeout_seconds if timeout is None else timeout
    try:
        ran = run_command(
            ShellCommand(command, directory, environment, session.config.shell),
            streams,
            timeout=seconds,
            max_output_bytes=session.config.max_output_bytes,
            stop=stop,
            door=session.door(),
            noted=session.in_flight(),
            tree=tree,
        )
    except BaseException as error:
        code, words = (_NOT_STARTED, error.message) if isinstance(error, HoldfastError) else (_KILLED, "")
        result = CommandResult(exit_code=code, stdout="", stderr=words)
        session.end(entry, result, cwd=session.state.cwd, env=session.environment(), duration_ms=0)
        raise
    left = session.environment(), session.state.cwd
    if ran.carried is not None:
        left = exported_variables(session, ran.carried, alone), shell_programs.relative(ran.carried.cwd, session.root)
    ended = session.end(entry, ran.result, env=left[0], cwd=left[1], duration_ms=ran.duration_ms)
    if is_here and session.records_commands and not ran.denied and _may_be_refused(command, ran.result):
        _LOG.warning(
            "supervision may have caused this: sudo gains no rights, signals and "
            "tracers stay inside the session, mounts and 32-bit programs fail; "
            "`holdfast session start --unsupervised` allows them"
        )
    if ran.interrupted:
        raise KeyboardInterrupt
    return ended


def _may_be_refused(command: str, result: CommandResult) -> bool:
    """Whether supervision may be why a command has failed."""
    if result.exit_code in (0, _BAD_CALL):
        return result.exit_code != 0
    return bool(_REFUSED_PROGRAMS.search(command) or _REFUSED_CALLS.search(result.stderr))


def shell_environment(session: Session, directory: bytes) -> dict[str, str]:
    """The environment of a shell of the session in ``directory``."""
    own = {"PWD": os.fsdecode(directory), SESSION_VARIABLE: session.id, AGENT_VARIABLE: session.agent}
    return {name: value for name, value in session.environment().items() if name != "_"} | own


def exported_variables(session: Session, carried: ShellState, alone: Mapping[str, str]) -> dict[str, str]:
    """All exports of the session after a shell has left ``carried``; the shell had ``alone`` in addition.

    Variables that are too long to start a program keep their former value, and are reported once.
    """
    before = session.environment()
    env = dict(carried.env)
    _tell_too_long(session, carried)
    env.update((name, before[name]) for name in carried.too_long if name in before)
    for name, value in before.items():
        # Some shells do not export variables with an invalid name: they are missing, but were not removed.
        if name in OWN or (name not in env and not name.isidentifier()):
            env[name] = value
    for name, value in alone.items():
        if env.get(name) == value:
            env.pop(name)
            if name in before:
                env[name] = before[name]
    return env


def _tell_too_long(session: Session, carried: ShellState) -> None:
    new = [name for name in carried.too_long if name not in session.too_long]
    session.too_long += new
    for name in new:
        _LOG.warning(
            "the variable %s is too long to start a program with: the session does not keep it",
            visible(name),
            session=session.id,
        )
