"""What is to become of a tree when another line of work is merged into it: a plan over three states, file by file.

A file that one side alone has changed is as that side has it. Where both have, content and permissions are looked at
one by one, and a file that one side has renamed is met under its new name; whatever is left is a conflict. Content is
not looked at: where both have changed it, that is a conflict, for the ladder to settle. Nothing here reads a tree or a
store.
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
"""Why something cannot be merged: both have changed the content, the permissions, or the type of it; both have added
it, and not the same; one has changed or renamed what the other has deleted; both have renamed it; what is a file on one
side is a directory on the other; the two have several states in common, and it depends on which of them is looked at
what has changed."""

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
    """What was decided of one conflict."""

    prefer: Prefer | None = None
    """As this side has it, whatever that is."""
    entry: Entry | None = None
    """Without ``prefer``: what the file is to be, None for no file."""


class SideChanges(NamedTuple):
    """What one side has done since the base; a renamed file is in ``renamed`` alone, as `Diff` has it."""

    changes: Sequence[Change]
    renamed: Sequence[Renamed] = ()


class MergeConflict(NamedTuple):
    """A file that both sides have changed, so that only a person can say what is to become of it."""

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
        """Where what becomes of it is to be, if it was at ``base`` when the two parted: under its new name."""
        return self.there if self.path == base else self.path


class ThreeWayPlan(NamedTuple):
    """How the merged state differs from ours."""

    changes: Sequence[Change]
    """From ours to the merged state, sorted by path; nothing for what is in conflict."""
    conflicts: Sequence[MergeConflict]
    """Sorted by path. Those that were settled are not among them."""
    settled: Sequence[MergeConflict] = ()
    """Those that were."""


def plan(ours: SideChanges, theirs: SideChanges, *, settled: Mapping[bytes, Decision] | None = None) -> ThreeWayPlan:
    """What merging ``theirs`` into ``ours`` would do, both sides against the same base.

    ``settled`` decides conflicts, by the path at which they land (see `MergeConflict.merged_path`), but for a file
    where the other side has a directory.
    """
    return _Merge(ours, theirs, settled or {}).plan()


def merged_entry(base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | ConflictKind | None:
    """What one path is to hold (None: nothing), or why that cannot be told."""
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
    """The one that differs from the base; None if both do, and from each other."""
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
        """What is here at every path that either side touched."""
        self._here |= {path: change.after for path, change in self._ours.items()}
        self._merged = dict(self._here)
        """What it is to hold; as it is here, until it is decided."""
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
        """What is at ``path`` there; one of the sides has touched it."""
        change = self._theirs.get(path)
        return self._ours[path].before if change is None else change.after

    def _renamed_there(self, path: bytes) -> None:
        """They have renamed what stands, or stood, at ``path``, and we have changed it.

        Where either has put something else under the other's new name, each path is for itself: nothing may take that
        one's place.
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
        """We have renamed what they have changed at ``path``; see `_renamed_there`."""
        here = self._our_names[path]
        theirs = self._theirs[path].after
        if here.path in self._theirs:
            return
        if theirs is None:
            self._conflict(MergeConflict(here.path, path, "deleted_there"), path)
        else:
            self._follow(here.path, here.path, path, merged_entry(here.before, here.after, theirs))

    def _follow(self, ours: bytes, to: bytes, there: bytes, found: Entry | ConflictKind | None) -> None:
        """Put what becomes of a file that one side has renamed where it is to be."""
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
        # Only what comes anew can be in the way of anything: either side by itself is a sound tree.
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
    """What a side has done, a rename as a deletion and an addition."""
    changes = [(change.path, change) for change in side.changes]
    changes += [(one.before_path, Change(one.before_path, one.before, None)) for one in side.renamed]
    changes += [(one.path, Change(one.path, None, one.after)) for one in side.renamed]
    return dict(changes)


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that ``path`` lies in."""
    while (cut := path.rfind(b"/")) >= 0:
        path = path[:cut]
        yield path


def _below(path: bytes, held: Sequence[bytes]) -> Iterable[bytes]:
    """What of ``held``, which is sorted, lies below ``path``."""
    at = bisect_left(held, path + b"/")
    while at < len(held) and held[at].startswith(path + b"/"):
        yield held[at]
        at += 1
