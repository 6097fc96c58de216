"""TOML, put together by key with tomlkit, which keeps comments and layout."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from holdfast.engine.merging.reapply import _keyed_tree as keyed_tree
from holdfast.engine.merging.reapply._keyed_tree import Clash, merge_into
from holdfast.engine.merging.reapply._requirements import key, merge_lines

_DEPENDENCIES = ("dependencies", "optional-dependencies", "dependency-groups", "requires")


def merge(base: str, ours: str, theirs: str) -> str:
    """``ours`` with what ``theirs`` has changed in ``base``; raises `Clash`."""
    # The library is optional, and its types would not help here.
    tomlkit: Any = import_module("tomlkit")
    wrong: type[Exception] = import_module("tomlkit.exceptions").TOMLKitError
    try:
        sides: list[Any] = [tomlkit.parse(text) for text in (base, ours, theirs)]
    except wrong as error:
        raise Clash(f"it is no TOML: {error}") from None
    if tomlkit.dumps(sides[1]) != ours:
        raise Clash("its layout cannot be kept")
    plain = [side.unwrap() for side in sides]
    expected = _expected(*plain)
    try:
        merge_into(sides[0], sides[1], sides[2], plain=_plain, lists=_lists)
        found: str = tomlkit.dumps(sides[1])
        if not keyed_tree.same(tomlkit.parse(found).unwrap(), expected):
            raise Clash("it cannot be put together in its layout")
    except (wrong, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Clash(f"it cannot be put together in its layout: {error}") from None
    return found


def read(text: str) -> Any:
    """The value without layout; raises `Clash`."""
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise Clash(f"it is no TOML: {error}") from None


def _expected(base: Any, ours: Any, theirs: Any) -> Any:
    """The expected result, without layout."""
    merge_into(base, ours, theirs, lists=_lists)
    return ours


def _plain(value: Any) -> Any:
    return value.unwrap() if hasattr(value, "unwrap") else value


def _lists(at: tuple[str, ...], base: Any, ours: Any, theirs: Any) -> bool:
    """Put a list of dependencies together, if it is one."""
    lists = [_plain(side) for side in (base, ours, theirs)]
    if not any(part in _DEPENDENCIES for part in at) or not all(isinstance(one, list) for one in lists):
        return False
    if not all(isinstance(item, str) and key(item) is not None for one in lists for item in cast("list[Any]", one)):
        return False
    merged = merge_lines(*lists)
    there = list(ours)
    for item in there:
        if item not in merged:
            at_ = [str(one) for one in ours].index(str(item))
            name = key(str(item))
            instead = next((one for one in merged if key(one) == name), None)
            if instead is None:
                del ours[at_]
            else:
                ours[at_] = instead
    for place, item in enumerate(merged):
        if item not in [str(one) for one in ours]:
            ours.insert(place, item)
    return [str(one) for one in ours] == merged
