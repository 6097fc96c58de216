"""The syntax tree of a shell command, by tree-sitter's grammar of bash, within bounds.

Positions in a tree are bytes of the text that was parsed; `Texts.outermost` says where that is in what was typed.
"""

from __future__ import annotations

import re
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
MAX_CONTINUED = 1000
"""Lines that are continued. With more, it is not looked whether each of them is so between two words."""

_REFUSED = "\0\1\2\3"
"""The parser takes NUL for the end; the others mark what is uncertain in a `words.Word`."""

_STAND_INS = bytes(one if one in b"\t\n" or 32 <= one < 127 else ord(",") for one in range(256))
"""What the parser is given in place of what is no plain ASCII. To a shell such bytes are parts of words and nothing
else; the grammar takes some for spaces, which would hide what follows a ``#``, and others for letters of a name. Its
scanner reads beyond a table of the C library for large characters, and crashes."""

_PIECES = frozenset(("simple_expansion", "expansion", "command_substitution", "string", "raw_string", "concatenation"))
_BLANK = re.compile(rb"(?<!\\)(?:\\\\)*[ \t]")
_LITERAL = frozenset(("string", "heredoc_body"))
"""Nodes that have text of their own beside what is in them."""


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
    plain = _plain(data)
    # Each here-document that is still to come makes every step longer.
    cost = 1 + data.count(b"<<") // 32

    def content(offset: int, _point: object) -> bytes:
        return plain[offset:]

    def further(_offset: int, _has_error: bool) -> bool:
        nonlocal effort
        effort += cost
        return effort > MAX_EFFORT

    try:
        # The stubs know a callback that is given only where it is, and not that it can be told to stop.
        root: Node = _untyped(parser).parse(content, progress_callback=further).root_node
    except ValueError:
        parser.reset()
        raise CannotParseError("it takes too long to parse") from None
    _check_depth(root)
    return root


def _plain(data: bytes) -> bytes:
    """``data`` for the parser, with every byte in its place."""
    plain = bytearray(data.translate(_STAND_INS))
    for at in _escaped(data, b" \t"):
        # The grammar takes an escaped blank for one between words, and what follows a "#" after it for a comment.
        plain[at] = ord(",")
    at = data.find(b"\n\\")
    while at >= 0:
        # The first line of a document that begins with one is not recognised; before a letter it has no meaning.
        if data[at + 2 : at + 3].isalnum():
            plain[at + 1] = ord(",")
        at = data.find(b"\n\\", at + 1)
    return bytes(plain)


def _escaped(data: bytes, which: bytes) -> Iterator[int]:
    """Where one of ``which`` has a backslash before it that is not escaped itself."""
    at = data.find(b"\\")
    while at >= 0:
        if data[at + 1 : at + 2] in [which[one : one + 1] for one in range(len(which))]:
            yield at + 1
        at = data.find(b"\\", at + 2)


def joined_in(root: Node, data: bytes) -> Iterator[int]:
    """Where a line is continued in the middle of a word or of an operator, which the grammar takes for two."""
    for count, at in enumerate(_escaped(data, b"\n")):
        if count == MAX_CONTINUED:
            # To find each in a long list of siblings takes time that grows with the square of their number.
            yield at - 1
            return
        around = data[max(0, at - 2) : at - 1], data[at + 1 : at + 2]
        if all(one and one not in b" \t\n" for one in around):
            node = root.descendant_for_byte_range(at - 1, at)
            if node is not None and node.child_count and node.type not in _LITERAL:
                yield at - 1


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


def _broken_words(root: Node, data: bytes) -> Iterator[Node]:
    """Words that go over the end of a line without quotes, as the beginning of a document that was not recognised does;
    or over a blank, as ``} }``, which the grammar takes for one word.
    """
    cursor = root.walk()
    while True:
        node = cursor.node
        if node is not None and _is_broken(node, data):
            yield node
        if cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _is_broken(node: Node, data: bytes) -> bool:
    if node.type == "word":
        text = data[node.start_byte : node.end_byte]
        return b"\n" in text or bool(_BLANK.search(text))
    if node.type in _PIECES and data[node.start_byte : node.start_byte + 1] in (b" ", b"\t", b"\n"):
        # In quotes, spaces before it belong to it.
        return node.parent is None or node.parent.type not in _LITERAL
    return False


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


def errors_in(root: Node, data: bytes) -> Iterator[Node]:
    """The places below ``root`` that are no shell syntax, or that the grammar has not understood; outermost ones."""
    yield from _broken_words(root, data)
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        elif node.has_error:
            waiting += node.children
