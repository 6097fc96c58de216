"""The definition of a command, and the parsing of its arguments."""

from __future__ import annotations

from holdfast import UsageError
from holdfast.cli.global_options import add_global_options, split_options
from holdfast.cli.plain_parser import Reader
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from holdfast.cli.console import Console


class Command(NamedTuple):
    """One command: its texts for ``--help``, its arguments, and its function."""

    description: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Console, argparse.Namespace], int]
    """Returns the exit code."""
    examples: Sequence[tuple[str, str]]
    """Command lines, each with its effect."""
    exits: Sequence[tuple[int, str]] = ()
    """Exit codes with another meaning than in `holdfast --help`."""
    notes: Sequence[str] = ()
    """Guarantees, limits and exceptions, a few sentences each; ``--help`` and docs/reference/commands.md show them."""
    paths_after_dashes: bool = False
    """True if words after ``--`` are always paths (``arguments.paths``)."""
    intermixed: bool = False
    """True if options may stand among its arguments as well."""
    verbs: Mapping[str, tuple[str, str]] | None = None
    """For a family such as ``session start``: verb → (module of this package, summary). The module's ``COMMANDS`` has
    each command under both words; that one is run.
    """


def parse(name: str, command: Command, words: list[str]) -> argparse.Namespace | None:
    """Parse what follows a command's name; None if that asked for help, which has then been printed.

    Of a family, ``verb`` of the result is the command that was chosen.
    """
    if command.verbs is not None:
        return _parse_verb(name, command, command.verbs, words)
    behind: list[str] = []
    if command.paths_after_dashes and "--" in words:
        cut = words.index("--")
        words, behind = words[:cut], words[cut + 1 :]
    parsed = read_plain(command, words)
    if parsed is None:
        from holdfast.cli import argparse_parser

        parsed = argparse_parser.read(name, command, words)
    if parsed is not None and command.paths_after_dashes:
        parsed.paths = behind
    return parsed


def read_plain(command: Command, words: list[str]) -> argparse.Namespace | None:
    """Parse ``words`` without argparse; None where the result could differ: see `Reader.read`."""
    if command.intermixed:
        return None
    reader: Any = Reader()  # has the methods of `argparse.ArgumentParser` that are used
    command.configure(reader)
    add_global_options(reader)
    return reader.read(words)


def _parse_verb(
    name: str, family: Command, verbs: Mapping[str, tuple[str, str]], words: list[str]
) -> argparse.Namespace | None:
    line = split_options(words)
    if line.command == "--help":
        from holdfast.cli.argparse_parser import build_parser

        build_parser(name, family).print_help()
        return None
    if line.command is None or line.command not in verbs:
        from difflib import get_close_matches

        near = get_close_matches(line.command or "", verbs, n=1)
        raise UsageError(
            f"`holdfast {name}` needs one of: {', '.join(verbs)}"
            if line.command is None
            # `main` escapes unprintable characters.
            else f"there is no command '{name} {line.command}'",
            hint=f"did you mean `holdfast {name} {near[0]}`?" if near else f"`holdfast {name} --help` lists them",
        )
    from holdfast.cli.command_table import load_verb

    command = load_verb(name, family, line.command)
    parsed = parse(f"{name} {line.command}", command, line.arguments)
    if parsed is not None:
        parsed.verb = command
    return parsed


def text(argument: str) -> str:
    """An argument that is kept as text: it has to be UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        import argparse

        raise argparse.ArgumentTypeError("it is not valid UTF-8") from None
    return argument


def whole_number(argument: str) -> int:
    """An argument that is a whole number from 1."""
    try:
        number = int(argument)
    except ValueError:
        number = 0
    if number < 1:
        import argparse

        raise argparse.ArgumentTypeError(f"{argument!r} is not a whole number from 1")
    return number
