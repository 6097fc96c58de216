"""What is to become of each file when a fork's stack of small changes comes onto a production that has gone on.

The classification of a stacked merge (docs/guide/merge.md has the table): per file, by what either side has made of it
since the fork point, and per changeset of the fork. Where nobody else has touched a file, its last version counts, and
no state in between is looked at; for one that both have changed, the small changes that led to the fork's version are
told one by one, so that each can be applied anew. Pure: nothing here reads a tree or a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.engine.merging import threeway
from holdfast.model.entries import Change, Entry
from holdfast.model.ids import Hash, hash_bytes
from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.engine.merging.threeway import Conflict, Plan, Prefer, Settled, Side, Why

Kind = Literal["one_sided", "clean", "identical", "overlapping"]
"""What becomes of a file: one side alone has touched it, and has its way; both have, in ways that do not meet (content
here, permissions or the name there), and each has its way; both have done the same; both have changed the same of it,
so that the fork's changes are to be applied anew."""

Who = Literal["fork", "production", "both"]

_Versions = dict[bytes, "list[tuple[int, Entry | None]]"]
"""By path: which changesets have touched it, and what it was after each."""

_NOTHING: tuple[Hash, int] = (Hash(b""), -1)


class Filed(NamedTuple):
    """One path that somebody has touched."""

    path: bytes
    kind: Kind
    by: Who
    existed: bool
    """Whether it was there at the fork point."""


class Small(NamedTuple):
    """What one changeset of the fork has done to one file."""

    number: int
    """Which changeset, from 1, the oldest first. 0: all of them at once."""
    before: Entry | None
    after: Entry | None


class Overlap(NamedTuple):
    """A file that both sides have changed, in ways that meet."""

    path: bytes
    """Where what becomes of it is to be: under its new name, if one side has renamed it."""
    conflict: Conflict
    base_path: bytes
    base: Entry | None
    """What it was at the fork point; None if it was not there."""
    production: Entry | None
    fork: Entry | None
    small: Sequence[Small]
    """The changes of its content on the fork, the oldest first: one, `whole`, if they cannot be told apart."""
    numbers: Sequence[int]
    """Which changesets have touched it."""

    @property
    def why(self) -> Why:
        """In which way both have changed it."""
        return self.conflict.why

    @property
    def whole(self) -> Small:
        """All that the fork has done to it, as one."""
        return Small(0, self.base, self.fork)

    @property
    def mode(self) -> int | None:
        """What its permissions are to be; None if both sides have changed them, and not to the same."""
        sides = [side for side in (self.production, self.fork) if side is not None]
        if len(sides) == 1 or self.base is None:
            return sides[0].mode if len({side.mode for side in sides}) == 1 else None
        ours, theirs = sides[0].mode, sides[1].mode
        return ours if theirs in (ours, self.base.mode) else theirs if ours == self.base.mode else None

    @property
    def is_applicable(self) -> bool:
        """True if new content is all that is wanted, so that the fork's changes can be applied anew."""
        if self.why not in ("content", "both_added", "deleted_here", "deleted_there") or self.mode is None:
            return False
        return not any(side is not None and side.is_symlink for side in (self.base, self.production, self.fork))

    @property
    def version(self) -> str:
        """What an answer must have been made for, to be taken: 32 hex digits that change with either side."""
        sides = (self.base, self.production, self.fork)
        parts = [
            b"-" if side is None else b"%b %d %o" % (side.hash.hex().encode(), side.size, side.mode) for side in sides
        ]
        return hash_bytes(b"\n".join((self.path, *parts))).hex()


class Stacked(NamedTuple):
    """What would become of production."""

    plan: Plan
    """How the merged state differs from production, and what is in conflict."""
    files: Sequence[Filed]
    """Every path that somebody has touched, sorted."""
    overlaps: Sequence[Overlap]
    """Those that overlap, sorted; with what was settled already."""
    sets: Sequence[Sequence[tuple[bytes, Kind]]]
    """By changeset, the oldest first: what becomes of each path that it has touched."""


def final(stack: Sequence[Sequence[Change]]) -> list[Change]:
    """What a stack of changesets (the newest last) has done in all, sorted by path.

    From the last to the first: of each path the latest version is kept, and what it was before the earliest. A path
    that ends as it began is not in it.
    """
    last: dict[bytes, Change] = {}
    for changes in reversed(stack):
        for change in changes:
            later = last.get(change.path)
            last[change.path] = change if later is None else Change(change.path, change.before, later.after)
    return [last[path] for path in sorted(last) if last[path].before != last[path].after]


def classify(
    production: Side,
    fork: Side,
    stack: Sequence[Sequence[Change]],
    *,
    prefer: Prefer | None = None,
    settled: Mapping[bytes, Settled] | None = None,
) -> Stacked:
    """What becomes of each file; both sides are against the fork point, and ``stack`` leads from there to ``fork``.

    ``prefer`` and ``settled`` as `threeway.plan` has them.
    """
    plan = threeway.plan(production, fork, prefer=prefer, settled=settled)
    ours, theirs = threeway.by_path(production), threeway.by_path(fork)
    conflicts = [*plan.conflicts, *plan.settled]
    our_names = {one.path: one.before_path for one in production.renamed}
    their_names = {one.path: one.before_path for one in fork.renamed}
    versions = _versions(stack) if conflicts else {}
    overlaps: list[Overlap] = []
    overlapping: set[bytes] = set()
    for conflict in conflicts:
        base = conflict.path
        if conflict.why != "both_added":
            base = our_names.get(conflict.path) or their_names.get(conflict.there) or base
        overlapping |= {path for path in (conflict.path, conflict.there, base) if path in ours or path in theirs}
        overlaps.append(_overlap(conflict, base, ours, theirs, versions))
    merged = {change.path: change.after for change in plan.changes}
    kinds: dict[bytes, Filed] = {}
    for path in sorted(ours.keys() | theirs.keys()):
        kinds[path] = _filed(path, ours.get(path), theirs.get(path), merged, path in overlapping)
    sets: list[list[tuple[bytes, Kind]]] = [
        [(change.path, kinds[change.path].kind) for change in changes if change.path in kinds] for changes in stack
    ]
    return Stacked(plan, list(kinds.values()), sorted(overlaps, key=lambda one: one.path), sets)


def not_deleted(paths: Iterable[bytes], side: Side) -> list[bytes]:
    """Those of ``paths``, which were there at the fork point, that ``side`` has left where they were; sorted."""
    changes = threeway.by_path(side)
    return sorted(path for path in paths if path not in changes or changes[path].after is not None)


def _filed(
    path: bytes,
    ours: Change | None,
    theirs: Change | None,
    merged: Mapping[bytes, Entry | None],
    overlapping: bool,
) -> Filed:
    by: Who = "both" if ours and theirs else "production" if ours else "fork"
    existed = (ours or theirs or Change(path, None, None)).before is not None
    if overlapping:
        return Filed(path, "overlapping", by, existed)
    here = ours.after if ours else theirs.before if theirs else None
    found = merged.get(path, here)
    if ours and theirs:
        return Filed(path, "identical" if ours.after == theirs.after else "clean", by, existed)
    wanted = here if ours else theirs.after if theirs else None
    return Filed(path, "one_sided" if found == wanted else "clean", by, existed)


def _overlap(
    conflict: Conflict,
    base: bytes,
    ours: Mapping[bytes, Change],
    theirs: Mapping[bytes, Change],
    versions: _Versions,
) -> Overlap:
    began = _before(base, ours, theirs)
    production, fork = _after(conflict.path, ours, theirs), _after(conflict.there, theirs, ours)
    touched: dict[int, list[Entry | None]] = {}
    for path in dict.fromkeys((conflict.there, base)):
        for number, after in versions.get(path, ()):
            touched.setdefault(number, []).append(after)
    return Overlap(
        path=conflict.landing(base),
        conflict=conflict,
        base_path=base,
        base=began,
        production=production,
        fork=fork,
        small=_small(began, fork, touched),
        numbers=sorted(touched),
    )


def _small(base: Entry | None, fork: Entry | None, touched: Mapping[int, Sequence[Entry | None]]) -> list[Small]:
    """The changes of a file's content that lead from ``base`` to ``fork``; ``touched`` has by changeset what it was
    after that, under its new name and under its old one.
    """
    found: list[Small] = []
    now = base
    for number in sorted(touched):
        after = next((one for one in touched[number] if one is not None), None)
        if _content(after) != _content(now):
            found.append(Small(number, now, after))
        now = after
    return found if found and _content(now) == _content(fork) else [Small(0, base, fork)]


def _versions(stack: Sequence[Sequence[Change]]) -> _Versions:
    found: _Versions = {}
    for number, changes in enumerate(stack, 1):
        for change in changes:
            found.setdefault(change.path, []).append((number, change.after))
    return found


def _content(entry: Entry | None) -> tuple[Hash, int]:
    return _NOTHING if entry is None else (entry.hash, entry.size)


def _before(path: bytes, ours: Mapping[bytes, Change], theirs: Mapping[bytes, Change]) -> Entry | None:
    change = ours.get(path) or theirs.get(path)
    return None if change is None else change.before


def _after(path: bytes, one: Mapping[bytes, Change], other: Mapping[bytes, Change]) -> Entry | None:
    """What ``one`` has at ``path``, where only ``other`` may have touched it."""
    change = one.get(path)
    return change.after if change is not None else _before(path, other, other)
