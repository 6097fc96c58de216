"""A patch for a terminal: coloured, and with no control character of a file's content let through."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.cli.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.cli.terminal import Palette

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def for_terminal(paint: Palette, pieces: Iterable[bytes]) -> Iterator[str]:
    """The lines of a patch that comes in ``pieces``, without their newlines. One line at most is held back."""
    before = after = 0
    for line in _lines(pieces):
        shown = visible_line(line)
        first = line[:1]
        if before > 0 or after > 0:
            # Inside a hunk, whose header says how many lines it has: only so is a removed "-- x" no header.
            if first == b"+":
                after -= 1
                yield paint(shown, "green")
            elif first == b"-":
                before -= 1
                yield paint(shown, "red")
            else:
                if first != b"\\":
                    before, after = before - 1, after - 1
                yield shown
            continue
        hunk = _HUNK.match(line)
        if hunk is not None:
            before, after = (1 if count is None else int(count) for count in hunk.groups())
            yield paint(shown, "cyan")
        elif first == b"\\":
            yield shown
        else:
            yield paint(shown, "bold")


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest
