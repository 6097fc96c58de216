"""Source text as lines of coloured pieces: Pygments tells the pieces, the style sheet the colours.

Only lines of HTML come out of here, every text in them escaped, so templates take them as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup, escape

from holdfast.model.message_text import visible
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pygments.lexer import Lexer

MOST_BYTES: Final = 256 << 10
"""Longer texts stay plain: lexers are regular expressions, and some take long on what is not their language."""
_MOST_OF_LINE: Final = 2000
"""A text with a longer line is no source that a person wrote."""


class Piece(NamedTuple):
    """A part of a line."""

    text: str
    style: str
    """A class of the style sheet; empty for plain text."""


_STYLES: Final = (
    ("Comment.Preproc", "tp"),
    ("Comment", "tc"),
    ("Keyword.Constant", "tn"),
    ("Keyword.Type", "tt"),
    ("Keyword", "tk"),
    ("Literal.String", "ts"),
    ("Literal.Number", "tn"),
    ("Name.Function", "tf"),
    ("Name.Class", "tt"),
    ("Name.Decorator", "tp"),
    ("Name.Builtin", "tb"),
    ("Name.Tag", "tk"),
    ("Name.Attribute", "tf"),
    ("Name.Exception", "tt"),
    ("Operator.Word", "tk"),
    ("Generic.Heading", "tk"),
    ("Generic.Subheading", "tf"),
    ("Generic.Strong", "tt"),
)
"""Kinds of tokens by the beginnings of their names, and the class of each: few colours say more than many."""


def text_lines(content: bytes, *, crlf: bool = True) -> list[str]:
    """The lines of a text without their ends, fit to be shown: what could drive or deceive shows as its bytes; with
    ``crlf`` a carriage return belongs to the end.
    """
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    ends = (line.removesuffix("\r") if crlf else line for line in lines)
    return ["\t".join(map(visible, line.split("\t"))) for line in ends]


def pieces(path: bytes, lines: Sequence[str]) -> list[list[Piece]]:
    """The pieces of each line, by the language that the name of the file stands for; whole lines where it stands for
    none, and of what is too long.
    """
    plain = [[Piece(line, "")] for line in lines]
    if sum(map(len, lines)) > MOST_BYTES or any(len(line) > _MOST_OF_LINE for line in lines):
        return plain
    from pygments.lexers import get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    name = display(path.rpartition(b"/")[2])
    try:
        lexer: Lexer = get_lexer_for_filename(name, "\n".join(lines[:50]), stripnl=False, ensurenl=True)
    except ClassNotFound:
        return plain
    found: list[list[Piece]] = [[]]
    for kind, text in lexer.get_tokens("\n".join(lines)):
        style = _style(kind)
        first, *rest = text.split("\n")
        if first:
            found[-1].append(Piece(first, style))
        found += [[Piece(part, style)] if part else [] for part in rest]
    # (A lexer that loses or adds lines cannot be trusted with any.)
    if len(found) == len(lines) + 1 and not found[-1]:
        found.pop()
    if len(found) != len(lines) or any(
        "".join(piece.text for piece in one) != line for one, line in zip(found, lines, strict=True)
    ):
        return plain
    return found


_known: dict[tuple[str, ...], str] = {}


def _style(kind: tuple[str, ...]) -> str:
    known = _known.get(kind)
    if known is None:
        name = ".".join(kind)
        known = next((style for prefix, style in _STYLES if name.startswith(prefix)), "")
        _known[kind] = known
    return known


def line_html(line: Iterable[Piece], marked: Sequence[tuple[int, int]] = ()) -> Markup:
    """A line as HTML; the characters in ``marked`` (ascending ranges) are marked."""
    return Markup("").join(_html(line, marked))


def _html(line: Iterable[Piece], marked: Sequence[tuple[int, int]]) -> Iterator[Markup]:
    at, ranges = 0, list(marked)
    for piece in line:
        rest = piece.text
        while rest:
            while ranges and ranges[0][1] <= at:
                ranges.pop(0)
            is_marked = bool(ranges) and ranges[0][0] <= at
            end = ranges[0][1] if is_marked else ranges[0][0] if ranges else at + len(rest)
            part, rest = rest[: end - at], rest[end - at :]
            at += len(part)
            shown = escape(part)
            if piece.style:
                shown = Markup('<span class="{}">{}</span>').format(piece.style, shown)
            yield Markup("<mark>{}</mark>").format(shown) if is_marked else shown
