"""``status`` and ``cat``."""

from __future__ import annotations

from contextlib import suppress

from holdfast import NotFoundError, UsageError
from holdfast.cli.command import Command
from holdfast.cli.phrases import changed, checkpoint_title, files, reasons
from holdfast.cli.terminal import show_path, when
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import plural, visible
from holdfast.model.paths import parse_display

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from holdfast import Status, Workspace
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
    parser.add_argument("--ignored", action="store_true", help="also list files that the ignore rules leave out")


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
        yield console.paint(f"The watcher fails, and tries again: {visible(result.watch_failure)}", "red")
    if result.not_captured:
        yield "Not captured:"
        yield from reasons(result.not_captured)
    if result.unfinished_restore is not None:
        return  # the warning of it says how to go on
    if result.next_save_at is not None:
        at, by = when(result.next_save_at), when(result.next_save_by or result.next_save_at)
        then = at if at == by else f"{at} if nothing more changes, at {by} at the latest"
        yield f"Next: the watcher saves that at {then}; `holdfast checkpoint` does at once."
    elif last is not None and not result.clean:
        yield "Next: `holdfast diff` shows the changes, `holdfast checkpoint` saves them."


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
        description="Show the changes since the last checkpoint (A added, M modified, D deleted, T the type "
        "changed), and the files that are not captured, with the reasons. The command changes nothing.",
        configure=_configure_status,
        run=_status,
        examples=(
            ("holdfast status", "the current workspace"),
            ("holdfast status --ignored", "with the files that no checkpoint will hold"),
            ("holdfast status --json", "for programs"),
        ),
    ),
    "cat": Command(
        description="Print a file as a checkpoint holds it; of a symbolic link, its target. PATH is relative to "
        "the current directory.",
        configure=_configure_cat,
        run=_cat,
        examples=(
            ("holdfast cat @:README.md", "from the state that the tree stands on"),
            ("holdfast cat 3f2a9c:src/a.py > old.py", "from another one, into a file"),
        ),
        notes=(
            "Outside any workspace, ID is any checkpoint of the home, and PATH is relative to its workspace's root.",
        ),
    ),
}
