"""The entry point: find the command, run it, and turn every way to fail into a message and an exit code."""

from __future__ import annotations

import codecs
import gc
import os
import sys
from io import TextIOWrapper

from holdfast import HoldfastError, UsageError
from holdfast.cli.global_options import CommandLine, split_options
from holdfast.model.errors import unexpected
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.processes.forked_process import allow_forks

if TYPE_CHECKING:
    from typing import NoReturn

_OBJECTS_BETWEEN_LOOKS = 20_000
"""For the collector of cycles; Python begins with 700."""

_HINTS = {
    "storage": "-v shows where this happened",
    "bug": "please report it, with what the same command prints with -v",
}
"""Hints for errors that were not raised on purpose."""

_ESCAPED = "holdfast.escaped"

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return the exit code. Never raises for a failure."""
    arguments = sys.argv[1:] if argv is None else argv
    _open_closed_streams()
    _escape_what_cannot_be_encoded()
    code = _guarded(arguments, *_wants(arguments))
    try:
        sys.stdout.flush()
    except OSError:  # has been reported, if it can be; the interpreter would try again at its end, and complain
        _silence_stdout()
    return code


def run() -> NoReturn:
    """The installed command: `main`, then the end of the process.

    `main` closes and flushes everything, so the process exits at once; freeing all objects would cost 7 ms more.
    Garbage collection is rarer than by default: few objects of a command are in cycles.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)
    allow_forks()
    try:
        code = main()
    except KeyboardInterrupt:  # once more, while the first one was reported
        code = INTERRUPTED
    try:
        sys.stderr.flush()
    except OSError:  # no process listens
        pass
    os._exit(code)


def _guarded(arguments: list[str], as_json: bool, verbose: bool) -> int:
    try:
        code = _run(split_options(arguments), as_json)
        sys.stdout.flush()
        return code
    except HoldfastError as failure:
        return _report(failure, as_json)
    except KeyboardInterrupt:
        _write_error("holdfast: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last resort: a person must not be shown a traceback
        return _report_unexpected(error, as_json, verbose)


def _run(line: CommandLine, as_json: bool) -> int:
    if line.command == "--version":
        from holdfast import __version__

        sys.stdout.write(f'{{"version": "{__version__}"}}\n' if as_json else f"holdfast {__version__}\n")
        return 0
    from holdfast.cli import command_table

    if line.command is None:
        if as_json:
            raise UsageError("no command was given", hint="`holdfast --help` lists the commands")
        sys.stderr.write(command_table.overview())
        return UsageError.exit_code
    if line.command == "--help":
        sys.stdout.write(command_table.overview())
        return 0
    name = command_table.ALIASES.get(line.command, line.command)
    if name not in command_table.names():
        raise _unknown(line.command)
    from holdfast.cli.command import parse
    from holdfast.cli.console import Console

    command = command_table.load(name)
    parsed = parse(name, command, line.arguments)
    if parsed is None:
        return 0
    console = Console.of(parsed)
    console.prepare_log()
    try:
        return command.run(console, parsed)
    finally:
        console.close()


def _unknown(word: str) -> UsageError:
    from difflib import get_close_matches

    from holdfast.cli import command_table
    from holdfast.model.message_text import visible

    near = get_close_matches(word, [*command_table.names(), *command_table.ALIASES], n=1)
    hint = f"did you mean `holdfast {near[0]}`?" if near else "`holdfast --help` lists the commands"
    return UsageError(f"there is no command '{visible(word)}'", hint=hint)


def _wants(argv: list[str]) -> tuple[bool, bool]:
    """Whether the line has ``--json`` and ``-v``, as far as a line that cannot be parsed shows it."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    verbose = any(word == "--verbose" or (word[:1] == "-" and word[1:2] != "-" and "v" in word) for word in words)
    return "--json" in words, verbose


def _report(failure: HoldfastError, as_json: bool) -> int:
    if as_json:
        import json

        from holdfast.model.answers import workspace as answers
        from holdfast.model.json_encoder import encode

        _write_error(json.dumps(encode(answers.Failed, error=failure)))
        return failure.exit_code
    from holdfast.model.message_text import visible

    _write_error(f"holdfast: {visible(failure.message)}")
    if failure.hint:
        _write_error(f"  hint: {visible(failure.hint)}")
    return failure.exit_code


def _report_unexpected(error: Exception, as_json: bool, verbose: bool) -> int:
    if verbose:
        import traceback

        from holdfast.model.message_text import visible

        for line in "".join(traceback.format_exception(error)).splitlines():
            _write_error(visible(line))
    failure = unexpected(error)
    failure.hint = _HINTS.get(failure.code, failure.hint)
    return _report(failure, as_json)


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        # No process listens; the exit code still tells.
        return


def _open_closed_streams() -> None:
    """Open those of the three standard streams that the caller has closed, to nowhere.

    Otherwise the next file to be opened would take their place, and be written to in their stead.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while os.open(os.devnull, os.O_RDWR) < 2:
            pass
        sys.stdin = sys.stdin or os.fdopen(0)
        sys.stdout = sys.stdout or os.fdopen(1, "w")
        sys.stderr = sys.stderr or os.fdopen(2, "w")


def _escape_what_cannot_be_encoded() -> None:
    """Let output hold any text in every locale: characters that cannot be encoded are escaped as `visible` escapes
    unsafe ones.
    """
    codecs.register_error(_ESCAPED, _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ESCAPED)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from holdfast.model.message_text import escaped

    return "".join(map(escaped, error.object[error.start : error.end])), error.end


def _silence_stdout() -> None:
    """Point standard output nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
