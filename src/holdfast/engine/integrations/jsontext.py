"""JSON as people write it: comments and trailing commas are let through, and every value knows where it stands.

So can a text be changed in one place and stay as it is in all others (`holdfast.engine.integrations.jsonedit`). The
grammar is that of RFC 8259, with ``//`` and ``/* */`` comments where white space may be, and a comma after the last
element. Pure: no I/O.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.model.errors import FormatError
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 100

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


class Element(NamedTuple):
    """A member of an object, or an item of an array."""

    name: str | None
    """The member's; None for an item."""
    start: int
    """Where its text begins: the name's, or the value's."""
    value: Node
    comma: int | None
    """Where the comma behind it stands; None if there is none."""


class Node(NamedTuple):
    """A value, and the text that it is: ``start`` to ``end``."""

    start: int
    end: int
    value: Any
    """As `json.loads` gives it; not to be changed."""
    elements: Sequence[Element] | None
    """What is in it, if it is an object or an array."""

    @property
    def is_object(self) -> bool:
        """Whether it is an object."""
        return isinstance(self.value, dict)

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.value, list)

    def place(self, step: str | int) -> int | None:
        """Where among its elements the member of that name is, or the item of that number; None if it is not there."""
        elements = self.elements or ()
        if isinstance(step, int):
            return step if self.is_array and step < len(elements) else None
        return next((place for place, each in enumerate(elements) if each.name == step), None)


@lru_cache(maxsize=4)
def parse(text: str) -> Node:
    """The one value in ``text``. Raises `FormatError` that names line and column, also for a name that comes twice."""
    return _Parser(text).document()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Node:
        if self._text.startswith("\ufeff"):
            self._at = 1
        self._skip()
        node = self._value(0)
        self._skip()
        if self._at != len(self._text):
            self._fail("something follows the value")
        return node

    def _value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self._fail(f"it is nested more than {MAX_DEPTH} deep")
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._collection("}", depth, named=True)
            case "[":
                return self._collection("]", depth, named=False)
            case '"':
                start = self._at
                value = self._string()
                return Node(start, self._at, value, None)
            case _:
                return self._scalar()

    def _collection(self, closing: str, depth: int, *, named: bool) -> Node:
        start = self._at
        self._at += 1
        elements: list[Element] = []
        names: set[str] = set()
        self._skip()
        while not self._text.startswith(closing, self._at):
            if elements and elements[-1].comma is None:
                self._fail(f"expected a comma or {closing}")
            at, name = self._at, None
            if named:
                name = self._name(names)
            value = self._value(depth + 1)
            self._skip()
            comma = None
            if self._text.startswith(",", self._at):
                comma = self._at
                self._at += 1
                self._skip()
            elements.append(Element(name, at, value, comma))
        self._at += 1
        items = [each.value.value for each in elements]
        content = dict(zip((each.name for each in elements), items, strict=True)) if named else items
        return Node(start, self._at, content, elements)

    def _name(self, before: set[str]) -> str:
        if not self._text.startswith('"', self._at):
            self._fail("expected a name in double quotes")
        name = self._string()
        if name in before:
            self._fail(f"the name {name!r} comes twice")
        before.add(name)
        self._skip()
        if not self._text.startswith(":", self._at):
            self._fail("expected a colon")
        self._at += 1
        self._skip()
        return name

    def _string(self) -> str:
        import json

        found = _STRING.match(self._text, self._at)
        if found is None:
            self._fail("a string has no end, or holds what none may hold")
        self._at = found.end()
        return json.loads(found.group())

    def _scalar(self) -> Node:
        import json

        found = _SCALAR.match(self._text, self._at)
        if found is None or self._text[found.end() : found.end() + 1].isalnum():
            self._fail("expected a value")
        self._at = found.end()
        try:
            value = json.loads(found.group())
        except ValueError:  # a number of thousands of digits
            self._fail("a number is too long")
        return Node(found.start(), found.end(), value, None)

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        raise FormatError(f"line {line}, column {column}: {reason}")
