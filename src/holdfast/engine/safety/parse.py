"""The syntax tree of a shell command, by tree-sitter's grammar of bash, within bounds.

Positions in a tree are bytes of the text that was parsed; `Texts.outermost` says where that is in what was typed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node, Parser

MAX_BYTES = 128 << 10
MAX_DEPTH = 100
MAX_EFFORT = 1000
"""How often the parser may report that it goes on: about a second of the most ambiguous text. Its time can grow with
the square of the length, as for thousands of pipes in a row, and counting is the same on every machine."""

_REFUSED = "\0\1\2\3"
"""The parser takes NUL for the end; the others mark what is uncertain in a `words.Word`."""


class CannotParseError(Exception):
    """The text is beyond what is looked at; the message says why."""


class Source(NamedTuple):
    """A text that was parsed: what was typed, or a script in it."""

    data: bytes
    base: int = 0
    """Where its bytes are counted from; each text of a command has a part of its own, so that none are the same."""

    def text(self, node: Node) -> str:
        """What ``node`` covers, as written."""
        return self.part(node.start_byte, node.end_byte)

    def part(self, start: int, end: int) -> str:
        """What stands from byte ``start`` to ``end``."""
        return self.data[start:end].decode("utf-8", "surrogateescape")

    def place(self, node: Node) -> tuple[int, int]:
        """Where ``node`` is: its first byte, and the one after it."""
        return self.base + node.start_byte, self.base + node.end_byte


class Texts:
    """All texts that are looked into for one command, and where in the command each of them stands."""

    def __init__(self, command: bytes) -> None:
        self.first = Source(command)
        self._ends = [len(command) + 1]
        self._within: list[tuple[int, int]] = [(0, 0)]

    def add(self, data: bytes, within: tuple[int, int]) -> Source:
        """A further text, which stands at ``within``."""
        base = self._ends[-1]
        self._ends.append(base + len(data) + 1)
        self._within.append(within)
        return Source(data, base)

    def outermost(self, start: int, end: int) -> tuple[int, int]:
        """Where that is in the command itself."""
        while start >= self._ends[0]:
            start, end = self._within[bisect_right(self._ends, start)]
        return start, end


def encode(text: str) -> bytes:
    """``text`` as bytes for `parse`, one byte or more for each character."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "".join("?" if "\ud800" <= one <= "\udfff" else one for one in text).encode()


class Characters:
    """Turns positions in `encode` of a text into positions in the text."""

    def __init__(self, text: str) -> None:
        self._ends = None if text.isascii() else list(accumulate(_bytes_of(one) for one in text))

    def at(self, byte: int) -> int:
        """The character that begins at ``byte``, or holds it."""
        return byte if self._ends is None else bisect_right(self._ends, byte)


def _bytes_of(character: str) -> int:
    # A surrogate stands for one byte that is no UTF-8, or becomes a question mark.
    return 1 if "\ud800" <= character <= "\udfff" else len(character.encode())


def parse(data: bytes) -> Node:
    """The root of the syntax tree of ``data``; raises `CannotParseError`. Errors of syntax are nodes in the tree."""
    if len(data) > MAX_BYTES:
        raise CannotParseError(f"it is longer than {MAX_BYTES >> 10} KiB")
    if any(ord(one) in data for one in _REFUSED):
        raise CannotParseError("it holds control characters")
    parser, effort = _parser(), 0

    def content(offset: int, _point: object) -> bytes:
        return data[offset:]

    def further(_offset: int, _has_error: bool) -> bool:
        nonlocal effort
        effort += 1
        return effort > MAX_EFFORT

    try:
        # The stubs know a callback that is given only where it is, and not that it can be told to stop.
        root: Node = _untyped(parser).parse(content, progress_callback=further).root_node
    except ValueError:
        parser.reset()
        raise CannotParseError("it takes too long to parse") from None
    _check_depth(root)
    return root


def _untyped(parser: Parser) -> Any:
    return parser


class _Kept(threading.local):
    """The parser of a thread: one that two threads use at once crashes the process."""

    parser: Parser | None = None


_KEPT = _Kept()


def _parser() -> Parser:
    if _KEPT.parser is None:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        _KEPT.parser = Parser(Language(tree_sitter_bash.language()))
    return _KEPT.parser


def _check_depth(root: Node) -> None:
    cursor, depth = root.walk(), 0
    while True:
        if cursor.goto_first_child():
            depth += 1
            if depth > MAX_DEPTH:
                raise CannotParseError(f"it is nested more than {MAX_DEPTH} deep")
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return
            depth -= 1


def errors_in(root: Node) -> Iterator[Node]:
    """The places below ``root`` that are no shell syntax, outermost ones only."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            waiting += node.children
