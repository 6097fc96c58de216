"""``log`` and ``show``."""

from __future__ import annotations

import os
import sys
import time
from itertools import chain, islice

from holdfast import NotFoundError, UsageError
from holdfast.cli.command import Command, text, whole_number
from holdfast.cli.phrases import MOST_NAMED, changed, compact, counts_text, files, reasons, short
from holdfast.cli.terminal import fit, show_path, terminal_width, time_ago, when
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import CheckpointId
from holdfast.model.message_text import first_line, named_steps, plural, size, visible
from holdfast.model.timeline import TimelineItem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from holdfast import Checkpoint, Details, Log, Workspace
    from holdfast.cli.console import Console
    from holdfast.cli.terminal import Palette, Piece
    from holdfast.engine.history.queries import RowDetails
    from holdfast.model.content import Progress

_MOVES = ("restore", "undo", "redo")
_ALIGNED_BY = 50
"""The width of the column of names comes from this many newest rows, so that printing need not wait for all."""
_RUN_STATES = {"open": "not ended", "killed": "killed"}
_MOST_OF_LINE = 1000
"""Characters of a text that a row shows where nothing else cuts it."""


# -- log --------------------------------------------------------------------------------------------------------------


def moment(argument: str) -> str:
    """An argument that is a time, or an age: as it is, if it can be read."""
    from holdfast.model.config.values import parse_moment

    try:
        parse_moment(argument, time.time_ns() // 1000)
    except ValueError as error:
        import argparse

        raise argparse.ArgumentTypeError(str(error)) from None
    return argument


def _add_pager_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-pager", action="store_true", help="start no pager")


def _configure_log(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast log [options] [-- PATH…]"
    parser.add_argument("-n", "--limit", metavar="N", type=whole_number, help="only the newest N rows")
    add_filters(parser)
    parser.add_argument("--graph", action="store_true", help="draw which checkpoint came from which")
    parser.add_argument(
        "--all", action="store_true", help="all workspaces of the home, forks included, each with its path"
    )
    _add_pager_option(parser)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The options that select rows: see `filtered_rows`."""
    parser.add_argument(
        "--steps", action="store_true", help="also steps, edits by other processes, and operations that wait"
    )
    parser.add_argument(
        "--since", metavar="TIME", type=moment, help="from a time (2026-02-11T15:04) or an age (30min, 2h, 3d) on"
    )
    parser.add_argument("--until", metavar="TIME", type=moment, help="up to a time or an age")
    parser.add_argument("--author", metavar="NAME", type=text, default="", help="only those of this user or agent")
    parser.add_argument(
        "--grep",
        metavar="TEXT",
        type=text,
        default="",
        help="only those with this text in label, message, prompt or command, in any case",
    )


def _log(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.graph or arguments.all:
        return _log_checkpoints(console, arguments)
    with console.open() as workspace:
        if console.json:
            from holdfast.model.answers import workspace as answers

            rows = list(islice(filtered_rows(console, workspace, arguments), _limit(arguments)))
            result = workspace.log(_limit(arguments))
            console.give(answers.Log, _of_rows(result, rows) if _is_filtered(arguments) else result, rows=rows)
            return 0
        rows = islice(filtered_rows(console, workspace, arguments), _limit(arguments))
        first = next(rows, None)
        if first is not None:
            lines = _row_lines(console, workspace, chain([first], rows))
            console.answer_paged(lines, pager=not arguments.no_pager)
        elif _is_filtered(arguments):
            console.say("No row matches.")
        else:
            console.say("No checkpoint yet; `holdfast checkpoint` makes one.")
    return 0


def _limit(arguments: argparse.Namespace) -> int | None:
    return None if arguments.limit is None else min(arguments.limit, sys.maxsize)


def _is_filtered(arguments: argparse.Namespace) -> bool:
    return bool(arguments.since or arguments.until or arguments.author or arguments.grep or arguments.paths)


def filtered_rows(
    console: Console, workspace: Workspace, arguments: argparse.Namespace, progress: Progress | None = None
) -> Iterator[TimelineItem]:
    """The rows that the options of `add_filters` and ``arguments.paths`` ask for. Raises `NotFoundError` for paths that
    no row has to do with; ``progress`` as of `Workspace.log_rows`.
    """

    def rows(paths: list[bytes]) -> Iterator[TimelineItem]:
        found = workspace.log_rows(
            paths=paths,
            author=arguments.author,
            since=_microseconds(arguments.since),
            until=_microseconds(arguments.until),
            text=arguments.grep,
            steps=arguments.steps,
            progress=progress,
        )
        first = next(found, None)
        if first is None and paths:
            _require_known(workspace, paths)
        return iter(()) if first is None else chain([first], found)

    return console.with_paths(workspace, arguments.paths, rows)


def _require_known(workspace: Workspace, paths: list[bytes]) -> None:
    """Raise `NotFoundError` unless a row has to do with one of ``paths``, or one exists and was never saved."""
    holding = workspace.checkpoints_holding(paths)
    newest = next(holding, None)
    is_there = any(os.path.lexists(os.path.join(workspace.path, path)) for path in paths)
    if (newest is None and is_there) or next(workspace.log_rows(paths=paths, steps=True), None) is not None:
        return
    named, it = ", ".join(map(show_path, paths)), "it" if len(paths) == 1 else "one of them"
    if newest is None:
        message = f"no row of the log has to do with {named}, and no checkpoint of this workspace holds {it}"
        hint = "paths are relative to the current directory; only --steps shows changes to ignored files"
    else:
        ids = [short(one.id) for one in chain([newest], holding)]
        more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
        message = (
            f"no row of the log shows a change of {named}, but {plural(len(ids), 'checkpoint')} of this workspace "
            f"{'holds' if len(ids) == 1 else 'hold'} {it}: {', '.join(ids[:MOST_NAMED])}{more}"
        )
        hint = "`holdfast restore ID -- PATH` brings it back; `holdfast forget ID` drops a checkpoint"
    raise NotFoundError(message, hint=hint, code="no_such_path")


def _microseconds(given: str | None) -> int | None:
    if given is None:
        return None
    from holdfast.model.config.values import parse_moment

    return parse_moment(given, time.time_ns() // 1000)


def _of_rows(result: Log, rows: Iterable[TimelineItem]) -> Log:
    """The part of the log that belongs to the rows."""
    made = {item.made.id for item in rows if item.made is not None}
    numbers = {item.number for item in rows if item.kind not in ("step", "barrier", "held", "command")}
    return result._replace(
        checkpoints=[one for one in result.checkpoints if one.id in made],
        events=[event for event in result.events if event.seq in numbers],
    )


def _row_lines(console: Console, workspace: Workspace, rows: Iterable[TimelineItem]) -> Iterator[str]:
    width, told = terminal_width(sys.stdout), teller(console)
    try:
        head = workspace.resolve("@")
    except NotFoundError:
        head = None

    rows = iter(rows)
    newest = list(islice(rows, _ALIGNED_BY))
    names = names_width(newest)
    for item in chain(newest, rows):
        yield fit(console.paint, row_pieces(item, head, told, names), width)


def teller(console: Console) -> Callable[[int], str]:
    """Tells times as a column of the log has them."""
    now = time.time_ns() // 1000
    return when if console.verbose else lambda at: f"{time_ago(at, now):>10}"


def names_width(rows: Iterable[TimelineItem]) -> int:
    """How wide the column of names is for these rows."""
    return max((len(_name(item)) for item in rows), default=0)


def _name(item: TimelineItem) -> str:
    return item.made.kind if item.kind == "checkpoint" and item.made is not None else visible(item.name)


def row_pieces(item: TimelineItem, head: str | None, told: Callable[[int], str], names: int = 0) -> Iterator[Piece]:
    """One row of the log, piece by piece, each with its styles; ``names`` is the width of the column of names."""
    made = item.made
    is_head = made is not None and made.id == head
    dim = ("dim",) if item.kind in _MOVES else ()
    yield ("@ " if is_head else "  ", ())
    yield (f"{short(made.id) if made is not None else '':12}  ", ("yellow", "bold") if is_head else ("yellow",))
    yield (f"{told(item.at)}  ", dim)
    is_plain = item.kind == "checkpoint" and made is not None
    yield (f"{_name(item):<{names}}", () if is_plain else dim or ("cyan",))
    if made is not None and made.changes != (0, 0, 0):
        yield (f"  {compact(made.changes)}", dim)
    what = _what(item)
    if what:
        yield (f"  {what}", dim)
    if item.exit_code:
        yield (f"  exit {item.exit_code}", ("red",))
    if item.state not in ("", "done"):
        yield (f"  [{_RUN_STATES[item.state] if item.kind == 'run' else item.state}]", ())


def _what(item: TimelineItem) -> str:
    """The text of a row beside its name, escaped for terminals."""
    labels = ", ".join(map(visible, item.labels))
    said = visible(first_line(item.text, _MOST_OF_LINE))
    command = visible(first_line(item.command, _MOST_OF_LINE)) + ("…" if "\n" in item.command.strip() else "")
    author = f"({visible(item.author)})" if item.author else ""
    match item.kind:
        case "undo" | "redo" if item.steps:
            run = f" of run:{item.run}" if item.run else ""
            return f"of {named_steps(item.steps)}{run}{f': {command}' if command else ''}"
        case "undo" | "redo" | "restore":
            where = f"to {'' if item.checkpoint is None else short(item.checkpoint)}"
            if item.kind == "restore":
                where = said or where
            elif item.of:
                of = f"of {item.of if ':' in item.of else short(item.of)}"
                where = f"{of}, back {where}" if item.kind == "undo" else f"{of}, {where}" if ":" in item.of else of
            return f"{where}{f' {labels}' if labels else ''}"
        case "run":
            steps = f"  ({plural(len(item.steps), 'step')})" if item.steps else ""
            return f"{command}{steps}"
        case "step" | "command":
            return f"{command}{f'  ({said})' if said else ''}"
        case "barrier":
            return f"{author or '(others)'} {', '.join(map(show_path, item.paths))}".rstrip()
        case _:
            if item.made is not None and item.made.kind == "fork" and item.made.parent is not None:
                said = f"of {short(item.made.parent)}"
            forgotten = "forgotten" if item.made is None and item.kind in ("checkpoint", "promote", "fork") else ""
            parts = (labels, said or (command if item.kind == "checkpoint" else ""), forgotten)
            return " ".join(filter(None, ("  ".join(filter(None, parts)), author)))


def _log_checkpoints(console: Console, arguments: argparse.Namespace) -> int:
    """The checkpoints alone: as a graph, or of all workspaces."""
    if _is_filtered(arguments) or arguments.steps:
        raise UsageError(
            "--graph and --all list checkpoints: they go with no PATH, and not with --since, --until, --author, --grep "
            "or --steps"
        )
    result = _all_logged(console, _limit(arguments)) if arguments.all else _logged(console, _limit(arguments))
    if console.json:
        from holdfast.model.answers import workspace as answers

        console.give(answers.Log, result, rows=[])
    elif not result.checkpoints:
        console.say("No checkpoint yet; `holdfast checkpoint` makes one.")
    else:
        console.answer_paged(_checkpoint_lines(console, result, arguments), pager=not arguments.no_pager)
    return 0


def _checkpoint_lines(console: Console, result: Log, arguments: argparse.Namespace) -> Iterator[str]:
    width, told = terminal_width(sys.stdout), teller(console)
    known = {item.id: item for item in result.checkpoints}
    lines = (f"\0{name}" for name in known)
    if arguments.graph:
        from holdfast.cli.checkpoint_graph import draw

        lines = draw([(item.id, item.parent) for item in result.checkpoints], {name: f"\0{name}" for name in known})
    for line in lines:
        drawn, _, name = line.partition("\0")
        pieces: list[Piece] = [(drawn, ())]
        if name:
            made = known[CheckpointId(name)]
            pieces += row_pieces(_item_of(made), result.head, told, len("manual"))
            pieces += [(f"  [{show_path(result.workspaces[made.workspace])}]", ())] if arguments.all else []
        yield fit(console.paint, pieces, width)


def _item_of(made: Checkpoint) -> TimelineItem:
    author, message, command = made.provenance
    return TimelineItem(
        "checkpoint",
        0,
        made.created_at,
        author=author,
        labels=made.labels,
        text=message,
        command=command,
        checkpoint=made.id,
        made=made,
    )


def _logged(console: Console, limit: int | None) -> Log:
    with console.open() as workspace:
        return workspace.log(limit)


def _all_logged(console: Console, limit: int | None) -> Log:
    """The rows of all workspaces; inside one, also its state and its events."""
    from holdfast import Home

    with console.open_either() as opened:
        return opened.log(limit) if isinstance(opened, Home) else opened.log(limit, everything=True)


# -- show -------------------------------------------------------------------------------------------------------------


def _configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="ID",
        nargs="?",
        type=text,
        default="@",
        help="the checkpoint (default: @), or a row as `log` names it: prompt:41, run:ID, step:7, …",
    )
    _add_pager_option(parser)


def _show(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import workspace as answers

    with console.open() as workspace:
        try:
            result = workspace.show(arguments.name)
        except NotFoundError:
            if ":" not in arguments.name:
                raise
            return _show_row(console, workspace, arguments)
    if console.json:
        console.give(answers.CheckpointDetails, result.checkpoint, not_captured=result.not_captured, paths=result)
    else:
        console.answer_paged(details_lines(console.paint, result), pager=not arguments.no_pager)
    return 0


def details_lines(paint: Palette, result: Details) -> Iterator[str]:
    """The lines of `show` for a checkpoint."""
    item = result.checkpoint
    about = item.provenance
    facts = (
        ("checkpoint", paint(item.id, "yellow")),
        ("parent", item.parent or "none"),
        ("kind", item.kind),
        *(("label", visible(label)) for label in item.labels),
        ("made", when(item.created_at)),
        ("author", visible(about.author)),
        ("message", visible(about.message)),
        ("command", visible(about.command)),
        ("holds", f"{files(item.total_files)}, {size(item.total_bytes)}"),
        ("stored", f"{plural(item.new_blobs, 'new blob')}, {size(item.stored_bytes)}"),
        ("changes", counts_text(item.changes)),
    )
    yield from _facts(facts)
    yield from changed(paint, result.changes)
    if result.not_captured:
        yield "not captured:"
        yield from reasons(result.not_captured)


def _facts(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{name:<10}  {value}" for name, value in facts if value)


def _show_row(console: Console, workspace: Workspace, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import workspace as answers

    found = workspace.show_row(arguments.name)
    if found.item.kind == "step":
        from holdfast.cli.steps_barriers_safeguard import show_step

        show_step(console, workspace, found.item.number, pager=not arguments.no_pager)
    elif console.json:
        console.give(answers.LogRowDetails, found.item, changed=found)
    else:
        console.answer_paged(row_lines(console.paint, found), pager=not arguments.no_pager)
    return 0


def row_lines(paint: Palette, found: RowDetails) -> Iterator[str]:
    """The lines of `show` for another row."""
    item = found.item
    is_open = item.kind == "run" and bool(item.state)
    is_told = item.kind in ("merge", *_MOVES)
    facts = (
        (item.kind, paint(visible(item.name.partition(":")[2]), "cyan")),
        ("began", "" if found.began is None else when(found.began)),
        ("at" if found.began is None else "ended", when(item.at) if not is_open else ""),
        ("author", visible(item.author)),
        ("what", _what(item._replace(author="")) if is_told else ""),
        ("command", visible(item.command)),
        ("exit code", "" if item.exit_code is None else str(item.exit_code)),
        ("state", f"{_RUN_STATES[item.state]}: its end was not noted" if is_open else item.state),
        ("before", item.before or ""),
        ("after", item.checkpoint or ""),
        *(("label", visible(label)) for label in item.labels),
        ("run", item.run if item.kind != "run" else ""),
        ("steps", named_steps(item.steps) if item.steps else ""),
        ("way back", _way_back(item)),
    )
    yield from _facts(facts)
    if item.text and item.kind != "run" and not (is_told and "\n" not in item.text):
        yield ""
        yield from (f"  {visible(line)}".rstrip() for line in item.text.split("\n"))
    if found.steps:
        yield ""
        yield from (
            f"  step:{step.id:<6} {visible(' '.join(map(show_path, step.command)))}".rstrip() for step in found.steps
        )
    if found.changes or item.paths:
        yield ""
    yield from changed(paint, found.changes)
    yield from (f"  {show_path(path)}" for path in item.paths)


def _way_back(item: TimelineItem) -> str:
    """The command that returns to the state before the row, where it has one of its own."""
    if item.kind == "prompt":
        return f"holdfast undo --to {item.name}"
    return f"holdfast undo --run {item.run}" if item.kind == "run" else ""


COMMANDS = {
    "log": Command(
        description="Show what happened, newest first: checkpoints, prompts (prompt:N), runs (run:ID), commands "
        "of sessions, merges, promotions, restores, undos and redos. @ marks where you are. After an undo, newer "
        "rows are above it; `holdfast redo` returns to them. + counts added, ~ modified and - deleted files. At a "
        "terminal a pager shows the rows ($HOLDFAST_PAGER, else $PAGER, else less); -v gives "
        "times instead of ages.",
        configure=_configure_log,
        run=_log,
        examples=(
            ("holdfast log -n 10", "the newest ten rows"),
            ("holdfast log --steps -- src", "every change there, steps too"),
            ("holdfast log --since 2h --author claude", "what an agent did in the last two hours"),
            ("holdfast log --graph --all", "how all workspaces and forks descend from each other"),
        ),
        notes=(
            (
                "PATH selects rows that changed it, anything below or a directory above. A forgotten checkpoint's "
                "changes count as its children's; undos and restores from it may be missing. A PATH without rows is an "
                "error (exit 3) that names checkpoints with it, unless it exists unsaved."
            ),
            "--graph and --all list checkpoints only. --all needs no workspace.",
            (
                "A run is one row, at its end; without one `not ended`, or `killed` if it no longer runs. "
                "A session's command and its checkpoint are one row."
            ),
            (
                "The pager's command line is split as by a shell, without one; less gets LESS=FRX by default. "
                "Empty or `cat`: no pager."
            ),
        ),
        paths_after_dashes=True,
    ),
    "show": Command(
        description="Show a checkpoint (who made it, why and when, changed and uncaptured files), or "
        "another row of the log.",
        configure=_configure_show,
        run=_show,
        examples=(
            ("holdfast show", "the checkpoint that the tree stands on"),
            ("holdfast show @-2", "the second before it"),
            ("holdfast show before-upgrade", "by label"),
            ("holdfast show prompt:41", "the whole prompt of an agent"),
            ("holdfast show run:3f2a9c1b04de", "a run: its steps, and the files that it changed"),
        ),
        notes=("A label that reads like the name of a row comes first.",),
    ),
}
