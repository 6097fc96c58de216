"""``completion``: the script that teaches a shell the commands and their options."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command
from holdfast.cli.command_table import load_verb
from holdfast.cli.console import current_directory
from holdfast.cli.global_options import add_global_options
from holdfast.cli.phrases import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from holdfast.cli.console import Console
    from holdfast.model.timeline import TimelineKind

SHELLS = ("bash", "zsh", "fish")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=", ".join(SHELLS))
    parser.add_argument(
        "--list",
        metavar="KIND",
        dest="kind",
        choices=tuple(_LISTS),
        help=f"print the words of one kind: {', '.join(_LISTS)}",
    )


def _checkpoints(console: Console) -> Iterable[str]:
    with console.open(offer=False) as workspace:
        found = workspace.log(_MAX_OFFERED).checkpoints
    return [name for one in found for name in (*one.labels, short(one.id))]


def _forks(console: Console) -> Iterable[str]:
    """The directories of the existing forks of this workspace."""
    with console.open(offer=False) as workspace:
        found = workspace.log(everything=True)
    own = {one.id for one in found.checkpoints if found.workspaces[one.workspace] == workspace.path}
    begun = [one for one in found.checkpoints if one.kind == "fork" and one.parent in own]
    paths = sorted({found.workspaces[one.workspace] for one in begun} - {workspace.path})
    here = os.fsencode(current_directory())
    return [os.fsdecode(os.path.relpath(path, here)) for path in paths if os.path.isdir(path)]


def _steps(console: Console) -> Iterable[str]:
    with console.open(offer=False) as workspace:
        return [str(one.id) for one in reversed(workspace.steps())][:_MAX_OFFERED]


def _rows_of(kind: TimelineKind) -> Callable[[Console], Iterable[str]]:
    """Lists log rows of a ``kind``, by the part of their names after the colon: Bash splits words there."""

    def rows(console: Console) -> Iterable[str]:
        with console.open(offer=False) as workspace:
            found = workspace.timeline(kinds=[kind], limit=_MAX_OFFERED).items
        return list(dict.fromkeys(one.name.partition(":")[2] for one in found))

    return rows


def _held(console: Console) -> Iterable[str]:
    with console.open(offer=False) as workspace:
        return [str(one.id) for one in workspace.held()]


def _sessions(console: Console) -> Iterable[str]:
    from holdfast.cli.session.selection import open_sessions

    with open_sessions(console) as sessions:
        return [one.id for one in sessions.list()]


def _states(console: Console) -> Iterable[str]:
    """The states of the session that a command without ``--session`` is about."""
    from holdfast.cli.session.list_info_history_branches import branch_name
    from holdfast.cli.session.selection import choose_session, open_sessions

    with open_sessions(console) as sessions:
        return [branch_name(one) for one in sessions.branches(choose_session(console, sessions, None))]


def _snapshots(console: Console) -> Iterable[str]:
    with console.open(offer=False) as workspace:
        return [name for one in workspace.snapshots.list() for name in (one.label, one.id) if name]


def _images(console: Console) -> Iterable[str]:
    from holdfast.cli.image import open_images

    return [one.name for one in open_images(console).list()]


def _promotions(console: Console) -> Iterable[str]:
    from holdfast.engine.promotion.manager import Promotions

    return [one.row.id for one in Promotions(home=console.home).list()]


_LISTS: dict[str, Callable[[Console], Iterable[str]]] = {
    "checkpoints": _checkpoints,
    "forks": _forks,
    "steps": _steps,
    "runs": _rows_of("run"),
    "prompts": _rows_of("prompt"),
    "held": _held,
    "sessions": _sessions,
    "states": _states,
    "snapshots": _snapshots,
    "images": _images,
    "promotions": _promotions,
}

OFFERED = {
    "show name": "checkpoints",
    "diff names": "checkpoints",
    "restore name": "checkpoints",
    "fork name": "checkpoints",
    "mount name": "checkpoints",
    "export names": "checkpoints",
    "forget names": "checkpoints",
    "merge fork": "forks",
    "promote fork": "forks",
    "promote --resume": "promotions",
    "undo --run": "runs",
    "undo --step": "steps",
    "undo --to": "prompts",
    "redo --step": "steps",
    "steps id": "steps",
    "safeguard id": "held",
    "session checkout name": "states",
    "session fork --from": "states",
    "session bisect --good": "states",
    "session bisect --bad": "states",
    "session merge other": "sessions",
    "session pick other": "sessions",
    "session replay other": "sessions",
    "session delete id": "sessions",
    "session stop id": "sessions",
    "--session": "sessions",
    "snapshot show name": "snapshots",
    "snapshot mount name": "snapshots",
    "snapshot unmount name": "snapshots",
    "snapshot discard name": "snapshots",
    "snapshot run --from": "snapshots",
    "image build name": "images",
    "image remove name": "images",
    "image import name": "images",
}
"""The completion of an argument of a command, or of an option in every command that has it."""

_MAX_OFFERED = 200
_PLAIN = re.compile(r"[A-Za-z0-9_@%+,./:-]+")
"""Words without special characters for any shell: Bash expands completions."""


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
                    _complete_names(inner, f"{name} {verb}")
    return whole


def _complete_names(parser: argparse.ArgumentParser, command: str) -> None:
    """Mark the arguments that name files, directories, and what Holdfast can list, so that the shell completes them."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        name = action.option_strings[-1] if action.option_strings else action.dest
        kind = OFFERED.get(f"{command} {name}") or OFFERED.get(name)
        if kind is not None:
            action.complete = _offered(kind)  # type: ignore[attr-defined]
        elif action.metavar in ("FILE", "PATH"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _offered(kind: str) -> dict[str, Any]:
    """The arguments for shtab of an argument whose words `_LISTS` gives."""
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
        notes=("It completes commands, options, files, and these words unless they need quotes.",),
    ),
}
