"""The options of every command, which may stand before its name as well as behind it."""

from __future__ import annotations

from holdfast import UsageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import LEVELS

if TYPE_CHECKING:
    import argparse

_FLAGS = ("--json", "--quiet", "--verbose")
_WITH_VALUE = {"--home": "a directory", "--workspace": "a directory", "-w": "a directory", "--log-level": "a level"}
_BEGIN_WITH_VALUE = ("--home=", "--workspace=", "-w", "--log-level=")
_QUIET_OR_VERBOSE = frozenset("-qv")


class CommandLine(NamedTuple):
    """A command line, taken apart as far as that goes without knowing the command."""

    command: str | None
    """A command's name, or ``--help`` or ``--version`` where one of those comes first; None: nothing was asked for."""
    arguments: list[str]
    """What is left for the command's own parser: global options in front of its name, and all that is behind it."""


def split_options(argv: list[str]) -> CommandLine:
    """Find the command among ``argv``; raises `UsageError` on an option in front of it that is no global one."""
    leading: list[str] = []
    at = 0
    while at < len(argv):
        word = argv[at]
        if word in ("-h", "--help", "--version"):
            return CommandLine("--help" if word == "-h" else word, leading)
        if not word.startswith("-"):
            return CommandLine(word, leading + argv[at + 1 :])
        if word in _WITH_VALUE:
            if at + 1 == len(argv):
                raise UsageError(f"{word} needs {_WITH_VALUE[word]}")
            leading += argv[at : at + 2]
            at += 2
        elif word in _FLAGS or word.startswith(_BEGIN_WITH_VALUE) or _QUIET_OR_VERBOSE.issuperset(word):
            leading.append(word)
            at += 1
        else:
            raise UsageError(f"unknown option {word!r}", hint="`holdfast --help` lists the options and commands")
    return CommandLine(None, leading)


def add_global_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command takes, before or after its name."""
    group = parser.add_argument_group("options of every command")
    group.add_argument("--home", metavar="DIR", help="where everything is kept (default: $HOLDFAST_HOME, else XDG)")
    group.add_argument(
        "-w", "--workspace", metavar="DIR", help="a directory in the workspace (default: the current directory)"
    )
    group.add_argument(
        "--json", action="store_true", help="print one JSON object; see docs/reference/json.md for its fields"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print only results and errors")
    group.add_argument("-v", "--verbose", action="store_true", help="say more; show tracebacks of unexpected errors")
    group.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LEVELS,
        help=f"what to log: {', '.join(LEVELS)}; see docs/reference/logs.md",
    )
