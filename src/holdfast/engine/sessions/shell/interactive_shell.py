"""A session at the terminal: an interactive shell whose every line is journalled, as `session shell` has it."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.running.child_start import ChildStart, recorded_where
from holdfast.engine.sessions.holder.request_server import servers_for
from holdfast.engine.sessions.shell import _prompt_setup as prompt_setup
from holdfast.engine.sessions.shell import _shell_programs as shell_programs
from holdfast.engine.sessions.shell._terminal_relay import PromptMarks, TerminalRelay, shown_text, take_terminal
from holdfast.engine.sessions.shell.execution import (
    Streams,
    classify_command,
    execute,
    exported_variables,
    shell_environment,
)
from holdfast.engine.sessions.shell.held_notices import report_held
from holdfast.model.errors import HoldfastError, UnsupportedError
from holdfast.model.log import Log
from holdfast.model.session_types import CommandResult
from holdfast.processes.child import Limits, run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from types import FrameType

    from holdfast.engine.sessions.holder.lock import InFlight
    from holdfast.engine.sessions.holder.request_server import Served
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.shell.execution import StreamName
    from holdfast.engine.sessions.shell.held_notices import HeldNotices
    from holdfast.model.session_types import CommandEntry
    from holdfast.processes.child import Ended
    from holdfast.supervisor.control.remote_service import RemoteUndoService

_LOG = Log(__name__)

KEPT_OUT = "# a line that the shell was to keep out of its history"
"""Stands for such a line; its output is not kept either."""
_OUTPUT_SECONDS = 1.0
_CHECK_SECONDS = 10.0
_MOST_BYTES = 1 << 20
_FIELDS = {prompt_setup.BEGIN: 2, prompt_setup.OVER: 2, prompt_setup.PROMPT: 1}


def interact(session: Session, notices: HeldNotices | None = None) -> int:
    """Let the user work in ``session`` at this process's terminal until its shell ends; returns the shell's exit code.
    ``notices`` receive held operations.

    Standard input and output must be terminals. For the main thread.
    """
    session.refuse_machine("a shell at the terminal")
    if session.config.shell == "sh":
        tree = session.tree()
        with report_held(session, b"" if tree is None else tree.undo_log, notices):
            return _loop(session)
    try:
        with session.in_flight() as flight:
            return _Interactive(session, flight, notices).run()
    except UnsupportedError as error:
        if not session.records_commands:
            raise
        session.cannot_record(error)  # its shell has not started
    with session.in_flight() as flight:
        return _Interactive(session, flight, None).run()


class _Interactive:
    """A shell that reports the lines that it runs."""

    def __init__(self, session: Session, flight: InFlight, notices: HeldNotices | None) -> None:
        self._session = session
        self._notices = notices
        self._flight = flight
        self._folder = flight.folder
        self._said = os.path.join(self._folder, b"said")
        self._marks = PromptMarks(secrets.token_hex(8), session.config.max_output_bytes)
        self._undo_log = b""
        self._run = ""
        self._told = b""
        self._entry: CommandEntry | None = None
        self._began = 0.0
        self._hidden = False

    def run(self) -> int:
        session = self._session
        directory = shell_programs.nearest_existing(session.directory(), session.root)
        tell, answer = (os.path.join(self._folder, name) for name in (b"tell", b"answer"))
        for path in (tell, answer):
            os.mkfifo(path, 0o600)
        started = prompt_setup.prepare(
            session.config.shell,
            shell_environment(session, directory),
            session.state,
            folder=self._folder,
            said=self._said,
            tell=tell,
            answer=answer,
            marks=(self._marks.begin, self._marks.end),
        )
        # Opened for both directions, so that opening the other end does not block.
        self._left, self._leaving = os.pipe()
        self._tell, self._answer = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in (tell, answer))
        master, slave = os.openpty()
        try:
            relay = TerminalRelay(master, self._marks, self._leave)
            relay.resize()
            shell = ChildStart(started.arguments, directory, started.environment)
            context = session.context if session.records_commands else None
            with (
                recorded_where(context, shell, one_step=False) as start,
                servers_for(session.door(), start) as servers,
            ):
                self._undo_log, self._run = start.undo_log, start.run
                # No `processes.child`: it has a terminal of its own, for as long as the user likes.
                process = subprocess.Popen(
                    start.words,
                    stdin=slave,
                    stdout=slave,
                    stderr=slave,
                    cwd=start.directory,
                    env=start.environment,
                    pass_fds=start.descriptors,
                    start_new_session=True,
                    preexec_fn=take_terminal,  # noqa: PLW1509 - no thread of ours runs yet
                )
                self._flight.started(process.pid)
                os.close(slave)
                slave = -1
                with relay, self._left_by_signals(), report_held(session, self._undo_log, self._notices):
                    self._follow(process, relay, servers)
                return _exit_code(process)
        finally:
            for fd in (slave, master, self._tell, self._answer, self._left, self._leaving):
                if fd >= 0:
                    os.close(fd)

    def _follow(self, shell: subprocess.Popen[bytes], relay: TerminalRelay, servers: Sequence[Served]) -> None:
        pidfd = os.pidfd_open(shell.pid)
        try:
            poll = select.poll()
            poll.register(self._tell, select.POLLIN)
            poll.register(pidfd, select.POLLIN)
            poll.register(self._left, select.POLLIN)
            for server in servers:
                poll.register(server.fileno(), select.POLLIN)
            while True:
                due = self._due()
                ready = dict(poll.poll(None if due is None else due * 1000))
                if self._tell in ready:
                    for message in self._messages():
                        self._serve(message, relay)
                elif pidfd in ready:
                    break
                elif self._left in ready:
                    # Its jobs get the signal from the shell, or from the system when the shell ends.
                    os.read(self._left, 512)
                    os.killpg(shell.pid, signal.SIGHUP)
                    os.killpg(shell.pid, signal.SIGCONT)
                elif asked := [server for server in servers if server.fileno() in ready]:
                    asked[0].serve()
                elif due is not None:
                    self._save()
        finally:
            os.close(pidfd)
        shell.wait()
        self._end(_exit_code(shell), relay, _OUTPUT_SECONDS)

    def _leave(self) -> None:
        os.write(self._leaving, b"\0")

    @contextmanager
    def _left_by_signals(self) -> Generator[None]:
        """Signals to end this process end the shell, and the session is closed properly."""

        def leave(_number: int, _frame: FrameType | None) -> None:
            self._leave()

        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _due(self) -> float | None:
        return None if self._entry is not None else self._session.due()

    def _save(self) -> None:
        try:
            self._session.checkpoint(kind="auto")
        except HoldfastError as error:
            _LOG.warning("the session could not be saved: %s", error.message)

    def _messages(self) -> Iterator[list[bytes]]:
        """The messages of the hooks, each complete."""
        self._told = (self._told + os.read(self._tell, _MOST_BYTES))[-_MOST_BYTES:]
        while True:
            kind, nul, rest = self._told.partition(b"\0")
            fields = rest.split(b"\0")
            count = _FIELDS.get(kind, 0)
            if not nul or len(fields) <= count:
                return
            self._told = b"\0".join(fields[count:])
            yield [kind, *fields[:count]]

    def _serve(self, message: list[bytes], relay: TerminalRelay) -> None:
        if message[0] == prompt_setup.BEGIN:
            self._begin(message[2])
            os.write(self._answer, message[1] + b"\n")
        elif message[0] == prompt_setup.OVER:
            self._with_keeper(lambda keeper: keeper.end_line(self._run, _status(message[2])))
            os.write(self._answer, message[1] + b"\n")
        elif message[0] == prompt_setup.PROMPT:
            self._end(_status(message[1]), relay, _OUTPUT_SECONDS)

    def _begin(self, line: bytes) -> None:
        session = self._session
        self._hidden = not line.strip()
        command = KEPT_OUT if self._hidden else os.fsdecode(line)
        try:
            if self._entry is not None:  # its prompt never came
                self._journal(CommandResult(exit_code=0, stdout="", stderr=""), 0)
            environment = session.environment()
            level = classify_command(session, os.fsdecode(line), cwd=session.directory(), environment=environment)
            self._entry = session.begin(command, level=level)
        except HoldfastError as error:
            _LOG.warning("a line is not journalled: %s", error.message)
        self._with_keeper(lambda keeper: keeper.begin_line(command, self._run))
        self._began = time.monotonic()

    def _with_keeper(self, do: Callable[[RemoteUndoService], object]) -> None:
        """Tell the keeper of the shell's run, if there is one, where lines begin and end: each is a step."""
        if self._run:
            from holdfast.supervisor.control.remote_service import visit

            try:
                keeper = visit(self._undo_log)
                if keeper is not None:
                    with keeper:
                        do(keeper)
            except HoldfastError as error:  # the keeper is ending, or the shell's run has ended
                _LOG.info("%s", error.message)

    def _end(self, exit_code: int, relay: TerminalRelay, seconds: float) -> None:
        duration = round((time.monotonic() - self._began) * 1000)
        kept = relay.output(seconds)
        if self._entry is None:
            return
        if kept is None or self._hidden:
            result = CommandResult(exit_code=exit_code, stdout="", stderr="")
        else:
            result = CommandResult(exit_code=exit_code, stdout=shown_text(kept), stderr="", truncated=kept.truncated)
        self._journal(result, duration)

    def _journal(self, result: CommandResult, duration_ms: int) -> None:
        session, entry, self._entry = self._session, self._entry, None
        assert entry is not None
        carried = shell_programs.read_state(self._said, self._undo_log)
        env, cwd = session.environment(), session.state.cwd
        if carried is not None:
            env, cwd = exported_variables(session, carried, {}), shell_programs.relative(carried.cwd, session.root)
        try:
            session.end(entry, result, cwd=cwd, env=env, duration_ms=duration_ms)
        except HoldfastError as error:
            _LOG.warning("how a line has ended is not journalled: %s", error.message)


def _status(told: bytes) -> int:
    """An exit code, as a hook has told it."""
    return int(told) if told.isdigit() else 0


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    code = process.wait()
    return code if code >= 0 else 128 - code


# -- sh, which has no hooks -------------------------------------------------------------------------------------------


def _loop(session: Session) -> int:
    """Read a line, run it, and so on."""
    code = 0
    while True:
        try:
            command = _read(session)
            if command is None:
                sys.stderr.write("\n")
                return code
            words = command.split()
            if words[:1] == ["exit"] and len(words) <= 2:
                return int(words[1]) % 256 if len(words) == 2 and words[1].isdigit() else code
            if words:
                result = execute(session, command, streams=Streams(0, _show)).result
                code = 0 if result is None else result.exit_code
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            code = 130
        except HoldfastError as error:
            _LOG.warning("%s", error.message)


def _read(session: Session) -> str | None:
    """A whole command from the terminal; None at its end. Meanwhile the session is saved when that is due."""
    lines: list[str] = []
    while True:
        sys.stderr.write("> " if lines else "$ ")
        sys.stderr.flush()
        door = session.door()
        while 0 not in (ready := select.select([0, *([] if door is None else [door])], [], [], session.due())[0]):
            if not ready:
                session.checkpoint(kind="auto")
            elif door is not None:
                door.serve()
        line = sys.stdin.readline()
        if not line:
            return None
        lines.append(line)
        command = "".join(lines).rstrip("\n")
        if not _wants_more(command):
            return command


def _wants_more(command: str) -> bool:
    """Whether a shell would go on reading before it runs ``command``."""
    if command.endswith("\\") and not command.endswith("\\\\"):
        return True
    checked = _checked(command)
    if any(said in checked.errors for said in (b"end of file", b"Unterminated", b"unexpected EOF")):
        return True
    # A lone parenthesis is an error everywhere except inside an unfinished here-document.
    return checked.code == 0 and "<<" in command and _checked(f"{command}\n)").code == 0


def _checked(command: str) -> Ended:
    words = [b"/bin/sh", b"-n", b"-c", b"--", os.fsencode(command)]
    return run(words, Limits(_CHECK_SECONDS), environment={"LC_ALL": "C"})


def _show(stream: StreamName, data: bytes) -> None:
    out = 1 if stream == "stdout" else 2
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]
