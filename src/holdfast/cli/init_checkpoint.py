"""``init`` and ``checkpoint``."""

from __future__ import annotations

import os

from holdfast import RefusedError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import checkpoint_title, counts_text, files, quoted_labels, short
from holdfast.cli.terminal import ask, show_path
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import plural, size, visible

if TYPE_CHECKING:
    import argparse

    from holdfast import Workspace
    from holdfast.cli.console import Console


def _configure_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", nargs="?", help="the directory (default: -w, else the current one)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="allow unusual directories: $HOME, system directories, mounts over a workspace, empty mount points",
    )
    parser.add_argument(
        "--write-ignore",
        action="store_true",
        help="write the default exclusions to .checkpointignore",
    )


def _init(console: Console, arguments: argparse.Namespace) -> int:
    import holdfast

    where = arguments.directory or console.directory or "."
    with holdfast.init(where, home=console.home, force=arguments.force) as workspace:
        wrote = arguments.write_ignore and workspace.write_ignore()
        if console.json:
            from holdfast.model.answers import commands

            console.give(
                commands.Initialised,
                workspace=workspace.id,
                path=workspace.path,
                created=workspace.new,
                ignore_written=wrote,
            )
        elif workspace.new:
            console.say(
                f"Remembering {show_path(workspace.path)}. `holdfast checkpoint` saves its state.",
                "  Files that the ignore rules leave out are not saved; `holdfast status --ignored` lists them.",
            )
        else:
            console.say(f"{show_path(workspace.path)} is remembered already.")
    if arguments.write_ignore:
        told = (
            "The default exclusions are in .checkpointignore now." if wrote else ".checkpointignore is there already."
        )
        console.say(told)
    return 0


def os_text(path: bytes) -> str:
    """A path as JSON has it."""
    from holdfast.model.paths import display

    return display(path)


def _configure_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--label",
        metavar="LABEL",
        type=text,
        default="",
        help="a name, beside earlier ones; plain `forget` and the quota keep labelled checkpoints",
    )
    parser.add_argument(
        "--message", metavar="TEXT", type=text, default=None, help="why you made it (default: $HOLDFAST_MESSAGE)"
    )
    parser.add_argument(
        "--author",
        metavar="NAME",
        type=text,
        default=None,
        help="who made it (default: identity.author)",
    )
    parser.add_argument(
        "--command",
        metavar="LINE",
        type=text,
        default=None,
        help="the command that it precedes or follows (default: $HOLDFAST_COMMAND)",
    )
    parser.add_argument(
        "--full-hash",
        action="store_true",
        help="read also files whose size and times are unchanged; store again what the store has lost",
    )
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask at a terminal before a huge first checkpoint"
    )


def _checkpoint(console: Console, arguments: argparse.Namespace) -> int:
    with console.open(strict=True, scan=True, create=True) as workspace:
        warn_if_huge(console, workspace, ask_first=not arguments.yes)
        with console.progress() as progress:
            result = workspace.checkpoint(
                arguments.label,
                message=_given(arguments.message, "HOLDFAST_MESSAGE"),
                author=arguments.author,
                command=_given(arguments.command, "HOLDFAST_COMMAND"),
                full_hash=arguments.full_hash,
                progress=progress,
            )
    if console.json:
        from holdfast.model.answers import workspace as answers

        console.give(answers.MadeCheckpoint, result)
        return 0
    made = result.checkpoint
    if result.created:
        console.say(
            f"Saved {console.paint(checkpoint_title(made), 'bold')}: {counts_text(made.changes)}.",
            f"  {files(made.total_files)}, {size(made.stored_bytes)} stored, {result.elapsed_ms:.0f} ms",
        )
    elif not arguments.label:
        console.say(f"Nothing has changed since {checkpoint_title(made)}.")
    else:
        what = "label" if len(made.labels) == 1 else "labels"
        console.say(
            f"Nothing has changed since {short(made.id)}, which now has the {what} {quoted_labels(made, ' and ')}."
        )
    if not result.created and (message := _given(arguments.message, "HOLDFAST_MESSAGE")):
        if message == made.provenance.message:
            console.say(f'  That checkpoint has the message "{visible(message)}".')
        else:
            console.say(f'  The message "{visible(message)}" was NOT stored: that checkpoint keeps its message.')
    for name in ("author", "command") if not result.created else ():
        given: str | None = getattr(arguments, name)
        if given and given != getattr(made.provenance, name):
            console.say(f'  The {name} "{visible(given)}" was NOT stored: that checkpoint keeps its {name}.')
    if result.not_captured:
        number = plural(len(result.not_captured), "path is", "paths are")
        where = f"show {short(made.id)}" if result.created else "status"
        console.say(f"  {number} not captured; `holdfast {where}` lists them with the reasons")
    return 0


def _given(value: str | None, variable: str) -> str:
    return os.environ.get(variable, "") if value is None else value


def warn_if_huge(console: Console, workspace: Workspace, *, ask_first: bool) -> None:
    """Before the first checkpoint of a huge tree: report its largest parts; at a terminal, ask before going on."""
    estimate = workspace.estimate()
    if estimate is None:
        return
    amount = f"{files(estimate.files)}, {size(estimate.bytes)}"
    console.warn(f"{show_path(workspace.path)} holds {'' if estimate.complete else 'more than '}{amount}")
    for path, number, total in estimate.biggest:
        console.warn(f"  of them {files(number)}, {size(total)} in {os_text(path)}")
    console.warn("list files that should not be saved in .checkpointignore, in the syntax of .gitignore")
    if ask_first and console.interactive and ask("Save all of it? [y/n] ", "yn") == "n":
        raise RefusedError("nothing was saved", hint="--yes saves it without asking", code="declined")


COMMANDS = {
    "init": Command(
        description="Start to remember a directory. Holdfast writes nothing into it. Repeating the command is "
        "harmless.",
        configure=_configure_init,
        run=_init,
        examples=(
            ("holdfast init", "the current directory"),
            ("holdfast init ~/work/shop --write-ignore", "another one, with the default exclusions as a file"),
        ),
        notes=(
            (
                "`checkpoint`, `watch`, `run`, `session start`, `import`, `stdio` and `mcp` also begin to "
                "remember a directory, with a warning, unless it is unusual."
            ),
            "Workspaces inside of it are saved here too; a warning names them.",
        ),
        exits=(
            (
                4,
                (
                    "refused: an unusual directory, such as $HOME, a mount over a workspace, or its empty mount "
                    "point; --force allows it"
                ),
            ),
        ),
    ),
    "checkpoint": Command(
        description="Save the present state of the workspace, without the files that .gitignore and "
        ".checkpointignore exclude.",
        configure=_configure_checkpoint,
        run=_checkpoint,
        examples=(
            ("holdfast checkpoint", "save now"),
            ("holdfast checkpoint -m before-upgrade", "save under a name that can be used later"),
            ("holdfast save --author claude --message 'tests pass'", "record who and why"),
        ),
        notes=(
            (
                "If nothing has changed, no checkpoint is made: the one that holds this state gets the label, and is "
                "kept as one saved by hand. It gets message and author only if it has none, else the output says so."
            ),
        ),
        exits=((4, "refused: another process holds the workspace, or the store is at its quota"),),
    ),
}
