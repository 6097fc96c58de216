"""Merging another line of work into a tree: a plan over three states, file by file.

A file that only one side changed gets that side's version. If both changed it, content and permissions are merged
separately, and a renamed file is found under its new name; the rest is a conflict. Content is not read: if both changed
it, that is a conflict for the ladder. Nothing here reads a tree or a store.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast.model.entries import Change, Entry
from holdfast.model.fast_namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.model.command_results import Renamed

T = TypeVar("T")

ConflictKind = Literal[
    "content",
    "mode",
    "type",
    "both_added",
    "deleted_here",
    "deleted_there",
    "renamed_apart",
    "in_the_way",
    "bases",
]
"""Why a file cannot be merged: both sides changed its content, permissions, or type; both added it, differently; one
changed or renamed the file that the other deleted; both renamed it; it is a file on one side and a directory on the
other; or there are several common states, which give different changes.
"""

CONFLICT_TEXTS: dict[ConflictKind, str] = {
    "content": "changed on both sides",
    "mode": "permissions changed on both sides",
    "type": "a file on one side, a link on the other",
    "both_added": "added on both sides",
    "deleted_here": "deleted here, changed there",
    "deleted_there": "changed here, deleted there",
    "renamed_apart": "renamed on both sides",
    "in_the_way": "a file on one side, a directory on the other",
    "bases": "taken over by both sides from each other, and changed since",
}
"""The same for people."""

Prefer = Literal["ours", "theirs"]


class Decision(NamedTuple):
    """The decision about one conflict."""

    prefer: Prefer | None = None
    """This side's version."""
    entry: Entry | None = None
    """Without ``prefer``: the file's entry, None for no file."""


class SideChanges(NamedTuple):
    """One side's changes since the base; a renamed file is only in ``renamed``, as in `Diff`."""

    changes: Sequence[Change]
    renamed: Sequence[Renamed] = ()


class MergeConflict(NamedTuple):
    """A file that both sides have changed, so that only a person can decide."""

    path: bytes
    """Where it is here, or was."""
    there: bytes
    """Where it is on the other side, or was: the same path, unless it was renamed."""
    why: ConflictKind

    @property
    def reason(self) -> str:
        """Why, for people."""
        return CONFLICT_TEXTS[self.why]

    def merged_path(self, base: bytes) -> bytes:
        """The path of the result for a file that was at ``base`` when the lines parted: its new name."""
        return self.there if self.path == base else self.path


class ThreeWayPlan(NamedTuple):
    """How the merged state differs from ours."""

    changes: Sequence[Change]
    """From ours to the merged state, sorted by path, without conflicts."""
    conflicts: Sequence[MergeConflict]
    """Open conflicts, sorted by path."""
    settled: Sequence[MergeConflict] = ()
    """Conflicts with a decision."""


def plan(ours: SideChanges, theirs: SideChanges, *, settled: Mapping[bytes, Decision] | None = None) -> ThreeWayPlan:
    """The plan of merging ``theirs`` into ``ours``, both relative to the same base.

    ``settled`` decides conflicts, by the path of the result (see `MergeConflict.merged_path`), except those between a
    file and a directory.
    """
    return _Merge(ours, theirs, settled or {}).plan()


def merged_entry(base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | ConflictKind | None:
    """The merged entry of one path (None: no file), or the kind of conflict."""
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    if base is None:
        return "both_added"
    if ours is None or theirs is None:
        return "deleted_here" if ours is None else "deleted_there"
    if len({base.is_symlink, ours.is_symlink, theirs.is_symlink}) > 1:
        return "type"
    content = _pick((base.hash, base.size), (ours.hash, ours.size), (theirs.hash, theirs.size))
    mode = _pick(base.mode, ours.mode, theirs.mode)
    if content is None or mode is None:
        return "content" if content is None else "mode"
    return Entry(*content, mode)


def _pick(base: T, ours: T, theirs: T) -> T | None:
    """The value that differs from the base; None if both do, and from each other."""
    if theirs in (base, ours):
        return ours
    return theirs if ours == base else None


class _Merge:
    """One plan in the making."""

    def __init__(self, ours: SideChanges, theirs: SideChanges, settled: Mapping[bytes, Decision]) -> None:
        self._ours, self._our_names = changes_by_path(ours), {one.before_path: one for one in ours.renamed}
        self._theirs, self._their_names = changes_by_path(theirs), {one.before_path: one for one in theirs.renamed}
        self._by_hand = settled
        self._here: dict[bytes, Entry | None] = {path: change.before for path, change in self._theirs.items()}
        """Our entry at every path that either side touched."""
        self._here |= {path: change.after for path, change in self._ours.items()}
        self._merged = dict(self._here)
        """The merged entries; ours, until they are decided."""
        self._decided: set[bytes] = set()
        self._conflicts: list[MergeConflict] = []
        self._settled: list[MergeConflict] = []

    def plan(self) -> ThreeWayPlan:
        for path in sorted(self._their_names.keys() & self._ours.keys()):
            self._renamed_there(path)
        for path in sorted(self._our_names.keys() & self._theirs.keys() - self._decided):
            self._renamed_here(path)
        for path in self._theirs.keys() - self._decided:
            base = self._theirs[path].before
            self._decide(path, merged_entry(base, self._here[path], self._theirs[path].after))
        self._clear_the_way()
        here = self._here
        changes = [Change(path, here[path], entry) for path, entry in self._merged.items() if here[path] != entry]
        return ThreeWayPlan(sorted(changes), sorted(self._conflicts), sorted(self._settled))

    def _their(self, path: bytes) -> Entry | None:
        """Their entry at ``path``, which one of the sides has touched."""
        change = self._theirs.get(path)
        return self._ours[path].before if change is None else change.after

    def _renamed_there(self, path: bytes) -> None:
        """They renamed our file from ``path``, and we have changed it.

        If a side has another file under the other's new name, the paths are merged separately, so that none replaces
        the other.
        """
        there = self._their_names[path]
        here = self._our_names.get(path)
        same = here is not None and here.path == there.path
        if not same and (there.path in self._ours or (here is not None and here.path in self._theirs)):
            return
        if here is not None and not same:
            self._conflict(MergeConflict(here.path, there.path, "renamed_apart"), path)
        elif here is not None:
            self._decide(there.path, merged_entry(there.before, here.after, there.after))
            self._decided.add(path)
        elif (ours := self._ours[path].after) is None:
            self._conflict(MergeConflict(path, there.path, "deleted_here"), path)
        else:
            self._follow(path, there.path, path, merged_entry(there.before, ours, there.after))

    def _renamed_here(self, path: bytes) -> None:
        """We renamed a file from ``path`` that they have changed; see `_renamed_there`."""
        here = self._our_names[path]
        theirs = self._theirs[path].after
        if here.path in self._theirs:
            return
        if theirs is None:
            self._conflict(MergeConflict(here.path, path, "deleted_there"), path)
        else:
            self._follow(here.path, here.path, path, merged_entry(here.before, here.after, theirs))

    def _follow(self, ours: bytes, to: bytes, there: bytes, found: Entry | ConflictKind | None) -> None:
        """Put the result for a renamed file at its path."""
        if isinstance(found, str):
            self._conflict(MergeConflict(ours, to if to != ours else there, found), there)
            return
        if to != ours:
            self._merged[ours] = None
        self._merged[to] = found
        self._decided |= {ours, to, there}

    def _decide(self, path: bytes, found: Entry | ConflictKind | None) -> None:
        self._decided.add(path)
        if isinstance(found, str):
            self._conflict(MergeConflict(path, path, found), path)
        else:
            self._merged[path] = found

    def _conflict(self, conflict: MergeConflict, base: bytes) -> None:
        paths = {conflict.path, conflict.there, base}
        self._decided |= paths
        landing = conflict.merged_path(base)
        settled = self._by_hand.get(landing)
        for path in paths & self._merged.keys():
            self._merged[path] = (
                self._their(path) if settled is not None and settled.prefer == "theirs" else self._here[path]
            )
        if settled is not None and settled.prefer is None:
            for path in {conflict.path, base} & self._merged.keys():
                self._merged[path] = None
            self._merged[landing] = settled.entry
        (self._conflicts if settled is None else self._settled).append(conflict)

    def _clear_the_way(self) -> None:
        """No file may be where the merged state has a directory: of such two, ours stays."""
        # Only new paths can conflict with others: either side alone is a valid tree.
        new = sorted(path for path, entry in self._merged.items() if entry is not None and self._here[path] is None)
        if not new:
            return
        held = sorted(path for path, entry in self._merged.items() if entry is not None)
        there = set(held)
        for path in new:
            clashing = [other for other in (*_above(path), *_below(path, held)) if other in there]
            if clashing:
                there.discard(path)
                self._merged[path] = None
                self._conflicts.append(MergeConflict(clashing[0], path, "in_the_way"))


def changes_by_path(side: SideChanges) -> dict[bytes, Change]:
    """A side's changes by path, a rename as a deletion and an addition."""
    changes = [(change.path, change) for change in side.changes]
    changes += [(one.before_path, Change(one.before_path, one.before, None)) for one in side.renamed]
    changes += [(one.path, Change(one.path, None, one.after)) for one in side.renamed]
    return dict(changes)


def _above(path: bytes) -> Iterator[bytes]:
    """The parent directories of ``path``."""
    while (cut := path.rfind(b"/")) >= 0:
        path = path[:cut]
        yield path


def _below(path: bytes, held: Sequence[bytes]) -> Iterable[bytes]:
    """The paths in ``held``, which is sorted, that are below ``path``."""
    at = bisect_left(held, path + b"/")
    while at < len(held) and held[at].startswith(path + b"/"):
        yield held[at]
        at += 1
