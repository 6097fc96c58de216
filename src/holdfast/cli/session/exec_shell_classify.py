"""``session exec``, ``shell`` and ``classify``: commands in a session."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast import NotFoundError, UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.console import current_directory
from holdfast.cli.phrases import say_held
from holdfast.cli.plain_parser import REST
from holdfast.cli.session.checkpoint_branch_checkout import BUSY
from holdfast.cli.session.selection import add_options, open_session
from holdfast.cli.terminal import is_terminal
from holdfast.engine.sessions.shell.held_notices import HeldNotices, report_held

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Mapping, Sequence

    from holdfast.cli.console import Console
    from holdfast.engine.sessions.session import Session
    from holdfast.engine.sessions.shell.execution import StreamName
    from holdfast.model.session_types import Level
    from holdfast.undo.service import StepInfo, TicketInfo


def command_of(words: Sequence[str], verb: str) -> str:
    """The command for a shell: one word is a command line, several are a command with its arguments."""
    import shlex

    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise UsageError("a command is needed", hint=f"holdfast session {verb} 'cd src; make'")
    return words[0] if len(words) == 1 else shlex.join(words)


# -- exec -------------------------------------------------------------------------------------------------------------


_OWN_OPTIONS = ("--timeout", "--input", "--generated", "--session", "--agent", "--json")


def _configure_exec(parser: argparse.ArgumentParser) -> None:
    from holdfast.cli.forget_gc_verify_stats import duration

    add_options(parser)
    parser.add_argument(
        "--timeout", metavar="T", type=duration, help="end the command after this time: 90, 10m; 0: never"
    )
    parser.add_argument("--input", metavar="TEXT", type=text, help="the user's request in words, for the history")
    parser.add_argument("--generated", action="store_true", help="a model made the command from --input")
    parser.add_argument("words", metavar="COMMAND", nargs=REST, help="a command line, or several words")


def _exec(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.sessions.shell.execution import Streams, execute
    from holdfast.model.answers import sessions as answers

    command = command_of(arguments.words, "exec")
    if arguments.generated and arguments.input is None:
        raise UsageError("--generated says what became of --input", hint="give the user's request with --input")
    with (
        open_session(console, arguments.session, arguments.agent, begins=True) as (_, session),
        stopped_by_signals() as stop,
        _held_reported(console, session),
    ):
        entry = execute(
            session,
            command,
            input=arguments.input,
            generated=arguments.generated,
            timeout=arguments.timeout,
            streams=Streams(None if is_terminal(sys.stdin) else 0, None if console.json else _pass_on),
            stop=stop,
        )
        assert entry.result is not None
        if console.json:
            console.give(
                answers.Executed,
                entry,
                session=session.id,
                directory_after=session.state.cwd,
                not_kept=session.too_long,
            )
        elif entry.result.timed_out and not console.quiet:
            sys.stderr.write(f"holdfast: the command was ended: it took too long ({entry.duration_ms / 1000:.1f} s)\n")
        if entry.result.exit_code and not entry.result.timed_out and (given := _options_of(arguments.words)):
            console.warn(
                f"{' and '.join(given)} after COMMAND is part of the command; put options of `session exec` before it"
            )
    return entry.result.exit_code


def _options_of(words: Sequence[str]) -> list[str]:
    """Words of a failed command that look like options of ``session exec``, each once: perhaps they were meant as such.
    Words after ``--`` are never meant.
    """
    if words[0] == "--":
        return []
    return list(dict.fromkeys(word.partition("=")[0] for word in words[1:] if word.partition("=")[0] in _OWN_OPTIONS))


@contextmanager
def _held_reported(console: Console, session: Session) -> Generator[None]:
    tree = session.tree()
    with report_held(session, b"" if tree is None else tree.undo_log, _held_notices(console, "\n")):
        yield


def _held_notices(console: Console, end: str) -> HeldNotices:
    """Report held operations and how to answer; each line ends with ``end``."""

    def denied(step: StepInfo) -> None:
        left = (
            f", except for edits by other processes: `holdfast steps show {step.id}`" if step.state == "partly" else ""
        )
        line = f"step {step.id} was not allowed, and was taken back{left}"
        if console.json:
            console.warn(line)
            return
        sys.stderr.write(f"{end}holdfast: {line}{end}")
        sys.stderr.flush()

    def held(ticket: TicketInfo) -> None:
        say_held(console, ticket, end=end, more="; Ctrl-C denies the command in the foreground")

    return HeldNotices(held, denied)


def _pass_on(stream: StreamName, data: bytes) -> None:
    out = 1 if stream == "stdout" else 2
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(out, rest) :]


@contextmanager
def stopped_by_signals() -> Generator[threading.Event]:
    """An event that signals to end set, so that the started commands end first."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def ask(_number: int, _frame: object) -> None:
        stop.set()

    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number in numbers:
            signal.signal(number, before[number] or signal.SIG_DFL)


# -- shell ------------------------------------------------------------------------------------------------------------


def _configure_shell(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def _shell(console: Console, arguments: argparse.Namespace) -> int:
    if console.json:
        raise UsageError("`session shell` is for people", hint="`holdfast session exec --json` is for programs")
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        raise UsageError("`session shell` needs a terminal", hint="`holdfast session exec` runs one command")
    from holdfast.engine.sessions.shell.interactive_shell import interact

    with open_session(console, arguments.session, arguments.agent) as (_, session):
        if not console.quiet:
            sys.stderr.write(f"holdfast: session {session.id}; `exit` leaves it, and keeps its state\n")
        # A shell with line editing puts the terminal into raw mode.
        return interact(session, _held_notices(console, "\n" if session.config.shell == "sh" else "\r\n"))


# -- classify ---------------------------------------------------------------------------------------------------------


def _configure_classify(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("words", metavar="COMMAND", nargs=REST, help="a command line, or several words")


def _classify(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.safety.classify import classify
    from holdfast.model.answers import sessions as answers

    command = command_of(arguments.words, "classify")
    root, cwd, env, programs = _surroundings(console, arguments)
    level = classify(command, cwd=cwd, root=root, env=env, programs=programs)
    if console.json:
        console.give(answers.Classified, command=command, level=level)
    else:
        console.answer([level])
    return 0


def _surroundings(
    console: Console, arguments: argparse.Namespace
) -> tuple[bytes, bytes, dict[str, str], Mapping[str, Level]]:
    """The root, the directory and the variables of a session, or without one of this process; and the settings for
    programs.
    """
    from holdfast.cli.session.selection import choose_session, open_sessions
    from holdfast.engine.sessions.state import journal

    with open_sessions(console, arguments.agent) as sessions:
        programs = sessions.programs
        try:
            info = sessions.info(choose_session(console, sessions, arguments.session))
        except NotFoundError:
            if arguments.session is not None:
                raise
            info = None
    if info is not None and info.root is not None and info.state is not None:
        env = journal.environment(info.state, os.environ)
        return info.root, journal.absolute(info.root, info.state.cwd), env, programs
    directory = os.path.realpath(os.fsencode(console.directory or current_directory()))
    try:
        with console.open(offer=False) as workspace:
            return workspace.path, directory, dict(os.environ), programs
    except NotFoundError:
        return directory, directory, dict(os.environ), programs


COMMANDS = {
    "session exec": Command(
        description="Run a command in a session's shell, in the directory and with the variables that the last "
        "command left. One word is a command line for the shell, several are a command and its arguments; options "
        "of `session exec` stand before them. The command reads standard input unless that is a terminal. The "
        "exit code is the command's (128 and the number of a signal).",
        configure=_configure_exec,
        run=_exec,
        examples=(
            ("holdfast session exec 'cd src; export CC=clang'", "a shell remembers this …"),
            ("holdfast session exec make -j2", "… for the next command"),
            ("holdfast session exec --timeout 10m --json 'npm test'", "for programs"),
        ),
        exits=(BUSY,),
    ),
    "session shell": Command(
        description="Work in a session at the terminal, with its shell, your settings of that shell, and job "
        "control (docs/reference/session-shell.md#at-the-terminal).",
        configure=_configure_shell,
        run=_shell,
        examples=(("holdfast session shell", "your newest one here"),),
        exits=(BUSY,),
    ),
    "session classify": Command(
        description="Say what a command may do in a session, without running it: safe, changes, unknown, risky or "
        "dangerous (docs/reference/classify.md).",
        configure=_configure_classify,
        run=_classify,
        examples=(("holdfast session classify 'rm -rf build'", "before you run it"),),
    ),
}
