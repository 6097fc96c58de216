"""YAML, put together by key with ruamel.yaml, which keeps comments, quotes and the order of keys."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import Any, cast

from holdfast.engine.merging.reapply import _keyed_tree as keyed_tree
from holdfast.engine.merging.reapply._keyed_tree import Clash, merge_into

_MOST_BYTES = 256 << 10
"""Some hundred kilobytes take a second."""


def merge(base: str, ours: str, theirs: str) -> str:
    """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash`."""
    if any(len(text) > _MOST_BYTES for text in (base, ours, theirs)):
        raise Clash("it is too large to be read as YAML")
    if any("&" in text or "<<:" in text for text in (base, ours, theirs)):
        raise Clash("it may have anchors, so that a value can stand in several places")
    # The library is optional, and its types would not help here.
    wrong: type[Exception] = import_module("ruamel.yaml.error").YAMLError
    try:
        sides = [_read(_layout(ours), text) for text in (base, ours, theirs)]
        plain = [_read(_yaml(typ="safe"), text) for text in (base, ours, theirs)]
        if not all(isinstance(side, dict) for side in plain):
            raise Clash("it is no mapping")
        merge_into(plain[0], plain[1], plain[2])
        merge_into(sides[0], sides[1], sides[2], plain=_plain)
        found = _write(_layout(ours), sides[1])
        if not keyed_tree.same(_read(_yaml(typ="safe"), found), plain[1]):
            raise Clash("it cannot be put together in its layout")
    except (wrong, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Clash(f"it cannot be put together: {type(error).__name__}") from None
    return found


def read(text: str) -> Any:
    """The value without layout; raises `Clash`."""
    wrong: type[Exception] = import_module("ruamel.yaml.error").YAMLError
    try:
        return _read(_yaml(typ="safe"), text)
    except (wrong, ValueError, TypeError) as error:
        raise Clash(f"it is no YAML: {type(error).__name__}") from None


def _yaml(**options: str) -> Any:
    return import_module("ruamel.yaml").YAML(pure=True, **options)


def _layout(text: str) -> Any:
    """A reader and writer that writes exactly ``text`` again."""
    for mapping, sequence, offset in ((2, 4, 2), (2, 2, 0), (4, 4, 2), (4, 6, 4), (4, 4, 0)):
        yaml = _yaml()
        yaml.preserve_quotes = True
        yaml.width = 1 << 20
        yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
        yaml.explicit_start = text.startswith("---")
        if _write(yaml, _read(yaml, text)) == text:
            return yaml
    raise Clash("its layout cannot be kept")


def _read(yaml: Any, text: str) -> Any:
    return yaml.load(text)  # a round-trip or safe loader, which makes plain values only


def _write(yaml: Any, value: Any) -> str:
    out = StringIO()
    yaml.dump(value, out)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """Without layout."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
