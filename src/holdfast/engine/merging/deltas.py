"""Differences between two states, with renames, and stacks of changesets between them, cached while the process runs.

A server of many merges needs the same ones again and again: production's differences from the state that forks began
at, and the forks' own. The key of a difference is both manifests' roots, that of a stack the hash of its stored
changesets, so the cache is never out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.engine.diffs.tree_diff import DiffContents, diff
from holdfast.engine.history.status import only_uncaptured_paths
from holdfast.engine.merging.three_way import SideChanges, changes_by_path
from holdfast.model.command_results import Diff
from holdfast.model.errors import RefusedError
from holdfast.model.ids import hash_bytes
from holdfast.store.codecs.changeset import decode_changeset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog.merge_parents import Lineage

MOST_CHANGES = 200_000
"""The most changes in the cache of differences, and in that of stacks."""

_T = TypeVar("_T")
_Stack = list[list["Change"]]


class _Cache(Generic[_T]):
    """The last used values; ``size`` counts the changes in one. Thread-safe."""

    def __init__(self, size: Callable[[_T], int]) -> None:
        self._lock = Lock()
        self._found: OrderedDict[tuple[object, ...], _T] = OrderedDict()
        self._size = size
        self._changes = 0

    def get(self, key: tuple[object, ...]) -> _T | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: tuple[object, ...], value: _T) -> None:
        with self._lock:
            if key not in self._found:
                self._found[key] = value
                self._changes += self._size(value)
            while self._changes > MOST_CHANGES:
                _, dropped = self._found.popitem(last=False)
                self._changes -= self._size(dropped)

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._changes = 0


_SIDES = _Cache[SideChanges](lambda side: 1 + len(side.changes) + len(side.renamed))
_STACKS = _Cache[_Stack](lambda stack: 1 + sum(map(len, stack)))


def clear_caches() -> None:
    """Forget everything, as a test or a measurement wants it."""
    _SIDES.clear()
    _STACKS.clear()


def decode_stack(tenant: str, changesets: Sequence[bytes]) -> _Stack:
    """`decode_changeset` of each; not to be changed, as others are given the same."""
    key = tenant, hash_bytes(b"".join(map(hash_bytes, changesets)))
    found = _STACKS.get(key)
    if found is None:
        found = [decode_changeset(one) for one in changesets]
        _STACKS.put(key, found)
    return found


def compare(
    context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change] | None = None
) -> SideChanges:
    """How ``target`` differs from ``base``, renames told apart; ``changes`` if they are known except for those.

    Raises `NotFoundError` for a checkpoint that was forgotten.
    """
    catalog = context.catalog
    roots = catalog.checkpoint(base).root, catalog.checkpoint(target).root
    key = (context.store.tenant, *roots)
    found = _SIDES.get(key)
    if found is None:
        if changes is None:
            made = diff(context, base, target)
            found = SideChanges(made.changes, made.renamed)
        else:
            found = _detect_renames(context, base, target, changes)
        _SIDES.put(key, found)
    return found


def compare_fork(
    context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change] | None = None
) -> tuple[SideChanges, frozenset[bytes]]:
    """A fork's changes, as `compare`, and the paths that it stopped capturing, which are no changes."""
    found = compare(context, base, target, changes)
    all_ = _all_changes(found)
    spared = only_uncaptured_paths(context, target, all_)
    if spared:
        found = _detect_renames(context, base, target, [one for one in all_ if one.path not in spared])
    return found, spared


def compare_production(context: Context, base: CheckpointId, target: CheckpointId) -> SideChanges:
    """Production's changes, as `compare`. A path that it stopped capturing was not renamed: otherwise a fork's change
    to it would go to another file.
    """
    found = compare(context, base, target)
    if not found.renamed:
        return found
    all_ = _all_changes(found)
    kept = only_uncaptured_paths(context, target, all_)
    if not any(one.before_path in kept for one in found.renamed):
        return found
    rest = _detect_renames(context, base, target, [one for one in all_ if one.path not in kept])
    return SideChanges(sorted([*rest.changes, *(one for one in all_ if one.path in kept)]), rest.renamed)


def _all_changes(found: SideChanges) -> list[Change]:
    return sorted(changes_by_path(found).values())


def _detect_renames(
    context: Context, base: CheckpointId, target: CheckpointId, changes: Sequence[Change]
) -> SideChanges:
    if not any(one.before is None for one in changes) or not any(one.after is None for one in changes):
        return SideChanges(changes)
    from holdfast.engine.diffs.renames import detect

    return SideChanges(*detect(changes, DiffContents(context, Diff(base, target, changes, [], 0)).read_small))


def find_bases(
    context: Context, ours: CheckpointId, theirs: CheckpointId, line: Lineage | None = None
) -> list[CheckpointId]:
    """The newest states whose work both have, last recorded first; ``line`` is the lineage of ``theirs``.

    Usually one: the state where they parted, or one that a side has merged since. Several if each has merged a part of
    the other. Raises `RefusedError` (code ``unrelated``) if there is none, or it was forgotten.
    """
    from holdfast.store.catalog.merge_parents import newest_common

    catalog = context.catalog
    found = newest_common(catalog.lineage(theirs) if line is None else line, catalog.lineage(ours))
    if not found:
        raise RefusedError(
            "the two have no state in common, so Holdfast cannot tell the changes of either",
            hint="merge a fork into its origin, or into another fork of that origin",
            code="unrelated",
        )
    return found
