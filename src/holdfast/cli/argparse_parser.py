"""The parser of a command, as argparse builds it: for help, and for the command lines that are not plain."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import UsageError
from holdfast.cli.global_options import LINE, add_global_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.command import Command


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print and exit, so that every failure leaves by the same way."""

    def format_help(self) -> str:
        """See `argparse.ArgumentParser.format_help`; it wraps the description alone, and no text below the options."""
        from textwrap import fill

        self.description = fill(self.description or "", 100)
        return super().format_help()

    paths_after_dashes = False
    """As the `Command` has it."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        if self.paths_after_dashes and message.startswith("unrecognized"):
            raise UsageError(message, hint=f"paths go behind --, as in `{self.prog} -- src`")
        raise UsageError(message, hint=f"`{self.prog} --help` shows how it is used")


def read(name: str, command: Command, words: Sequence[str]) -> argparse.Namespace | None:
    """Parse ``words`` for the command; None if they asked for help, which was printed."""
    try:
        parser = build_parser(name, command)
        return parser.parse_intermixed_args(words) if command.intermixed else parser.parse_args(words)
    except SystemExit:
        return None


def build_parser(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of one command, the global options among its own."""
    parser = Parser(
        prog=f"holdfast {name}",
        description=command.description,
        epilog=_epilog(command),
        formatter_class=_formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.paths_after_dashes = command.paths_after_dashes
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    command.configure(parser)
    add_global_options(parser, argparse.SUPPRESS)  # the epilog has one line for all of them
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    """As wide as the terminal, within limits. By default argparse imports shutil for the width, each time."""
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        columns = 100
    return argparse.RawDescriptionHelpFormatter(prog, width=max(60, min(columns, 110)) - 2)


_BULLET: dict[str, Any] = {
    "initial_indent": "  - ",
    "subsequent_indent": "    ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def _epilog(command: Command) -> str:
    from textwrap import fill

    width = max(len(line) for line, _ in command.examples)
    lines = [LINE, "", "examples:"]
    lines += [f"  {line:<{width}}   {meaning}" for line, meaning in command.examples]
    if command.notes:
        lines += ["", "notes:", *(fill(note, 100, **_BULLET) for note in command.notes)]
    if command.exits:
        lines += ["", "exit codes of its own:"]
        lines += [f"  {code}  {meaning}" for code, meaning in sorted(command.exits)]
    if command.verbs is not None:
        width = max(map(len, command.verbs))
        lines = [
            "commands:",
            *(f"  {verb:<{width}}   {about}" for verb, (_, about) in command.verbs.items()),
            "",
            *lines,
        ]
    return "\n".join(lines)
