"""The questions of ``restore --patch``: one for each hunk, and for each file that is only restored as a whole."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli.diff import show_patch
from holdfast.cli.terminal import ask, show_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.cli.console import Console
    from holdfast.engine.merging.partial_restore import RestoreFile, RestorePart

_QUESTIONS = {
    "add": "Bring {path} back",
    "delete": "Delete {path}",
    "whole": "Restore {path}",
    "mode": "Restore the permissions of {path}",
    "hunk": "Restore this hunk of {path}",
}

_HELP = """\
y - restore this
n - leave this as it is
a - restore this and all that follows in the file
d - leave this and all that follows in the file
q - stop here: restore what you have taken so far
? - show this help
"""


def choose(console: Console, files: Iterable[RestoreFile]) -> list[tuple[RestoreFile, list[RestorePart]]]:
    """Show each part of the files, and ask for it; the files of which any was taken, each with those parts."""
    chosen: list[tuple[RestoreFile, list[RestorePart]]] = []
    for file in files:
        taken, goes_on = _choose_parts(console, file)
        if taken:
            chosen.append((file, taken))
        if not goes_on:
            break
    return chosen


def _choose_parts(console: Console, file: RestoreFile) -> tuple[list[RestorePart], bool]:
    """The chosen parts of a file, and whether to continue with more files."""
    taken: list[RestorePart] = []
    for at, part in enumerate(file.parts):
        show_patch(console, [part.text])
        sys.stdout.flush()
        letter = _ask(file, part, f"{at + 1}/{len(file.parts)}")
        if letter == "a":
            return [*taken, *file.parts[at:]], True
        if letter in ("d", "q"):
            return taken, letter == "d"
        if letter == "y":
            taken.append(part)
    return taken, True


def _ask(file: RestoreFile, part: RestorePart, number: str) -> str:
    named = " and ".join(show_path(change.path) for change in (file.change, *file.logs))
    question = f"({number}) {_QUESTIONS[part.kind].format(path=named)} [y,n,a,d,q,?]? "
    while (letter := ask(question, "yna?dq")) == "?":
        sys.stderr.write(_HELP)
    return letter
