"""From the nodes of a syntax tree to `words.Word`: quotes, variables, and what has to be looked into on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.safety.words import (
    EXPANDED,
    MAX_LENGTH,
    MAX_WORDS,
    PLAIN,
    QUOTED,
    UNKNOWN,
    Word,
    ansi_quoted,
    double_quoted,
    joined,
    spread,
    unquoted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node

    from holdfast.engine.safety.parse import Source
    from holdfast.engine.safety.shell import Shell
    from holdfast.engine.safety.words import Characters

SUBSTITUTIONS = frozenset(("command_substitution", "process_substitution"))
_MAX_RANGE = 64


class Expansion:
    """Expands words of one text in one shell. ``into`` is told of every node that may hold further commands."""

    def __init__(self, source: Source, shell: Shell, into: Callable[[Node], None]) -> None:
        self.source = source
        self.shell = shell
        self.into = into
        self.computed = False
        self.splits = False

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """The words that ``nodes``, which stand next to each other without a space, become."""
        start, end = self.source.place(nodes[0])[0], self.source.place(nodes[-1])[1]
        self.computed = self.splits = False
        if len(nodes) == 1 and nodes[0].type in ("string", "simple_expansion"):
            several = self._positional(self.source.text(nodes[0]))
            if several is not None:
                return [Word(shape, start, end) for shape in several]
        characters = self._pieces(nodes)
        if len(nodes) > 1:
            # One word to a shell, and several to the grammar: it has taken something for what it is not.
            characters, self.splits = [(UNKNOWN, QUOTED)], True
        shapes = spread(characters, self.shell.home())
        return [Word(shape, start, end, self.computed, self.splits) for shape in shapes]

    def value(self, node: Node | None) -> str:
        """The shape of what is assigned to a variable."""
        return "" if node is None else joined(_bounded([], self._node(node, quoted=False)), self.shell.home())

    def _pieces(self, nodes: Sequence[Node]) -> Characters:
        if any(self._is_cut(node, nodes) for node in nodes):
            for node in nodes:
                self._node(node, quoted=False)  # what is in them runs
            self.splits = True
            return [(UNKNOWN, QUOTED)]
        characters: Characters = []
        for at, node in enumerate(nodes):
            if at and nodes[at - 1].end_byte != node.start_byte:
                characters.append((UNKNOWN, QUOTED))
            characters = _bounded(characters, self._node(node, quoted=False))
        return characters

    def _is_cut(self, node: Node, nodes: Sequence[Node]) -> bool:
        """Whether braces may give a variable another name: they come first, so that ``$y{a,b}`` is ``$ya $yb``."""
        return (
            node.type == "simple_expansion"
            and self.source.data[node.end_byte : node.end_byte + 1] in (b"{", b"}", b",")
            and any("{" in self.source.text(other) for other in nodes)
        )

    def _positional(self, text: str) -> list[str] | None:
        if text not in ('"$@"', "$@", "$*") or self.shell.positional is None:
            return None
        values = self.shell.positional
        if text != '"$@"' and any(one in value for value in values for one in " \t\n*?["):
            return None
        return list(values)

    def _node(self, node: Node, *, quoted: bool) -> Characters:
        kind = node.type
        if kind in ("command_name", "concatenation"):
            if node.child_count:
                return self._pieces(node.children)
            return unquoted(self.source.text(node))
        if kind in ("word", "number", "extglob_pattern", "regex", "variable_name", "test_operator", "file_descriptor"):
            if node.child_count:
                return self._opaque(node)
            # A pattern of an extended kind is no pattern that is understood here.
            return unquoted(self.source.text(node)) if "(" not in self.source.text(node) else [(UNKNOWN, QUOTED)]
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return _quote(self.source.text(node)[1:-1])
        if kind == "ansi_c_string":
            return _quote(ansi_quoted(self.source.text(node)[2:-1]))
        if kind == "simple_expansion":
            return self._variable(self.source.text(node).lstrip()[1:], quoted=quoted)
        if kind == "expansion":
            return self._expansion(node, quoted=quoted)
        if kind == "brace_expression":
            return self._range(node)
        if kind in SUBSTITUTIONS:
            return self._substitution(node, quoted=quoted)
        if not node.is_named and self.source.text(node) in ("==", "=~", "=", "!="):
            return unquoted(self.source.text(node))
        return self._opaque(node)

    def _opaque(self, node: Node) -> Characters:
        """What cannot be told; but what is in it runs."""
        self.into(node)
        return [(UNKNOWN, QUOTED)]

    def _string(self, node: Node) -> Characters:
        # The tree has no nodes for all the spaces of a string, and leaves some to the beginning of what follows.
        characters: Characters = [("", QUOTED)]
        at, end = node.start_byte + 1, node.end_byte - 1
        for child in node.children:
            if child.is_named and child.type != "string_content":
                text = self.source.text(child)
                begin = child.start_byte + len(text) - len(text.lstrip())
                characters = _bounded(characters, double_quoted(self.source.part(at, begin)))
                characters = _bounded(characters, self._node(child, quoted=True))
                at = child.end_byte
        return _bounded(characters, double_quoted(self.source.part(at, max(at, end))))

    def _substitution(self, node: Node, *, quoted: bool) -> Characters:
        self.into(node)
        if node.type == "process_substitution":
            return _quote("/dev/fd/63")
        self.computed = True
        inner = self.source.text(node).strip().strip("$()`").strip()
        if inner == "pwd" and "pwd" not in self.shell.functions:
            return self._variable("PWD", quoted=quoted)
        self.splits = self.splits or not quoted
        return [(UNKNOWN, QUOTED)]

    def _expansion(self, node: Node, *, quoted: bool) -> Characters:
        named = [child for child in node.children if child.is_named]
        if node.child_count == 3 and len(named) == 1 and named[0].type in ("variable_name", "special_variable_name"):
            return self._variable(self.source.text(named[0]), quoted=quoted)
        self.into(node)
        for name in named[:1]:
            if any(
                ":=" in self.source.text(child) or child.type == "=" for child in node.children if not child.is_named
            ):
                self.shell.variables[self.source.text(name)] = UNKNOWN
        # (``"${@:2}"`` and ``"${list[@]}"`` are as many words as there are.)
        self.splits = self.splits or not quoted or "@" in self.source.text(node)
        return [(UNKNOWN, QUOTED)]

    def _variable(self, name: str, *, quoted: bool) -> Characters:
        shape = UNKNOWN
        if name.isdigit():
            place, values = int(name) - 1, self.shell.positional
            if values is not None and 0 <= place < len(values):
                shape = values[place]
        elif name.isidentifier():
            shape = self.shell.value(name)
        if name == "@" or (UNKNOWN in shape and not quoted):
            self.splits = True
        if quoted:
            return _quote(shape) or [("", QUOTED)]
        return [(one, EXPANDED) for one in shape]

    def _range(self, node: Node) -> Characters:
        """``{1..9}``, as the braces that it stands for."""
        parts = self.source.text(node)[1:-1].split("..")
        if len(parts) != 2 or not all(part.lstrip("-").isdigit() and len(part) < 9 for part in parts):
            return [(UNKNOWN, QUOTED)]
        first, last = int(parts[0]), int(parts[1])
        if abs(last - first) >= min(_MAX_RANGE, MAX_WORDS) or any(
            part.startswith("0") and part != "0" for part in parts
        ):
            return [(UNKNOWN, QUOTED)]
        step = 1 if last >= first else -1
        numbers = [str(number) for number in range(first, last + step, step)]
        if len(numbers) == 1:
            return unquoted(numbers[0])
        return [(one, PLAIN) for one in "{" + ",".join(numbers) + "}"]


def _bounded(characters: Characters, more: Characters) -> Characters:
    """Both, or something unknown if they are too long; what follows is appended to that, and is gone through all the
    same.
    """
    return characters + more if len(characters) + len(more) <= MAX_LENGTH else [(UNKNOWN, QUOTED)]


def _quote(text: str) -> Characters:
    return [("", QUOTED), *((one, QUOTED) for one in text)]
