"""The simple commands of a command line, by tree-sitter's grammar of bash, within limits.

The grammar differs from bash's. So every node is checked: a word may have only characters that are special in no shell,
and only blanks may separate words. Any other part is "not plain", and is not interpreted.
"""

from __future__ import annotations

import re
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

MAX_BYTES = 128 << 10
MAX_EFFORT = 1000
"""How often the parser may report that it goes on: about a second of the most ambiguous text. Its time can grow with
the square of the length, as for thousands of pipes in a row, and counting is the same on every machine."""

_STAND_INS = bytes(one if one in b"\t\n" or 32 <= one < 127 else ord(",") for one in range(256))
"""Replacement of bytes that are not plain ASCII, for the parser: its scanner reads beyond a table of the C library for
large characters, and crashes. Positions stay the same.
"""

# Excludes everything that a shell expands: patterns, braces, `~` in front, `=program` of zsh, `!` of the history.
_BARE = re.compile(rb"(?![~=#])(?:(?<![=:])~|!(?=[=]|$)|[\w@%+=:,./^#-]|\\[!-~ \t])*", re.ASCII)
_BRACED = re.compile(rb"[\w@^./-]*\{\w*\}", re.ASCII)
"""Braces without a comma, as in ``HEAD@{1}``, stay as they are."""
_SINGLE = re.compile(rb"'[^']*'")
_DOUBLE = re.compile(rb'"(?:[^"\\$`]|\\.)*"', re.DOTALL)
_OPERATOR = re.compile(rb"[=!]=?|-[a-z]+|\]")
"""Within ``[ … ]``."""
_BLANK = re.compile(rb"(?:\\\n)*[ \t](?:[ \t]|\\\n)*")
"""Between two words: with a line that is continued in the middle of a word, the grammar sees two."""
_SPACE = re.compile(rb"(?:[ \t\n]|\\\n)*")

_OPERATORS = frozenset((";", "\n", "&&", "||", "|"))
_DESCENDED = frozenset(("program", "list", "pipeline", "redirected_statement", "variable_assignments"))
_REDIRECTIONS = frozenset(("<", ">", ">>", ">|", "&>", "&>>", ">&", "<&"))


class CannotParseError(Exception):
    """The text is beyond the bounds of `commands`."""


class Command(NamedTuple):
    """A simple command, a single redirection, or one or more assignments; all words without their quotes."""

    words: tuple[str, ...] = ()
    assigned: tuple[tuple[str, str], ...] = ()
    redirected: tuple[str, str] | None = None
    """The operator, and the file or descriptor."""


class _NotPlainError(Exception):
    """A node means more than a simple command with literal words."""


def commands(text: str) -> Iterator[Command | None]:
    """The simple commands of ``text`` in order; None for each part that is none, or not surely one.

    Raises `CannotParseError` for a text that is too long, has a NUL, or takes too much parsing.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    root = _parse(data)
    if root.has_error:
        yield None
        return
    end, before = 0, "\n"
    for node in _parts(root):
        kind = node.type
        if _SPACE.fullmatch(data, end, node.start_byte) is None or not _may_follow(kind, node, before, data, end):
            yield None
        if kind == "comment":
            if data[node.end_byte : node.end_byte + 1] not in (b"", b"\n"):
                yield None
        elif kind not in _OPERATORS:
            try:
                yield _command(node, data)
            except _NotPlainError:
                yield None
        end, before = node.end_byte, kind
    if _SPACE.fullmatch(data, end) is None:
        yield None


def _parts(root: Node) -> Iterator[Node]:
    """The commands, redirections, operators and comments below ``root``, in their order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type in _DESCENDED:
            waiting += reversed(node.children)
        else:
            yield node


def _may_follow(kind: str, node: Node, before: str, data: bytes, end: int) -> bool:
    """Whether ``node`` may begin where it does, after a part of type ``before`` that ends at ``end``."""
    gap = data[end : node.start_byte].replace(b"\\\n", b"")
    if kind in _OPERATORS or before in _OPERATORS:
        return True
    if kind == "file_redirect":
        # Adjacent to a word, as in `a2>b` and `{a}>b`, the descriptor is ambiguous.
        near = data[node.start_byte : node.start_byte + 1].isdigit() or data[end - 1 : end] in b"}0123456789"
        return b"\n" not in gap and (bool(gap) or not near)
    if kind == "comment":
        return bool(gap)
    # Assignments may follow each other.
    return b"\n" in gap or (kind == before == "variable_assignment" and bool(gap))


def _command(node: Node, data: bytes) -> Command:
    kind = node.type
    if kind == "variable_assignment":
        return Command(assigned=(_assignment(node, data),))
    if kind == "file_redirect":
        return Command(redirected=_redirection(node, data))
    if kind == "test_command":
        return Command(_test(node, data))
    if kind != "command":
        raise _NotPlainError
    words: list[str] = []
    assigned: list[tuple[str, str]] = []
    _check_blank(node.children, data)
    for child in node.children:
        if child.type == "variable_assignment":
            assigned.append(_assignment(child, data))
        else:
            words.append(_word(child.children[0] if child.type == "command_name" else child, data))
    return Command(tuple(words), tuple(assigned))


def _check_blank(nodes: list[Node], data: bytes) -> None:
    for one, other in pairwise(nodes):
        if _BLANK.fullmatch(data, one.end_byte, other.start_byte) is None:
            raise _NotPlainError


def _assignment(node: Node, data: bytes) -> tuple[str, str]:
    kinds = [child.type for child in node.children]
    if kinds[:2] != ["variable_name", "="] or len(kinds) > 3:
        raise _NotPlainError
    name, value = data[node.start_byte : node.end_byte].split(b"=", 1)
    return name.decode("ascii", "replace"), _word(node.children[2], data) if value else ""


def _redirection(node: Node, data: bytes) -> tuple[str, str]:
    children = list(node.children)
    # A shell may parse `12>` as a word.
    if children[0].type == "file_descriptor" and children[0].end_byte == children[0].start_byte + 1:
        del children[0]
    if len(children) == 1 and children[0].type in (">&-", "<&-"):
        return children[0].type[:2], "-"
    # In `ls > a b` the grammar makes b a part of the target.
    if len(children) != 2 or children[0].type not in _REDIRECTIONS:
        raise _NotPlainError
    # `>!` is an operator of zsh, and the text after `>&` is expanded twice.
    target = data[children[0].end_byte : children[1].end_byte].strip(b" \t")
    allowed = rb"\d+|[a-zA-Z_./-][\w./-]*" if children[0].type[1:] == "&" else rb"[^!].*"
    if len(target) != children[1].end_byte - children[1].start_byte or not re.fullmatch(allowed, target, re.DOTALL):
        raise _NotPlainError
    return children[0].type, _word(children[1], data)


def _test(node: Node, data: bytes) -> tuple[str, ...]:
    """``[ … ]``, which the grammar reads as an expression."""
    waiting, leaves = list(reversed(node.children)), list[Any]()
    while waiting:
        child = waiting.pop()
        if child.type in ("unary_expression", "binary_expression"):
            waiting += reversed(child.children)
        else:
            leaves.append(child)
    if leaves[0].type != "[":
        raise _NotPlainError
    _check_blank(leaves, data)
    return "[", *(_word(leaf, data) for leaf in leaves[1:])


def _word(node: Node, data: bytes) -> str:
    """``node`` as the program gets it; raises `_NotPlainError` if a shell might make anything else of it."""
    raw = data[node.start_byte : node.end_byte]
    if node.type == "concatenation" and _BRACED.fullmatch(raw) is None:
        ends = [node.start_byte, *(child.end_byte for child in node.children)]
        if [child.start_byte for child in node.children] != ends[:-1] or ends[-1] != node.end_byte:
            raise _NotPlainError
        return "".join(_word(child, data) for child in node.children)
    if node.type == "raw_string" and _SINGLE.fullmatch(raw):
        raw = raw[1:-1]
    elif node.type == "string" and _DOUBLE.fullmatch(raw):
        raw = re.sub(rb'\\(?:\n|([$`"\\]))', rb"\1", raw[1:-1])
    elif _BRACED.fullmatch(raw) is None or node.type not in ("word", "concatenation"):
        known = _BARE if node.type in ("word", "number") else _OPERATOR
        if node.children or known.fullmatch(raw) is None:
            raise _NotPlainError
        raw = re.sub(rb"\\(.)", rb"\1", raw)
    return raw.decode("utf-8", "surrogateescape")


def _parse(data: bytes) -> Node:
    if len(data) > MAX_BYTES:
        raise CannotParseError(f"it is longer than {MAX_BYTES >> 10} KiB")
    if b"\0" in data:
        raise CannotParseError("it holds a NUL, which the parser takes for the end")
    parser, effort = _parser(), 0
    plain = data.translate(_STAND_INS)
    # Each here-document that is still to come makes every step longer.
    cost = 1 + data.count(b"<<") // 32

    def content(offset: int, _point: object) -> bytes:
        return plain[offset:]

    def further(_offset: int, _has_error: bool) -> bool:
        nonlocal effort
        effort += cost
        return effort > MAX_EFFORT

    try:
        root: Node = parser.parse(content, progress_callback=further).root_node
    except ValueError:
        parser.reset()
        raise CannotParseError("it takes too long to parse") from None
    return root


_KEPT = threading.local()
"""The parser of a thread: one that two threads use at once crashes the process."""


def _parser() -> Any:
    # Any: the stubs lack the callback's way to stop the parser.
    if not hasattr(_KEPT, "parser"):
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        _KEPT.parser = Parser(Language(tree_sitter_bash.language()))
    return _KEPT.parser
