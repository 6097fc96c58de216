"""``completion``: the script that teaches a shell the commands and their options."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.cli.command_table import load_verb
from holdfast.cli.global_options import add_global_options

if TYPE_CHECKING:
    from holdfast.cli.console import Console

SHELLS = ("bash", "zsh", "fish")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _completion(console: Console, arguments: argparse.Namespace) -> int:
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
            _complete_files(one)
            if command.verbs is not None:
                verbs = one.add_subparsers()
                for verb, (_, about) in command.verbs.items():
                    inner = verbs.add_parser(verb, help=about)
                    load_verb(name, command, verb).configure(inner)
                    add_global_options(inner)
                    _complete_files(inner)
    return whole


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments that name files and directories, so that the shell completes them."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if action.metavar in ("FILE", "PATH"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


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
