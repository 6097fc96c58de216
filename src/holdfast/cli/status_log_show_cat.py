"""``status``, ``log``, ``show`` and ``cat``."""

from __future__ import annotations

from contextlib import suppress

from holdfast import NotFoundError, UsageError
from holdfast.cli.command import HELD, Command, text, whole_number
from holdfast.cli.phrases import changed, checkpoint_title, compact, counts_text, files, reasons, short
from holdfast.cli.terminal import show_path, when
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import named_steps, plural, size, visible
from holdfast.model.paths import parse_display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from holdfast import Checkpoint, Details, HistoryEvent, Log, Status, Workspace
    from holdfast.cli.console import Console


def _status(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import workspace as answers

    with console.open(scan=True) as workspace:
        result = workspace.status()
        ignored = workspace.ignored() if arguments.ignored else None
        if not (console.json or arguments.ignored) and result.not_captured:
            from holdfast.engine.history.status import without_reported

            result = result._replace(not_captured=without_reported(workspace.folder, result.not_captured))
    if console.json:
        if ignored is None:
            console.give(answers.Status, result)
        else:
            console.give(answers.StatusWithIgnored, result, ignored=ignored)
        return 0
    console.answer(_status_lines(console, result))
    if ignored is not None:
        console.answer(["Left out by the ignore rules:", *(f"  {show_path(path)}" for path in ignored)])
    return 0


def _configure_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ignored", action="store_true", help="also what the ignore rules leave out")


def _status_lines(console: Console, result: Status) -> Iterator[str]:
    watched = " (a watcher is running)" if result.watching else ""
    yield f"Workspace {show_path(result.workspace)}{watched}"
    last = result.last_checkpoint
    if last is None:
        yield f"No checkpoint yet; {files(len(result.changes))} to save with `holdfast checkpoint`."
    elif result.clean:
        yield f"Nothing has changed since {checkpoint_title(last)} of {when(last.created_at)}."
    else:
        yield f"{plural(len(result.changes), 'change')} since {checkpoint_title(last)} of {when(last.created_at)}:"
        yield from changed(console.paint, result.changes)
    if result.watch_failure is not None:
        yield console.paint(f"The watcher fails, and goes on trying: {visible(result.watch_failure)}", "red")
    if result.not_captured:
        yield "Not captured:"
        yield from reasons(result.not_captured)
    if result.unfinished_restore is not None:
        return  # the warning of it says how to go on
    if result.next_save_at is not None:
        yield f"Next: the watcher saves that at {when(result.next_save_at)}; `holdfast checkpoint` does at once."
    elif last is not None and not result.clean:
        yield "Next: `holdfast diff` shows the changes, `holdfast checkpoint` saves them."


def _configure_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", metavar="N", type=whole_number, help="only the newest N checkpoints")
    parser.add_argument("--graph", action="store_true", help="draw which checkpoint came from which")
    parser.add_argument(
        "--all", action="store_true", help="of all workspaces in the home, forks included; each with its path"
    )


def _log(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import workspace as answers

    result = _all_logged(console, arguments.limit) if arguments.all else _logged(console, arguments.limit)
    if console.json:
        console.give(answers.Log, result)
    elif not result.checkpoints:
        console.say("No checkpoint yet; `holdfast checkpoint` makes one.")
    elif arguments.graph:
        from holdfast.cli.checkpoint_graph import draw

        rows: dict[str, str] = {
            item.id: _log_line(console, result, item, placed=arguments.all) for item in result.checkpoints
        }
        console.answer(draw([(item.id, item.parent) for item in result.checkpoints], rows))
    else:
        console.answer(_log_lines(console, result, placed=arguments.all))
    return 0


def _logged(console: Console, limit: int | None) -> Log:
    with console.open() as workspace:
        return workspace.log(limit)


def _all_logged(console: Console, limit: int | None) -> Log:
    """Of all workspaces; from inside one, with where it stands and what happened to its tree."""
    from holdfast import Home

    with console.open_either() as opened:
        return opened.log(limit) if isinstance(opened, Home) else opened.log(limit, everything=True)


def _log_lines(console: Console, result: Log, *, placed: bool) -> Iterator[str]:
    """Checkpoints, newest first, with the restores, undos and redos that lie between them."""
    moves = [event for event in result.events if event.operation in ("restore", "undo", "redo")]
    moves.sort(key=lambda event: event.seq)
    from holdfast.model.command_results import beginnings

    made = beginnings(result.events)
    for item in result.checkpoints:
        while moves and item.id in made and moves[-1].seq >= made[item.id]:
            yield console.paint(_move_line(moves.pop()), "dim")
        yield _log_line(console, result, item, placed=placed)


def _log_line(console: Console, result: Log, item: Checkpoint, *, placed: bool) -> str:
    """One row of the log; ``placed``: with the path of the workspace that the checkpoint belongs to."""
    paint = console.paint
    mark = "@" if item.id == result.head else " "
    said = "  ".join(filter(None, (visible(item.label), visible(item.provenance.message))))
    who = f" ({visible(item.provenance.author)})" if item.provenance.author else ""
    identity = paint(short(item.id), "yellow", "bold") if mark == "@" else paint(short(item.id), "yellow")
    line = f"{mark} {identity}  {when(item.created_at)}  {item.kind:<6}  {compact(item.changes):<14}  {said}{who}"
    where = f"  [{show_path(result.workspaces[item.workspace])}]" if placed else ""
    return f"{line.rstrip()}{where}"


def _move_line(event: HistoryEvent) -> str:
    by = f" by {named_steps(event.steps)}" if event.steps else ""
    return f"  {'':12}  {when(event.at)}  {event.operation}{by} to {short(event.checkpoint)}"


def _configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="ID", nargs="?", type=text, default="@", help="the checkpoint (default: @)")


def _show(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.model.answers import workspace as answers

    with console.open() as workspace:
        result = workspace.show(arguments.name)
    if console.json:
        console.give(answers.CheckpointDetails, result.checkpoint, not_captured=result.not_captured, paths=result)
    else:
        console.answer(_details_lines(console, result))
    return 0


def _details_lines(console: Console, result: Details) -> Iterator[str]:
    item = result.checkpoint
    about = item.provenance
    facts = (
        ("checkpoint", console.paint(item.id, "yellow")),
        ("parent", item.parent or "none"),
        ("kind", item.kind),
        ("label", visible(item.label)),
        ("made", when(item.created_at)),
        ("author", visible(about.author)),
        ("message", visible(about.message)),
        ("command", visible(about.command)),
        ("holds", f"{files(item.total_files)}, {size(item.total_bytes)}"),
        ("stored", f"{plural(item.new_blobs, 'new blob')}, {size(item.stored_bytes)}"),
        ("changes", counts_text(item.changes)),
    )
    for name, value in facts:
        if value:
            yield f"{name:<10}  {value}"
    yield from changed(console.paint, result.changes)
    if result.not_captured:
        yield "not captured:"
        yield from reasons(result.not_captured)


def _configure_cat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="ID:PATH", help="the checkpoint and the path, as in @:src/main.py")


def _cat(console: Console, arguments: argparse.Namespace) -> int:
    with console.open_either() as opened:
        from holdfast import Workspace

        if isinstance(opened, Workspace):
            workspace = opened
            name, path = _name_and_path(workspace, arguments.what)
            content = console.with_paths(workspace, [path], lambda paths: workspace.cat(name, paths[0]))
        else:  # by its id any checkpoint is known, and an id has no colon
            name, _, path = arguments.what.partition(":")
            content = opened.cat(name, parse_display(path))
        if console.json:
            from base64 import b64encode

            from holdfast.model.answers import commands

            whole = b"".join(content)
            console.give(commands.FileContent, path=path, size=len(whole), base64=b64encode(whole).decode())
        else:
            console.write(content)
    return 0


def _name_and_path(workspace: Workspace, what: str) -> tuple[str, str]:
    """Both sides of ``ID:PATH``. Either may hold colons: the first that follows the name of a checkpoint counts."""
    cuts = [at for at, character in enumerate(what) if character == ":" and 0 < at < len(what) - 1]
    if not cuts:
        raise UsageError(f"{what!r} is not ID:PATH", hint="for example `holdfast cat @:src/main.py`")
    for at in cuts[:-1]:
        with suppress(NotFoundError):
            workspace.resolve(what[:at])
            return what[:at], what[at + 1 :]
    return what[: cuts[-1]], what[cuts[-1] + 1 :]


COMMANDS = {
    "status": Command(
        description="What has changed since the last checkpoint, and what is not captured, with the reasons. "
        "Letters: A added, M modified, D deleted, T the type changed. Changes nothing.",
        configure=_configure_status,
        run=_status,
        examples=(
            ("holdfast status", "the current workspace"),
            ("holdfast status --ignored", "with what no checkpoint will hold"),
            ("holdfast status --json", "for programs"),
        ),
        exits=((4, f"refused: {HELD}"),),
    ),
    "log": Command(
        description="The checkpoints, newest first, and the restores between them. @ marks the state that the "
        "tree stands on; what is above it, after an undo, `holdfast redo` or its id leads to. + counts added, "
        "~ modified and - deleted files.",
        configure=_configure_log,
        run=_log,
        examples=(
            ("holdfast log -n 10", "the newest ten"),
            ("holdfast log --graph --all", "how all workspaces and forks descend from each other"),
        ),
    ),
    "show": Command(
        description="All about one checkpoint: who made it, why and when, what it changed, and what it did not "
        "capture.",
        configure=_configure_show,
        run=_show,
        examples=(
            ("holdfast show", "the one that the tree stands on"),
            ("holdfast show @-2", "the second before it"),
            ("holdfast show before-upgrade", "by label"),
        ),
    ),
    "cat": Command(
        description="Print the content of a file as it was in a checkpoint; of a symbolic link, its target. "
        "PATH is relative to the current directory.",
        configure=_configure_cat,
        run=_cat,
        examples=(
            ("holdfast cat @:README.md", "from the state that the tree stands on"),
            ("holdfast cat 3f2a9c:src/a.py > old.py", "from another one, into a file"),
        ),
        exits=((5, "what is stored of the file is damaged"),),
    ),
}
