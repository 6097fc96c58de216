"""Output for terminals: escaped text, colours, plain numbers and times, and questions."""

from __future__ import annotations

import sys
import time

from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.message_text import visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TextIO, TypeAlias

    Piece: TypeAlias = tuple[str, Sequence[str]]
    """A part of a line, and its styles (names of `_COLOURS`)."""
    Column: TypeAlias = tuple[str, int]
    """The name of a column, with ``>`` before it if its cells stand to the right, and how wide it is at least."""
    Row: TypeAlias = str | Sequence[str | tuple[str, str]]
    """A line as it is, or a cell for each column: its text, or that and its colour."""

_COLOURS = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}

_DAY = 86_400
_YEAR = 365 * _DAY
_UNITS = (
    ("s", 1, 60),
    ("min", 60, 3600),
    ("h", 3600, 2 * _DAY),
    ("d", _DAY, 60 * _DAY),
    ("mo", _YEAR // 12, 2 * _YEAR),
)
"""Of a time that is past: the unit, its seconds, and from how many on the next one is used."""

STATUS_COLOURS = {"A": "green", "M": "yellow", "D": "red", "R": "cyan", "T": "magenta"}
"""The colour of each status letter."""


def show_path(path: bytes) -> str:
    r"""A path for people: `holdfast.model.paths.display`, made `visible`; ``parse_display`` still turns it back."""
    return visible(display(path))


def visible_line(line: bytes) -> str:
    """A line of a file's content, `visible` except its tabs; a newline at its end is dropped."""
    return "\t".join(map(visible, line.removesuffix(b"\n").decode("utf-8", "surrogateescape").split("\t")))


class Palette:
    """Colours text, or leaves it as it is."""

    __slots__ = ("on",)

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, *styles: str) -> str:
        """``text`` in ``styles`` (names of `_COLOURS`); unchanged when colours are off."""
        if not self.on or not styles:
            return text
        return f"\x1b[{';'.join(_COLOURS[style] for style in styles)}m{text}\x1b[0m"


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """True on a terminal with colours, unless ``NO_COLOR`` (no-color.org) or ``TERM=dumb`` is set."""
    return is_terminal(stream) and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """True if ``stream`` is open and a person sits at it."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def table_lines(paint: Palette, columns: Sequence[Column], rows: Sequence[Row], *, named: bool) -> Iterator[str]:
    """The lines of `Console.table`; ``named``: with the columns' names above."""
    cells = [
        [(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows if not isinstance(row, str)
    ]
    if not cells:
        return
    widest = [max(len(row[at][0]) for row in cells) for at in range(len(columns))]
    kept = [at for at, width in enumerate(widest) if width]
    names = [name.lstrip(">") for name, _ in columns]
    widths = [max(width, columns[at][1], len(names[at]) if named else 0) for at, width in enumerate(widest)]

    def line(row: Sequence[tuple[str, str]]) -> str:
        parts: list[str] = []
        for at in kept:
            text, colour = row[at]
            padded = text.rjust(widths[at]) if columns[at][0][:1] == ">" else text.ljust(widths[at])
            parts.append(paint(padded if at != kept[-1] else padded.rstrip(), *filter(None, (colour,))))
        return "  ".join(parts).rstrip()

    if named:
        yield paint(line([(name, "") for name in names]), "dim")
    each = iter(cells)
    for row in rows:
        if isinstance(row, str):
            yield row
        else:
            first, *rest = next(each)
            yield line([(first[0], first[1] or "yellow"), *rest])


def terminal_width(stream: TextIO) -> int | None:
    """The columns of a terminal; None if ``stream`` is not one."""
    if not is_terminal(stream):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def fit(paint: Palette, pieces: Iterable[Piece], width: int | None) -> str:
    """The painted pieces of a line, without spaces at its end, cut to ``width`` columns (None: not cut); a cut line
    ends with ``…``.
    """
    line = list(pieces)
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    if width is not None and sum(columns(text) for text, _ in line) > width:
        line = _cut(line, width)
    return "".join(paint(text, *styles) for text, styles in line)


def _cut(line: Iterable[Piece], width: int) -> list[Piece]:
    kept: list[Piece] = []
    room = max(width - 1, 0)
    for text, styles in line:
        shown = _first_columns(text, room)
        kept.append((shown, styles))
        room -= columns(shown)
        if shown != text:
            break
    return [*kept, ("…", ())]


def _first_columns(text: str, most: int) -> str:
    if text.isascii():
        return text[:most]
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > most:
            return text[:at]
    return text


def columns(text: str) -> int:
    """The columns that a text takes on a terminal: two for wide characters, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def time_ago(microseconds: int, now: int) -> str:
    """The age of a time, in at most ten characters: ``45 s ago``, ``2 min ago``, ``13 h ago``, ``3 d ago``, ``8 mo
    ago``, ``2 y ago``; ``now`` for less than a second, and for times in the future.
    """
    seconds = (now - microseconds) // 1_000_000
    if seconds < 1:
        return "now"
    for unit, length, most in _UNITS:
        if seconds < most:
            return f"{seconds // length} {unit} ago"
    return f"{seconds // _YEAR} y ago"


def when(microseconds: int) -> str:
    """A time in the machine's own zone: ``2026-02-11 15:04:05``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds // 1_000_000))


def ask(question: str, answers: str) -> str:
    """Put ``question`` on standard error and return the first letter of the reply, if it is one of ``answers``.

    Asks again up to three times; the end of input, and anything else, is the last of ``answers`` (the careful one).
    """
    for _ in range(3):
        sys.stderr.write(question)
        sys.stderr.flush()
        reply = sys.stdin.readline()
        if not reply:
            sys.stderr.write("\n")
            break
        letter = reply.strip().lower()[:1]
        if letter and letter in answers:
            return letter
    return answers[-1]
