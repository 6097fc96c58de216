"""``completion``: the script that teaches a shell the commands and their options."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command
from holdfast.cli.command_table import load_verb
from holdfast.cli.global_options import add_global_options
from holdfast.cli.phrases import short

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from holdfast.cli.console import Console

SHELLS = ("bash", "zsh", "fish")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=", ".join(SHELLS))
    parser.add_argument(
        "--list",
        metavar="KIND",
        dest="kind",
        choices=tuple(_LISTS),
        help="the kind of words to list: checkpoints, sessions",
    )


def _checkpoints(console: Console) -> Iterable[str]:
    with console.open(offer=False) as workspace:
        found = workspace.log(_MAX_OFFERED).checkpoints
    return [name for one in found for name in (*one.labels, short(one.id))]


def _sessions(console: Console) -> Iterable[str]:
    from holdfast.cli.session.selection import open_sessions

    with open_sessions(console) as sessions:
        return [one.id for one in sessions.list()]


_LISTS = {"checkpoints": _checkpoints, "sessions": _sessions}
_MAX_OFFERED = 200
_PLAIN = re.compile(r"[A-Za-z0-9_@%+,./:-]+")
"""What no shell takes for more than a word: Bash expands what it is offered."""


def _completion(console: Console, arguments: argparse.Namespace) -> int:
    if (arguments.shell is None) == (arguments.kind is None):
        raise UsageError("a shell is needed", hint=f"one of {', '.join(SHELLS)}")
    if arguments.kind is not None:
        console.answer(name for name in _LISTS[arguments.kind](console) if _PLAIN.fullmatch(name))
        return 0
    import shtab

    script = shtab.complete(_whole_parser(), shell=arguments.shell)
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.Completion, shell=arguments.shell, script=script)
    else:
        sys.stdout.write(script if script.endswith("\n") else script + "\n")
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """All commands in one parser, as shtab wants to read it; it never parses anything."""
    from holdfast.cli import command_table

    whole = argparse.ArgumentParser(prog="holdfast")
    add_global_options(whole)
    subparsers = whole.add_subparsers()
    for group in command_table.COMMANDS.values():
        for name, (_, summary) in group.items():
            aliases = [alias for alias, meant in command_table.ALIASES.items() if meant == name]
            one = subparsers.add_parser(name, help=summary, aliases=aliases)
            command = command_table.load(name)
            command.configure(one)
            add_global_options(one)
            _complete_names(one, name)
            if command.verbs is not None:
                verbs = one.add_subparsers()
                for verb, (_, about) in command.verbs.items():
                    inner = verbs.add_parser(verb, help=about)
                    load_verb(name, command, verb).configure(inner)
                    add_global_options(inner)
                    _complete_names(inner, name)
    return whole


def _complete_names(parser: argparse.ArgumentParser, command: str) -> None:
    """Mark the arguments that name files, directories, checkpoints and sessions, so that the shell completes them."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if action.metavar in ("FILE", "PATH"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar == "ID" and (action.dest == "session" or (command == "session" and action.required)):
            action.complete = _offered("sessions")  # type: ignore[attr-defined]
        elif action.metavar == "ID" and action.dest in ("name", "names") and not action.option_strings:
            action.complete = _offered("checkpoints")  # type: ignore[attr-defined]


def _offered(kind: str) -> dict[str, Any]:
    """What shtab is told for an argument whose words `_LISTS` gives."""
    function, command = f"_holdfast_{kind}", f"holdfast completion --list {kind} 2>/dev/null"
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({command})",
        "preamble": {
            "bash": f'{function}() {{ compgen -W "$({command})" -- "$1"; }}',
            "zsh": f"{function}() {{ compadd -- $({command}) }}",
        },
    }


COMMANDS = {
    "completion": Command(
        description="Print a completion script for your shell.",
        configure=_configure,
        run=_completion,
        examples=(
            ('eval "$(holdfast completion bash)"', "in ~/.bashrc"),
            ("holdfast completion zsh > ~/.zfunc/_holdfast", "in a directory of $fpath"),
            ("holdfast completion fish > ~/.config/fish/completions/holdfast.fish", "for fish"),
        ),
    ),
}
