"""``run``: a command whose every change can be undone."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import BELL, held_lines, say_held
from holdfast.cli.plain_parser import REST
from holdfast.model import fast_msgspec
from holdfast.model.config.keys import KEYS
from holdfast.model.message_text import named_steps, plural, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast.cli.console import Console
    from holdfast.engine.running.run import RunResult
    from holdfast.model.config.settings import Isolation
    from holdfast.undo.service import TicketInfo

_SHOWN = 10
_LEVELS, _MODES, _TMPS = (KEYS[f"isolation.{key}"].choices for key in ("level", "network", "tmp"))

_LIMITS = (
    ("memory", "SIZE", "the most memory that the command may take"),
    ("processes", "NUMBER", "the most processes and threads at once"),
    ("disk", "SIZE", "the most bytes in each temporary directory and each written file"),
)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--one-step", action="store_true", help="the whole run is one step")
    parser.add_argument(
        "--guard",
        action="store_true",
        help="ask before a step has lost 50 files or 10 MB, and before changes that cannot be undone",
    )
    parser.add_argument(
        "--outside",
        metavar="POLICY",
        choices=KEYS["undo.outside"].choices,
        help="edits by other processes: barrier stops undo there, warn only lists them",
    )
    parser.add_argument(
        "--bridge",
        metavar="HOW",
        choices=("fuse",),
        help="fuse: record by a mount, for programs that cannot be supervised (docs/internals/bridge.md)",
    )
    group = parser.add_argument_group("isolation (docs/reference/isolation.md; the configuration has the defaults)")
    group.add_argument(
        "--isolation",
        metavar="LEVEL",
        choices=_LEVELS,
        help="none, namespace (isolated from the machine) or vm (docs/reference/isolation.md)",
    )
    group.add_argument("--network", metavar="MODE", choices=_MODES, help="open, disabled, or allow")
    group.add_argument(
        "--allow", metavar="ADDRESS", type=text, action="append", help="ADDRESS[/BITS][:PORT]; means --network allow"
    )
    group.add_argument(
        "--dns", metavar="ADDRESS", type=text, action="append", help="a name server; means --network allow"
    )
    group.add_argument("--hide", metavar="PATH", action="append", help="a path to hide, besides the configured ones")
    group.add_argument("--show", metavar="PATH", action="append", help="credentials to show, such as ~/.ssh")
    group.add_argument(
        "--writable", metavar="PATH", action="append", help="a writable path beside the workspace; not undone"
    )
    group.add_argument("--tmp", metavar="WHICH", choices=_TMPS, help="own or shared: whose /tmp and /var/tmp")
    group.add_argument("--env", metavar="NAME", type=text, action="append", help="a variable to let through as well")
    for name, metavar, help_ in _LIMITS:
        group.add_argument(f"--{name}", metavar=metavar, type=text, help=help_)
    parser.add_argument("words", metavar="COMMAND", nargs=REST, help="the command to run, with its arguments")


def _run(console: Console, arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise UsageError("run needs a command", hint="holdfast run -- COMMAND")
    fast_msgspec.load()
    with console.open(strict=True, create=True) as workspace:
        if workspace.new:
            from holdfast.cli.init_checkpoint import warn_if_huge

            warn_if_huge(console, workspace, ask_first=True)
        isolation = _isolation(workspace.isolation, arguments)
        if isolation.level == "vm" and arguments.bridge is None:  # both are refused: no image for that
            from holdfast.cli.image import provide_default

            provide_default(console, workspace.vm_image)
        result = workspace.run(
            words,
            one_step=arguments.one_step,
            guard=arguments.guard,
            isolation=isolation,
            ask=lambda ticket: _ask(console, ticket),
            bridge=arguments.bridge is not None,
            outside=arguments.outside,
        )
    # Standard output belongs to the command.
    if console.json:
        import json

        from holdfast.model.answers import steps as answers
        from holdfast.model.json_encoder import encode

        sys.stderr.write(json.dumps(encode(answers.Ran, result)) + "\n")
    elif not console.quiet:
        sys.stderr.writelines(f"holdfast: {line}\n" for line in _summary(result))
    sys.stderr.flush()
    return result.exit_code


def _isolation(configured: Isolation, arguments: argparse.Namespace) -> Isolation:
    """The configured isolation, changed and extended by the options."""
    said = {
        "level": arguments.isolation,
        "network": arguments.network,
        "allow": arguments.allow,
        "dns": arguments.dns,
        "hidden": arguments.hide,
        "visible": arguments.show,
        "writable": arguments.writable,
        "tmp": arguments.tmp,
        "environment": arguments.env,
    }
    for name, *_ in _LIMITS:
        value = getattr(arguments, name)
        said[name] = None if value is None else _limit(name, value)
    given = {name: value for name, value in said.items() if value is not None}
    for name in ("hidden", "visible", "writable"):
        if name in given:
            given[name] = [os.path.abspath(os.path.expanduser(path)) for path in given[name]]
    from holdfast.engine.running.isolation import adjust

    return adjust(configured, given)


def _limit(name: str, value: str) -> int:
    from holdfast.model.config.values import parse_value

    try:
        return parse_value(f"isolation.{name}", int(value) if value.isdecimal() else value)
    except ValueError as error:
        raise UsageError(
            f"--{name}: {error}", hint=f"docs/reference/configuration.md lists the values of isolation.{name}"
        ) from error


def _summary(result: RunResult) -> Iterator[str]:
    from holdfast.engine.running.child_start import refused_call

    yield from (_unanswered(ticket) for ticket in result.unanswered[:_SHOWN])
    if why := refused_call(result.exit_code):
        yield f"{why}: run it without `run`, after `holdfast checkpoint`"
    if not result.steps:
        yield "the run changed nothing"
        return
    if result.forgotten:
        yield (
            f"the run had {plural(len(result.steps) + result.forgotten, 'step')}; the undo log was full "
            f"(undo.max_log_bytes, undo.max_steps) or discarded, and forgot {result.forgotten:,} of them"
        )
    standing, left = result.standing, result.left
    whole = [step.id for step in result.steps if step not in standing and step not in left]
    back = f"{_were(whole)} taken back" if whole else ""
    if standing:
        changed = sum(step.paths for step in standing)
        also = f"; {back}" if back else ""
        yield f"{plural(len(standing), 'step')}, {plural(changed, 'path')} changed{also}"
    elif back and not left:
        yield f"nothing is left of the run's changes: {back}"
    elif back:
        yield back
    if left:
        yield (f"{_were([step.id for step in left])} taken back, except for these edits by other processes:")
        yield from (f"  `holdfast steps show {step.id}` lists them" for step in left[-_SHOWN:])
    for step in result.steps[-_SHOWN:]:
        if step.unprotected:
            yield f"step {step.id} cannot be undone whole: {visible(step.unprotected)}"
    if standing:
        force = " --force" if result.forgotten else ""
        yield f"`holdfast undo` takes the newest step back, `holdfast undo --run {result.run}{force}` all of them"


def _unanswered(ticket: TicketInfo) -> str:
    return (
        f"safeguard `{ticket.danger}`: {visible(ticket.message)}. No answer came within "
        f"{ticket.unanswered:.0f} s, so Holdfast took the step back. To allow it, run the command "
        "again and answer from another terminal: `holdfast safeguard list`"
    )


def _were(steps: Sequence[int]) -> str:
    return f"{named_steps(steps)} {'was' if len(steps) == 1 else 'were'}"


def _ask(console: Console, ticket: TicketInfo) -> bool | None:
    """Ask a person at the terminal. None without an answer, or if a program has the keyboard: then tell how to answer
    from another terminal.

    To allow it, the person types a number that only the question shows. So earlier input, and reports that a program
    makes the terminal send (its colours, its title, its cursor), are no answer.
    """
    import secrets
    import termios

    seconds = ticket.denied_at / 1e9 - time.time()
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC) if console.interactive else -1
    except OSError:
        terminal = -1
    if terminal < 0:
        say_held(console, ticket)
        return None
    try:
        about, how = held_lines(ticket)
        text = f"{BELL}\r\nholdfast: {about}\r\n"
        reads_keys = not termios.tcgetattr(terminal)[3] & termios.ICANON
        if reads_keys or os.tcgetpgrp(terminal) != os.getpgrp():
            # An answer would be mistaken for input to what runs, and the other way round; or reading it would stop us.
            os.write(terminal, f"{text}{how}\r\n".encode())
            return None
        number = str(1000 + secrets.randbelow(9000))
        termios.tcflush(terminal, termios.TCIFLUSH)
        os.write(terminal, f"{text}  type {number} to allow it, anything else to deny it: ".encode())
        answered = select.poll()
        answered.register(terminal, select.POLLIN)
        if not answered.poll(max(0.0, seconds) * 1000):
            os.write(terminal, b"\r\n")
            return None
        return os.read(terminal, 100).strip() == number.encode()
    finally:
        os.close(terminal)


COMMANDS = {
    "run": Command(
        description="Run a command and record every change that it and its children make in the workspace, "
        "ignored files and .git included (docs/reference/run.md). `holdfast undo` takes the changes back step by "
        "step. Changes outside the workspace are not recorded; --isolation prevents them. Holdfast saves the "
        "state before and after. The exit code is the command's (126 or 127: not started; 128 and the number of a "
        "signal).",
        configure=_configure,
        run=_run,
        examples=(
            ("holdfast run -- claude", "a coding agent: each of its commands is a step"),
            ("holdfast run --one-step -- make clean all", "one step for the whole command"),
            ("holdfast run --guard -- sh cleanup.sh", "ask before it deletes many files"),
            (
                "holdfast run --isolation namespace --network disabled -- make",
                "isolated from the rest of the machine",
            ),
            ("holdfast run --isolation vm -- bash", "in a virtual machine"),
            ("holdfast undo --run", "take back the last run"),
        ),
        notes=(
            "If the kernel cannot supervise or isolate, nothing runs (exit 1, `unsupported`).",
            "HOLDFAST_RUN in the command's environment is the id of the run.",
            "--bridge fuse needs /dev/fuse, and root or user namespaces, and excludes isolation.",
            "With --isolation vm only --network, --allow, --dns and --env count.",
            "--allow, --dns, --hide, --show, --writable and --env may be repeated.",
        ),
        exits=((4, "refused: the state could not be saved first, or another process keeps the undo log"),),
    ),
}
