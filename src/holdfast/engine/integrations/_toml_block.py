"""One table in a TOML text, as a block of lines between two marks; every other line stays unchanged.

`tomllib` parses the text before and after the change: only our table may differ.
"""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.model.errors import FormatError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

Path = tuple[str, ...]
"""The names of tables, from the outermost inwards."""

BEGIN = "# >>> holdfast >>> (written by `holdfast integrate`, which also takes it out again)"
END = "# <<< holdfast <<<"


class _Block(NamedTuple):
    """The lines from one mark to the other, as a part of the text; empty if they are not there."""

    start: int
    end: int


def put(text: str, path: Path, value: Mapping[str, Any]) -> str:
    """Set the table ``path`` to ``value``; members in our block that ``value`` does not have stay.

    Raises `FormatError` for invalid TOML, `RefusedError` if the table exists without our marks, or the text between
    them is not ours alone.
    """
    before = _parsed(text)
    block = _block(text, path)
    there = _table(before, path)
    if there is not None and block is None:
        raise RefusedError(f"[{'.'.join(path)}] is there already, and was not written by Holdfast", code="in_the_way")
    if there is not None and all(there.get(name) == wanted for name, wanted in value.items()):
        return text
    merged = {**(there or {}), **value}
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [BEGIN, f"[{'.'.join(path)}]", *(f"{_key(name)} = {_literal(each)}" for name, each in merged.items()), END]
    written = newline.join(lines)
    if block is not None:
        changed = text[: block.start] + written + text[block.end :]
    else:
        between = "" if not text else newline if text.endswith("\n") else newline * 2
        changed = text + between + written + newline
    return _checked(changed, _with(before, path, merged))


def delete(text: str, path: Path) -> str:
    """Take our block out, with the empty line before it. Raises as `put`; a text without it stays as it is."""
    before = _parsed(text)
    block = _block(text, path)
    if block is None:
        return text
    head, tail = text[: block.start], text[block.end :].removeprefix("\r").removeprefix("\n")
    for newline in ("\r\n", "\n"):
        if head.endswith(newline * 2):
            head = head.removesuffix(newline)
            break
    return _checked(head + tail, _without(before, path))


def holds(text: str, path: Path) -> bool:
    """Whether our block exists. Raises as `put`."""
    _parsed(text)
    return _block(text, path) is not None


def _block(text: str, path: Path) -> _Block | None:
    starts, ends = text.count(BEGIN), text.count(END)
    if not starts and not ends:
        return None
    start = text.find(BEGIN)
    end = text.find(END) + len(END)
    if (starts, ends) != (1, 1) or end < start:
        raise RefusedError("the marks of Holdfast's part were changed", code="cannot_edit")
    inside = _parsed(text[start:end])
    if _without(inside, path) or _table(inside, path) is None:
        raise RefusedError("Holdfast's part of the file holds other lines too", code="cannot_edit")
    return _Block(start, end)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError(f"{error}") from error


def _checked(text: str, expected: dict[str, Any]) -> str:
    try:
        found = _parsed(text)
    except FormatError as error:
        raise RefusedError(f"a table cannot be added at its end ({error.message})", code="cannot_edit") from error
    if found != expected:
        raise RefusedError("the file is laid out so that it cannot be changed by a program", code="cannot_edit")
    return text


def _table(value: dict[str, Any], path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = value
    for name in path:
        inner = None if found is None else found.get(name)
        found = cast("dict[str, Any]", inner) if isinstance(inner, dict) else None
    return found


def _with(value: dict[str, Any], path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The value with a table. Raises `RefusedError` if a parent is no table."""
    first, *rest = path
    if not rest:
        return {**value, first: dict(table)}
    around = value.get(first, {})
    if not isinstance(around, dict):
        raise RefusedError(f"{first} is not a table, and so cannot hold {'.'.join(rest)}", code="in_the_way")
    return {**value, first: _with(cast("dict[str, Any]", around), tuple(rest), table)}


def _without(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """The value without a table, and without parent tables that become empty."""
    first, *rest = path
    if _table(value, path[:-1]) is None or first not in value:
        return value
    inner = _without(value[first], tuple(rest)) if rest else {}
    others = {name: each for name, each in value.items() if name != first}
    return {**others, first: inner} if inner else others


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _literal(value: Any) -> str:
    """A value as TOML writes it. Strings are those of JSON, but that TOML escapes DEL as well."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, cast('list[Any]', value)))}]"
    if isinstance(value, dict):
        members = (f"{_key(name)} = {_literal(each)}" for name, each in cast("dict[str, Any]", value).items())
        return f"{{ {', '.join(members)} }}"
    return json.dumps(value)
