"""The options of every command, allowed before its name and after it."""

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


LINE = "every command also takes: --home DIR, -w DIR, --json, -q, -v, --log-level LEVEL (`holdfast --help`)"
"""Their text in a command's help."""


class CommandLine(NamedTuple):
    """A command line, taken apart as far as that goes without knowing the command."""

    command: str | None
    """A command's name, or ``--help`` or ``--version`` if one of them comes first; None for an empty line."""
    arguments: list[str]
    """Arguments for the command's own parser: global options before its name, and everything after it."""


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


def add_global_options(parser: argparse.ArgumentParser, about: str | None = None) -> None:
    """The options that every command takes, before or after its name; ``about`` is the help of each."""
    for names in (("--home",), ("-w", "--workspace")):
        parser.add_argument(*names, metavar="DIR", help=about)
    for names in (("--json",), ("-q", "--quiet"), ("-v", "--verbose")):
        parser.add_argument(*names, action="store_true", help=about)
    parser.add_argument("--log-level", metavar="LEVEL", choices=LEVELS, help=about)
