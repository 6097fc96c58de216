"""JSON, put together by key.

There is no layout to keep but what an encoder gives: a file is taken only if one that indents as it does writes exactly
its bytes again.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from holdfast.engine.merging.reapply._keyed_tree import Clash, merge_into

_INDENT = re.compile(r"[\[{]\r?\n([ \t]*)\S")


def merge(base: str, ours: str, theirs: str) -> str:
    """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash`."""
    sides = [read(one) for one in (base, ours, theirs)]
    if not all(isinstance(side, dict) for side in sides):
        raise Clash("it is no JSON object")
    layout = _layout(ours, sides[1])
    merge_into(sides[0], sides[1], sides[2])
    return _write(sides[1], *layout)


class _Number(str):
    """A number as it is written: 1.10 stays 1.10."""

    __slots__ = ()


def read(text: str) -> Any:
    """What it says, without layout; raises `Clash`."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(found)
        if len(table) != len(found):
            raise Clash("a key is there twice")
        return table

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=_Number, parse_float=_Number)
    except ValueError as error:
        raise Clash(f"it is no JSON: {error}") from None


def _layout(text: str, value: Any) -> tuple[str | None, bool, str]:
    """Indentation, whether other letters than ASCII are written as such, and what is behind it all."""
    found = _INDENT.match(text)
    indent = found[1] if found else None
    ending = text[len(text.rstrip()) :]
    for as_is in (True, False):
        if _write(value, indent, as_is, ending) == text:
            return indent, as_is, ending
    raise Clash("its layout cannot be kept")


def _write(value: Any, indent: str | None, as_is: bool, ending: str) -> str:
    """JSON with numbers as they were read; without indentation as `json.dumps` writes it."""
    out: list[str] = []
    _add(out, value, indent, as_is, "\n")
    return "".join(out) + ending


def _add(out: list[str], value: Any, indent: str | None, as_is: bool, line: str) -> None:
    if isinstance(value, _Number):
        out.append(str(value))
    elif isinstance(value, (dict, list)) and value:
        table = isinstance(value, dict)
        items = cast("dict[str, Any]", value).items() if table else [(None, item) for item in cast("list[Any]", value)]
        inner = line + (indent or "")
        out.append("{" if table else "[")
        for at, (key, item) in enumerate(items):
            if at:
                out.append("," if indent is not None else ", ")
            if indent is not None:
                out.append(inner)
            if key is not None:
                out.append(json.dumps(key, ensure_ascii=not as_is) + ": ")
            _add(out, item, indent, as_is, inner)
        if indent is not None:
            out.append(line)
        out.append("}" if table else "]")
    else:
        out.append(json.dumps(value, ensure_ascii=not as_is))
