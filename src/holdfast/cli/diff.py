"""``diff``."""

from __future__ import annotations

import sys

from holdfast import NotFoundError, UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import files
from holdfast.cli.terminal import STATUS_COLOURS, is_terminal, show_path
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import plural

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast import Diff, FileStat
    from holdfast.cli.console import Console

_BAR = 40
"""The longest row of + and - signs in ``--stat``."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast diff [A [B]] [--stat | --name-status [-z]] [--no-renames] [--binary] [-- PATH ...]"
    parser.add_argument(
        "names", metavar="A B", nargs="*", type=text, help="two states, or A..B (default: @ and the tree)"
    )
    parser.add_argument("--no-renames", action="store_true", help="show a renamed file as deleted and added")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="only how many lines each file gains and loses")
    form.add_argument(
        "--name-status",
        action="store_true",
        help="only the paths: A added, M modified, D deleted, R renamed, T the type changed",
    )
    form.add_argument("--binary", action="store_true", help="include binary content")
    parser.add_argument(
        "-z", dest="nul", action="store_true", help="with --name-status: raw names, each field ended by NUL"
    )


def _diff(console: Console, arguments: argparse.Namespace) -> int:
    base, target = _states(arguments.names)
    if arguments.nul and not arguments.name_status:
        raise UsageError("-z stands beside --name-status")
    if arguments.nul and console.json:
        raise UsageError("-z cannot stand beside --json")
    with console.open(scan=target is None) as workspace:

        def compare(paths: list[bytes]) -> Diff:
            return workspace.diff(base, target, paths=paths, renames=not arguments.no_renames)

        try:
            diff = console.with_paths(workspace, arguments.paths, compare)
        except NotFoundError as error:
            raise _explained(error, arguments.names) from None
        if console.json:
            from holdfast.model.answers.workspace import Diff

            console.give(Diff, workspace.diff_json(diff))
        elif arguments.nul:
            console.write(
                b"".join(b"%b\0" % field for field in (letter.encode(), *paths)) for letter, paths in _rows(diff)
            )
        elif arguments.name_status:
            console.answer(_name_status(console, diff))
        elif arguments.stat:
            console.answer(_stat(console, workspace.diff_stat(diff)))
        else:
            show_patch(console, workspace.patch(diff, binary=arguments.binary))
    return 0


def show_patch(console: Console, pieces: Iterable[bytes]) -> None:
    """Print a patch: coloured and `visible` on a terminal, byte for byte elsewhere."""
    if is_terminal(sys.stdout):
        from holdfast.cli.colored_patch import for_terminal

        console.answer(for_terminal(console.paint, pieces))
    else:
        console.write(pieces)


def _states(names: Sequence[str]) -> tuple[str | None, str | None]:
    """The base and the target in ``names``; None: the default."""
    from holdfast.engine.history.revisions import split_range

    if len(names) > 2:
        raise UsageError(
            "diff takes at most two checkpoints", hint="paths go behind --, as in `holdfast diff @ -- src`"
        )
    if len(names) == 1 and (both := split_range(names[0])) is not None:
        return both
    return (names[0] if names else None), (names[1] if len(names) == 2 else None)


def _explained(error: NotFoundError, names: Sequence[str]) -> NotFoundError:
    """The same error; if a file is called as the checkpoint was, with the hint that paths go after ``--``."""
    from os.path import lexists

    if any(lexists(name) for name in names):
        return NotFoundError(
            error.message, hint="a path goes behind --, as in `holdfast diff -- PATH`", code=error.code
        )
    return error


def _name_status(console: Console, diff: Diff) -> Iterator[str]:
    """``M<tab>path``, or ``R<similarity><tab>from<tab>to``, sorted by path."""
    for letter, paths in _rows(diff):
        yield console.paint("\t".join((letter, *map(show_path, paths))), STATUS_COLOURS[letter[0]])


def _rows(diff: Diff) -> Iterator[tuple[str, Sequence[bytes]]]:
    """The letter of each change, of a rename with its similarity, and its path, or both; sorted by path."""
    rows = [(change.path, change.status, (change.path,)) for change in diff.changes]
    rows += [(item.path, f"R{item.similarity:03}", (item.before_path, item.path)) for item in diff.renamed]
    for _, letter, paths in sorted(rows):
        yield letter, paths


def _stat(console: Console, stats: Sequence[FileStat]) -> Iterator[str]:
    paint = console.paint
    rows = [(_stat_name(item), item) for item in stats]
    width = max((len(name) for name, _ in rows), default=0)
    most = max((item.added + item.removed for item in stats), default=0)
    for name, item in rows:
        if item.binary:
            yield f" {name:<{width}} | binary, {item.before_size} -> {item.after_size} bytes"
            continue
        scale = min(1.0, _BAR / most) if most else 0.0
        plus, minus = (-int(-number * scale // 1) for number in (item.added, item.removed))
        signs = paint("+" * plus, "green") + paint("-" * minus, "red")
        yield f" {name:<{width}} | {item.added + item.removed:>5} {signs}".rstrip()
    added, removed = sum(item.added for item in stats), sum(item.removed for item in stats)
    yield f" {files(len(stats))} changed, {plural(added, 'line')} added, {plural(removed, 'line')} removed"


def _stat_name(item: FileStat) -> str:
    return show_path(item.path) if item.status != "R" else f"{show_path(item.before_path)} => {show_path(item.path)}"


COMMANDS = {
    "diff": Command(
        description="Show the differences from A to B, from A to the tree, or from the last checkpoint to the "
        "tree. In a pipe the output is a patch that `git apply` accepts.",
        configure=_configure,
        run=_diff,
        examples=(
            ("holdfast diff", "the changes since the last checkpoint"),
            ("holdfast diff @-3 --stat", "since the third before it, in numbers"),
            ("holdfast diff first..@ -- src", "between two checkpoints, below src"),
            ("holdfast diff @ @- --binary | git apply", "take a checkpoint's change back, with Git"),
        ),
        notes=("An empty file counts as renamed only within its directory.",),
        exits=((4, "refused: a file changed while the diff was made"),),
        paths_after_dashes=True,
    ),
}
