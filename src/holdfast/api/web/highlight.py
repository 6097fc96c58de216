"""Source text as lines of coloured pieces: Pygments tells the pieces, the style sheet the colours.

Pygments works in processes of their own (`holdfast.api.web.lexing`), which a text cannot keep for long. Only lines of
HTML come out of here, every text in them escaped, so templates take them as they are.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup, escape

from holdfast.api.web.lexing import Answer, Question, read_frame, write_frame
from holdfast.model.message_text import visible
from holdfast.model.paths import display
from holdfast.processes.helper_process import start_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST_BYTES: Final = 256 << 10
"""Longer texts stay plain, which saves time."""
_MOST_OF_LINE: Final = 2000
"""A text with a longer line is no source that a person wrote."""


class Piece(NamedTuple):
    """A part of a line."""

    text: str
    style: str
    """A class of the style sheet; empty for plain text."""


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
    """The highlighted pieces of each line, by the language of the file's name. Whole lines if the language is unknown,
    or the text is too long or takes too long.
    """
    plain = [[Piece(line, "")] for line in lines]
    if sum(map(len, lines)) + len(lines) > MOST_BYTES or any(len(line) > _MOST_OF_LINE for line in lines):
        return plain
    found = _lexers.ask(Question(display(path.rpartition(b"/")[2]), "\n".join(lines)))
    # A lexer that loses or adds lines is wrong, and its other lines cannot be trusted either.
    if len(found) == len(lines) + 1 and not found[-1]:
        found.pop()
    if len(found) != len(lines) or any(
        "".join(text for text, _ in one) != line for one, line in zip(found, lines, strict=True)
    ):
        return plain
    return [[Piece(*piece) for piece in one] for one in found]


class _Lexers:
    """The processes that have answered before, for the next questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)

    def ask(self, question: Question) -> Answer:
        """The pieces of a text's lines; none if the process died over it or cannot be started."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        try:
            process = process or start_module(
                "holdfast.api.web.lexing", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return []
        assert process.stdin is not None
        assert process.stdout is not None
        answer = None
        with suppress(OSError):
            write_frame(process.stdin, question)
            answer = read_frame(process.stdout, Answer)
        with self._lock:
            if answer is not None and len(self._idle) < _MOST_IDLE:
                self._idle.append(process)
                return answer
        _end(process)
        return answer or []

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)


_MOST_IDLE: Final = 2


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process, suppress(OSError):  # flushing to a dead process fails
        process.wait()


_lexers = _Lexers()


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
