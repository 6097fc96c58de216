"""Merging JSON by key.

The encoder must be able to reproduce the layout: a file of several lines is accepted only if an encoder with its
indentation writes exactly its bytes. In a file of one line, inconsistent blanks become consistent.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.engine.merging.reapply._keyed_tree import Clash, merge_into
from holdfast.model.fast_namedtuple import NamedTuple

_INDENT = re.compile(r"[\[{]\r?\n([ \t]*)\S")


def merge(base: str, ours: str, theirs: str) -> str:
    """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash`."""
    sides = [read(one) for one in (base, ours, theirs)]
    if not all(isinstance(side, dict) for side in sides):
        raise Clash("it is no JSON object")
    layout = _layout(ours, sides[1])
    merge_into(sides[0], sides[1], sides[2])
    return _write(sides[1], layout)


class _Number(str):
    """A number as it is written: 1.10 stays 1.10."""

    __slots__ = ()


def read(text: str) -> Any:
    """The value without layout; raises `Clash`."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(found)
        if len(table) != len(found):
            raise Clash("a key is there twice")
        return table

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_Number, parse_float=_Number)
    except ValueError as error:
        raise Clash(f"it is no JSON: {error}") from None


class _Layout(NamedTuple):
    """How a file is written."""

    indent: str | None
    """None: all of it is in one line."""
    pad: str
    """Inside the braces of an object in one line."""
    comma: str
    colon: str
    as_is: bool
    """Whether other letters than ASCII are written as such."""
    ending: str
    """The text after the value."""


def _layout(text: str, value: Any) -> _Layout:
    """The layout in which ``value`` is ``text``, or in one line the nearest to that; raises `Clash`."""
    found = _INDENT.match(text)
    ending = text[len(text.rstrip()) :]
    # Single lines as Python's json, JSON.stringify, and people and prettier write them.
    one_line = (("", ", ", ": "), ("", ",", ":"), (" ", ", ", ": "))
    layouts = [
        _Layout(found[1] if found else None, *separators, as_is, ending)
        for separators in ((("", ",", ": "),) if found else one_line)
        for as_is in (True, False)
    ]
    for layout in layouts:
        if _write(value, layout) == text:
            return layout
    if "\n" in text.strip():
        raise Clash("its layout cannot be kept")
    return min(layouts, key=lambda layout: abs(len(_write(value, layout)) - len(text)))


def _write(value: Any, layout: _Layout) -> str:
    """JSON with numbers as they were read."""
    out: list[str] = []
    _add(out, value, layout, "\n")
    return "".join(out) + layout.ending


def _add(out: list[str], value: Any, layout: _Layout, line: str) -> None:
    indent = layout.indent
    if isinstance(value, _Number):
        out.append(str(value))
    elif isinstance(value, (dict, list)) and value:
        table = isinstance(value, dict)
        items = cast("dict[str, Any]", value).items() if table else [(None, item) for item in cast("list[Any]", value)]
        inner = line + (indent or "")
        pad = layout.pad if table else ""
        out.append("{" + pad if table else "[")
        for at, (key, item) in enumerate(items):
            if at:
                out.append(layout.comma)
            if indent is not None:
                out.append(inner)
            if key is not None:
                out.append(json.dumps(key, ensure_ascii=not layout.as_is) + layout.colon)
            _add(out, item, layout, inner)
        if indent is not None:
            out.append(line)
        out.append(pad + "}" if table else "]")
    else:
        out.append(json.dumps(value, ensure_ascii=not layout.as_is))
