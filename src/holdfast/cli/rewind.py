"""``rewind``: the timeline, full screen. `holdfast.cli.rewind_screen` draws it, and needs Textual."""

from __future__ import annotations

import os
import sys

from holdfast import RefusedError, UnsupportedError, UsageError
from holdfast.cli.command import Command
from holdfast.cli.log_show import add_filters
from holdfast.cli.terminal import is_terminal
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from holdfast.cli.console import Console


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "holdfast rewind [options] [-- PATH…]"
    add_filters(parser)


def _rewind(console: Console, arguments: argparse.Namespace) -> int:
    _check(console)
    from holdfast.cli.restore_undo_redo import settle_unfinished

    try:
        from holdfast.cli.rewind_screen import show
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        from holdfast.model.extras import install_command

        raise UnsupportedError(
            "rewind needs the library textual of the extra tui, which is not installed", hint=install_command("tui")
        ) from error
    # A workspace is for one thread. This one asks at the terminal; the screen opens its own.
    with console.open() as workspace:
        settle_unfinished(console, workspace)
    for done in show(console, arguments):
        console.say(*done)
    return 0


def _check(console: Console) -> None:
    """Raise unless there is a screen."""
    if console.json:
        raise UsageError("`rewind` is for people", hint="`holdfast log --json` is for programs")
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(map(is_terminal, streams)) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise RefusedError(
            "rewind fills the screen of a terminal, and there is none here",
            hint="`holdfast log` lists the rows, `holdfast show` and `holdfast diff` show one, "
            "`holdfast undo` and `holdfast restore` go back",
            code="no_terminal",
        )


COMMANDS = {
    "rewind": Command(
        description="Look at the timeline full screen, and go back from there (docs/guide/rewind.md has the "
        "keys). Enter goes to the state of a row, or to before a prompt, a run or a step; u is undo, r redo. Each "
        "shows its changes first, and asks.",
        configure=_configure,
        run=_rewind,
        examples=(
            ("holdfast rewind", "all that happened"),
            ("holdfast rewind --steps -- src", "every change below src, steps too"),
        ),
        notes=("It needs the library Textual.",),
        exits=((4, "refused: no terminal, or a restore that was cut short is to stay as it is"),),
        paths_after_dashes=True,
    ),
}
