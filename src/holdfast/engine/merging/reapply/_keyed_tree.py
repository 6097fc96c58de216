"""Putting three versions of nested tables together by key, in place in one of them.

A value is a table (a mapping of texts), or anything else, which is compared as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_DEPTH = 100
"""Tables that are nested deeper are compared as a whole."""

_ABSENT = object()


class Clash(Exception):
    """Both sides have changed the same, or the file is not what its name says."""


def merge_into(
    base: Mapping[str, Any],
    ours: MutableMapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    plain: Callable[[Any], Any] = lambda value: value,
    lists: Callable[[tuple[str, ...], Any, Any, Any], bool] | None = None,
    at: tuple[str, ...] = (),
) -> None:
    """Apply the changes from ``base`` to ``theirs`` to ``ours``, table by table.

    ``plain`` returns a value without layout, for comparing. ``lists`` may merge a value that both have changed, in
    place in ours: it receives its position and its three versions, and returns whether it did. Raises `Clash`; ``ours``
    is unusable then.
    """
    for key in dict.fromkeys([*base, *theirs]):
        before, here, there = (side.get(key, _ABSENT) for side in (base, ours, theirs))
        one, two, three = (value if value is _ABSENT else plain(value) for value in (before, here, there))
        if same(three, one) or same(three, two):
            continue
        if same(two, one):
            if there is _ABSENT:
                del ours[key]
            elif len(at) < MOST_DEPTH and all(isinstance(side, Mapping) for side in (before, here, there)):
                # Key by key even so, so that unchanged keys keep their comments.
                _descend(base, ours, theirs, key, plain, lists, at)
            else:
                ours[key] = there
        elif len(at) < MOST_DEPTH and all(isinstance(side, Mapping) for side in (before, here, there)):
            _descend(base, ours, theirs, key, plain, lists, at)
        elif _ABSENT in (before, here, there) or lists is None or not lists((*at, key), before, here, there):
            raise Clash(f"both have changed {'.'.join((*at, key))}")


def _descend(base: Any, ours: Any, theirs: Any, key: str, plain: Any, lists: Any, at: tuple[str, ...]) -> None:
    merge_into(
        cast("Mapping[str, Any]", base[key]),
        cast("MutableMapping[str, Any]", ours[key]),
        cast("Mapping[str, Any]", theirs[key]),
        plain=plain,
        lists=lists,
        at=(*at, key),
    )


def same(one: Any, other: Any) -> bool:
    """Equal in type as well: 1, 1.0 and true are different values; the order of keys does not matter."""
    if one is _ABSENT or other is _ABSENT:
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        first, second = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(one, list) and isinstance(other, list):
        here, there = cast("list[Any]", one), cast("list[Any]", other)
        return len(here) == len(there) and all(map(same, here, there))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return _kind(one) is _kind(other) and one == other


def _kind(value: Any) -> Any:
    return value.__class__
