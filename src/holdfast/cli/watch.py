"""``watch``: in the foreground, in the background, and its end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Command
from holdfast.cli.init_checkpoint import warn_if_huge
from holdfast.cli.terminal import show_path
from holdfast.model.answers import commands
from holdfast.model.errors import HoldfastError
from holdfast.model.message_text import visible

if TYPE_CHECKING:
    import argparse

    from holdfast import Workspace
    from holdfast.cli.console import Console
    from holdfast.files.watch import Watcher


def _configure(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--detach", action="store_true", help="run in the background; return when the watcher works")
    form.add_argument("--stop", action="store_true", help="stop the watcher, and wait for its end")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="do not ask at a terminal before a huge first checkpoint"
    )


def _watch(console: Console, arguments: argparse.Namespace) -> int:
    with console.open(strict=not arguments.stop, create=not arguments.stop) as workspace:
        if arguments.stop:
            return _stop(console, workspace)
        workspace.check_watchable()
        warn_if_huge(console, workspace, ask_first=not arguments.yes)
        return _detach(console, workspace) if arguments.detach else _stay(console, workspace)


def _stay(console: Console, workspace: Workspace) -> int:
    def ready(watcher: Watcher) -> None:
        if console.json:
            console.give(commands.WatchEvent, event="watching", workspace=workspace.path, backend=watcher.backend)
        else:
            console.say(f"Watching {show_path(workspace.path)} by {watcher.backend}; Ctrl-C ends it.")
        if watcher.limits and console.verbose:
            console.say(f"  {visible(watcher.limits)}")
        sys.stdout.flush()

    console.prepare_log(news=True)
    unsaved = workspace.watch(ready=ready)
    if console.json:
        console.give(commands.WatchEnd, event="stopped", unsaved=unsaved)
    elif unsaved is None:
        console.say("Stopped; everything is saved.")
    _fail_if(unsaved)
    return 0


def _fail_if(unsaved: str | None) -> None:
    if unsaved is not None:
        raise HoldfastError(
            f"the watcher has stopped, and the last changes are not saved: {unsaved}",
            hint="`holdfast checkpoint` tries again",
            code="unsaved",
        )


def _detach(console: Console, workspace: Workspace) -> int:
    from holdfast.engine.watching.daemon import start_detached

    # -P: the directory that it is started in must not be searched for modules.
    words = [sys.executable, "-P", "-m", "holdfast", "--home", workspace.home, "-w", workspace.path]
    words += ["--log-level", console.log_level or "info", "watch", "--yes"]
    watching = start_detached(words, workspace.folder)
    if console.json:
        console.give(commands.DetachedWatch, watching)
    else:
        console.say(
            f"Watching {show_path(workspace.path)} by {watching.backend}, process {watching.pid}. "
            "`holdfast watch --stop` ends it."
        )
        if watching.limits and console.verbose:
            console.say(f"  {visible(watching.limits)}")
    return 0


def _stop(console: Console, workspace: Workspace) -> int:
    from holdfast.engine.opening.watch_client import STOP_WAIT, connect

    watcher = connect(workspace.folder, wait=STOP_WAIT)
    unsaved = None
    if watcher is not None:
        with watcher:
            unsaved = watcher.stop()
    if console.json:
        console.give(commands.StoppedWatch, stopped=watcher is not None, unsaved=unsaved)
    elif watcher is None:
        console.say("No watcher was running.")
    elif unsaved is None:
        console.say("The watcher has stopped; everything is saved.")
    _fail_if(unsaved)
    return 0


COMMANDS = {
    "watch": Command(
        description="Save automatically: five seconds after the last change, at the latest after five minutes, at "
        "most sixty times an hour (docs/reference/watch.md). Idle sessions are saved as well.",
        configure=_configure,
        run=_watch,
        examples=(
            ("holdfast watch", "until Ctrl-C"),
            ("holdfast watch --detach", "in the background"),
            ("holdfast watch --stop", "stop it"),
        ),
        exits=(
            (1, "the last changes could not be saved"),
            (4, "refused: a watcher already works in this workspace"),
        ),
    ),
}
