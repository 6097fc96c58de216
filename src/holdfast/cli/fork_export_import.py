"""``fork``, ``export`` and ``import``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import UsageError
from holdfast.cli.command import Command, text
from holdfast.cli.phrases import files, short
from holdfast.cli.terminal import show_path
from holdfast.model.message_text import plural, visible

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console


def _configure_fork(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast fork [ID] DIR [--mount]\n       holdfast fork --materialise DIR"
    parser.add_argument("name", metavar="ID", nargs="?", type=text, help="the checkpoint (default: the present state)")
    parser.add_argument("directory", metavar="DIR", help="a new or an empty directory")
    parser.add_argument(
        "--mount",
        action="store_true",
        help="mount it on DIR instead, with its changes in the home; needs root (docs/reference/mount.md#forks)",
    )
    parser.add_argument("--materialise", action="store_true", help="turn DIR, a fork by mount, into a plain directory")


def _fork(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.materialise:
        return _materialise(console, arguments)
    name: str | None = arguments.name
    if arguments.mount:
        from holdfast.engine.forks.mount_server_client import MountServer

        # Before anything is opened: see there.
        with MountServer() as server, console.open() as workspace:
            result = workspace.fork(name, arguments.directory, mount=True, server=server)
    else:
        with console.open() as workspace, console.progress() as progress:
            result = workspace.fork(name, arguments.directory, progress=progress)
    from holdfast.model.answers import workspace as answers

    if console.json:
        console.give(answers.Forked, result)
    elif result.mounted:
        console.say(
            f"Forked {short(result.source)}, mounted on {show_path(result.path)}.",
            "It is a workspace of its own, with its own history. `holdfast unmount` and `holdfast mount`, each with "
            "that directory, unmount it and mount it again.",
        )
    else:
        console.say(
            f"Forked {short(result.source)} into {show_path(result.path)}: {files(result.written)} written.",
            "It is a workspace of its own, with its own history. It has neither .git nor ignored files.",
        )
    return 0


def _materialise(console: Console, arguments: argparse.Namespace) -> int:
    if arguments.mount or arguments.name is not None:
        raise UsageError(
            "--materialise takes a fork by mount, and nothing else", hint="holdfast fork --materialise DIR"
        )
    with console.open_home() as home:
        path = home.materialise(arguments.directory)
    if console.json:
        from holdfast.model.answers import commands

        console.give(commands.Unmounted, path=path, mounted=False)
    else:
        console.say(f"{show_path(path)} is a plain directory now.")
    return 0


def _configure_export(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast export ID [ID ...] FILE"
    parser.add_argument("names", metavar="ID", nargs="+", type=text, help="the checkpoints; their ancestors come along")
    parser.add_argument("file", metavar="FILE", help="the bundle to write, customarily called *.tar.zst")


def _export(console: Console, arguments: argparse.Namespace) -> int:
    with console.open() as workspace:
        ids = workspace.export(arguments.names, arguments.file)
    if console.json:
        from holdfast.model.answers import upkeep

        console.give(upkeep.Bundle, file=arguments.file, checkpoints=ids)
    else:
        console.say(f"Wrote {plural(len(ids), 'checkpoint')} to {visible(arguments.file)}.")
    return 0


def _configure_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a bundle that `holdfast export` wrote")


def _import(console: Console, arguments: argparse.Namespace) -> int:
    from holdfast.engine.upkeep.bundle_import import check_bundle_head

    check_bundle_head(os.fsencode(arguments.file))  # a mistyped name must not make the directory a workspace
    with console.open(create=True) as workspace:
        ids = workspace.import_(arguments.file)
    if console.json:
        from holdfast.model.answers import upkeep

        console.give(upkeep.Bundle, file=arguments.file, checkpoints=ids)
    else:
        console.say(
            f"Took in {plural(len(ids), 'checkpoint')} from {visible(arguments.file)}.",
            *(f"  {short(checkpoint)}" for checkpoint in ids),
        )
    return 0


COMMANDS = {
    "fork": Command(
        description="Write a checkpoint out into a new or empty directory, as a workspace with a history of its "
        "own. Without ID, Holdfast saves the present state and forks that. Shared content is stored once.",
        configure=_configure_fork,
        run=_fork,
        examples=(
            ("holdfast fork ../attempt-2", "the present state, which is saved first"),
            ("holdfast fork before-upgrade ../other", "another one"),
            ("holdfast fork ../attempt-3 --mount", "of any size, in the time of a mount"),
            ("holdfast fork --materialise ../attempt-3", "write that one out after all"),
        ),
        exits=((4, "refused: the directory is not empty, or in use"),),
    ),
    "export": Command(
        description="Write checkpoints, with all their ancestors and content, to one file, whole or not at all.",
        configure=_configure_export,
        run=_export,
        examples=(("holdfast export @ backup.tar.zst", "the state that the tree stands on, and all before it"),),
    ),
    "import": Command(
        description="Read the checkpoints of a bundle into this workspace, once the whole file is verified. The "
        "tree does not change.",
        configure=_configure_import,
        run=_import,
        examples=(("holdfast import backup.tar.zst && holdfast log", "import, and look"),),
        notes=(
            (
                "A checkpoint that is already here keeps its label, message and author. If another workspace of "
                "the home has it, the import is refused (exit 4: `other_workspace`), and the message has the "
                "`fork` to use instead."
            ),
        ),
        exits=((4, "refused: this workspace has another checkpoint with the same id"),),
    ),
}
