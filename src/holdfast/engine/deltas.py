"""What two states differ in, renames told apart, remembered for as long as the process runs.

Whoever serves many merges asks for the same difference again and again: that of a production and the state that forks
were made from. It is named by the roots of both manifests, so that what is remembered is never out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.engine.diff import Contents, diff
from holdfast.engine.results import Diff
from holdfast.engine.threeway import Side, by_path
from holdfast.engine.uncaptured import only_uncaptured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId, Hash

MOST_CHANGES = 200_000
"""So many changes are remembered at most, of all differences together."""

_Key = tuple[str, "Hash", "Hash"]


class _Remembered:
    """The differences that were asked for last. For several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sides: OrderedDict[_Key, Side] = OrderedDict()
        self._changes = 0

    def get(self, key: _Key) -> Side | None:
        with self._lock:
            found = self._sides.get(key)
            if found is not None:
                self._sides.move_to_end(key)
            return found

    def put(self, key: _Key, side: Side) -> None:
        with self._lock:
            if key not in self._sides:
                self._sides[key] = side
                self._changes += _size(side)
            while self._changes > MOST_CHANGES:
                _, dropped = self._sides.popitem(last=False)
                self._changes -= _size(dropped)

    def clear(self) -> None:
        with self._lock:
            self._sides.clear()
            self._changes = 0


def _size(side: Side) -> int:
    return 1 + len(side.changes) + len(side.renamed)


_REMEMBERED = _Remembered()


def forget_all() -> None:
    """Forget every difference, as a test or a measurement wants it."""
    _REMEMBERED.clear()


def side(context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change] | None = None) -> Side:
    """How ``target`` differs from ``base``, renames told apart; ``changes`` if that is known but for those.

    Raises `NotFoundError` for a checkpoint that was forgotten.
    """
    catalog = context.catalog
    roots = catalog.checkpoint(base).root, catalog.checkpoint(target).root
    key = (context.store.tenant, *roots)
    found = _REMEMBERED.get(key)
    if found is None:
        if changes is None:
            made = diff(context, base, target)
            found = Side(made.changes, made.renamed)
        else:
            found = _told_apart(context, base, target, changes)
        _REMEMBERED.put(key, found)
    return found


def fork_side(
    context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change] | None = None
) -> tuple[Side, frozenset[bytes]]:
    """What a fork has done, as `side`, and the paths that it captures no more, of which it has done nothing."""
    found = side(context, base, target, changes)
    all_ = _all(found)
    spared = only_uncaptured(context, target, all_)
    if spared:
        found = _told_apart(context, base, target, [one for one in all_ if one.path not in spared])
    return found, spared


def production_side(context: Context, base: CheckpointId, target: CheckpointId) -> Side:
    """What production has done, as `side`. What it captures no more has gone nowhere: nothing is taken for its new
    name, so that what a fork has done to it is not brought to another file.
    """
    found = side(context, base, target)
    if not found.renamed:
        return found
    all_ = _all(found)
    kept = only_uncaptured(context, target, all_)
    if not any(one.before_path in kept for one in found.renamed):
        return found
    rest = _told_apart(context, base, target, [one for one in all_ if one.path not in kept])
    return Side(sorted([*rest.changes, *(one for one in all_ if one.path in kept)]), rest.renamed)


def _all(found: Side) -> list[Change]:
    return sorted(by_path(found).values())


def _told_apart(context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change]) -> Side:
    if not any(one.before is None for one in changes) or not any(one.after is None for one in changes):
        return Side(changes)
    from holdfast.engine.renames import detect

    return Side(*detect(changes, Contents(context, Diff(base, target, changes, [], 0)).read_small))
