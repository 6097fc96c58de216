"""Reading and changing people's JSON: comments and trailing commas stay, and every value knows its position.

So a text can be changed in one place and stay unchanged in all others. The grammar is that of RFC 8259, with ``//`` and
``/* */`` comments where white space is allowed, and a comma after the last element. Pure: no I/O.
"""

from __future__ import annotations

import copy
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from holdfast.model.errors import FormatError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_DEPTH = 100

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


class JsonElement(NamedTuple):
    """A member of an object, or an item of an array."""

    name: str | None
    """The member's; None for an item."""
    start: int
    """Where its text begins: the name's, or the value's."""
    value: JsonNode
    comma: int | None
    """The position of the comma after it; None without one."""


class JsonNode(NamedTuple):
    """A value, and the text that it is: ``start`` to ``end``."""

    start: int
    end: int
    value: Any
    """As `json.loads` gives it; not to be changed."""
    elements: Sequence[JsonElement] | None
    """The elements of an object or array."""

    @property
    def is_object(self) -> bool:
        """Whether it is an object."""
        return isinstance(self.value, dict)

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return isinstance(self.value, list)

    def place(self, step: str | int) -> int | None:
        """The index of the element with that name or number; None if it is missing."""
        elements = self.elements or ()
        if isinstance(step, int):
            return step if self.is_array and step < len(elements) else None
        return next((place for place, each in enumerate(elements) if each.name == step), None)


@lru_cache(maxsize=4)
def parse(text: str) -> JsonNode:
    """The one value in ``text``. Raises `FormatError` that names line and column, also for a name that comes twice."""
    return _Parser(text).document()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> JsonNode:
        if self._text.startswith("\ufeff"):
            self._at = 1
        self._skip()
        node = self._value(0)
        self._skip()
        if self._at != len(self._text):
            self._fail("something follows the value")
        return node

    def _value(self, depth: int) -> JsonNode:
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
                return JsonNode(start, self._at, value, None)
            case _:
                return self._scalar()

    def _collection(self, closing: str, depth: int, *, named: bool) -> JsonNode:
        start = self._at
        self._at += 1
        elements: list[JsonElement] = []
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
            elements.append(JsonElement(name, at, value, comma))
        self._at += 1
        items = [each.value.value for each in elements]
        content = dict(zip((each.name for each in elements), items, strict=True)) if named else items
        return JsonNode(start, self._at, content, elements)

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

    def _scalar(self) -> JsonNode:
        import json

        found = _SCALAR.match(self._text, self._at)
        if found is None or self._text[found.end() : found.end() + 1].isalnum():
            self._fail("expected a value")
        self._at = found.end()
        try:
            value = json.loads(found.group())
        except ValueError:  # a number of thousands of digits
            self._fail("a number is too long")
        return JsonNode(found.start(), found.end(), value, None)

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - (self._text.rfind("\n", 0, self._at) + 1) + 1
        raise FormatError(f"line {line}, column {column}: {reason}")


# Changing one place in a JSON text, with everything else unchanged: layout, order, comments.
#
# Every function takes a text and returns another. It parses the result first, and refuses a change whose result would
# not be exactly the requested value.

_WHITE = " \t\r\n"
_UNIT = "  "
_HALF = re.compile("[\ud800-\udfff]")

Path = tuple[str | int, ...]
"""The names of members and numbers of items, from the outermost value inwards."""


def find(text: str, path: Path) -> Any:
    """The value at ``path``; None if it is missing. Raises `FormatError` for invalid JSON."""
    node, rest = _descend(parse(text), path)
    return None if rest else node.value


def put(text: str, path: Path, value: object) -> str:
    """Set the member at ``path`` to ``value``, and add missing objects around it.

    Raises `RefusedError` if a parent is no object, `FormatError` for invalid JSON.
    """
    root = parse(text)
    expected = copy.deepcopy(root.value)
    around = expected
    for name in path[:-1]:
        around = _members(around, path).setdefault(name, {})
    _members(around, path)[path[-1]] = value
    node, rest = _descend(root, path)
    if not rest:
        changed = text[: node.start] + _written(value, text, _indent(text, node.start), root) + text[node.end :]
    else:
        for name in reversed(rest[1:]):
            value = {name: value}
        changed = _insert(text, root, node, f"{json.dumps(rest[0], ensure_ascii=False)}: ", value)
    return _checked(changed, expected)


def append(text: str, path: Path, item: object) -> str:
    """Add ``item`` to the end of the array at ``path``, which is made if it is missing. Raises as `put`."""
    root = parse(text)
    node, rest = _descend(root, path)
    if rest:
        return put(text, path, [item])
    if not node.is_array:
        raise _in_the_way(path)
    expected = copy.deepcopy(root.value)
    _at(expected, path).append(item)
    return _checked(_insert(text, root, node, "", item), expected)


def delete(text: str, path: Path) -> str:
    """Remove the member or the item at ``path``, which must exist."""
    root = parse(text)
    expected = copy.deepcopy(root.value)
    del _at(expected, path[:-1])[path[-1]]
    node, _ = _descend(root, path[:-1])
    place = node.place(path[-1])
    assert node.elements is not None
    assert place is not None
    tight, loose = (_cut(text, node.elements, place, with_space=with_space) for with_space in (True, False))
    try:
        return _checked(_collapsed(tight, path[:-1]), expected)
    except (RefusedError, FormatError):
        # A comment up to the end of the line preceded it, so the line break must stay.
        return _checked(loose, expected)


def _members(around: object, path: Path) -> dict[str | int, Any]:
    if not isinstance(around, dict):
        raise _in_the_way(path)
    return cast("dict[str | int, Any]", around)


def _at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


def _in_the_way(path: Path) -> RefusedError:
    return RefusedError(f"{'.'.join(map(str, path))} has another type than an entry needs", code="in_the_way")


def _descend(node: JsonNode, path: Path) -> tuple[JsonNode, Path]:
    """Follow ``path`` as far as it exists; the rest of the path."""
    for depth, step in enumerate(path):
        place = node.place(step)
        if place is None:
            return node, path[depth:]
        assert node.elements is not None
        node = node.elements[place].value
    return node, ()


def _insert(text: str, root: JsonNode, node: JsonNode, prefix: str, value: object) -> str:
    """Add an element at the end of an object or array, after its comments."""
    assert node.elements is not None
    closing = node.end - 1
    at = len(text[:closing].rstrip(_WHITE))
    outer = _indent(text, node.start)
    inner = _indent(text, node.elements[0].start) if node.elements else ""
    if len(inner) <= len(outer):
        inner = outer + _unit(text, root)
    newline = _newline(text)
    element = f"{newline}{inner}{prefix}{_written(value, text, inner, root)}"
    tail = text[at:closing] if "\n" in text[at:closing] else newline + outer
    last = node.elements[-1] if node.elements else None
    if last is not None and last.comma is None:
        end = last.value.end
        return text[:end] + "," + text[end:at] + element + tail + text[closing:]
    return text[:at] + element + ("," if last is not None else "") + tail + text[closing:]


def _cut(text: str, elements: Sequence[JsonElement], place: int, *, with_space: bool) -> str:
    """The text without one element and the comma that belongs to it."""
    element = elements[place]
    start = len(text[: element.start].rstrip(_WHITE)) if with_space else element.start
    cuts = [(start, element.value.end)]
    before = elements[place - 1].comma if place else None
    if element.comma is not None:
        cuts.append((element.comma, element.comma + 1))
    elif before is not None:
        cuts.insert(0, (before, before + 1))
    for begin, end in reversed(cuts):
        text = text[:begin] + text[end:]
    return text


def _collapsed(text: str, path: Path) -> str:
    """Remove the white space in an object or array that has neither elements nor comments."""
    node, _ = _descend(parse(text), path)
    if node.elements or text[node.start + 1 : node.end - 1].strip(_WHITE):
        return text
    return text[: node.start + 1] + text[node.end - 1 :]


def _checked(text: str, expected: object) -> str:
    if parse(text).value != expected:
        raise RefusedError("the file is laid out so that it cannot be changed by a program", code="cannot_edit")
    return text


def _written(value: object, text: str, indent: str, root: JsonNode) -> str:
    # JSON allows a lone surrogate in an escape, but a file cannot contain one.
    written = _HALF.sub(
        lambda half: f"\\u{ord(half[0]):04x}", json.dumps(value, indent=_unit(text, root), ensure_ascii=False)
    )
    lines = written.split("\n")
    return (_newline(text) + indent).join(lines)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent(text: str, at: int) -> str:
    """The white space that the line of ``at`` begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str, root: JsonNode) -> str:
    """The indentation of one level in a text."""
    return (_indent(text, root.elements[0].start) if root.elements else "") or _UNIT
