"""The plan of a stacked merge: fork point and changesets from the catalog, production's changes since, and the changes
to write.

It changes nothing, and reads no content except to detect renames. `holdfast.engine.merging.fork_merge` carries a plan
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.engine.merging import three_way
from holdfast.engine.merging.deltas import compare_fork, compare_production, decode_stack, find_bases
from holdfast.engine.merging.three_way import CONFLICT_TEXTS, Decision, MergeConflict, ThreeWayPlan
from holdfast.model.entries import Change, Entry
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import Hash, hash_bytes
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.engine.merging.three_way import ConflictKind, Prefer, SideChanges
    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog.merge_parents import Lineage


# The fate of each file when a fork's stack of small changes is merged into a production that has changed since.
#
# The classification of a stacked merge (rules in docs/reference/merge.md): per file, by both sides' changes since the
# fork point, and per changeset of the fork. For a file that only the fork changed, its last version counts, without
# intermediate states. For a file that both changed, the fork's small changes are kept apart, so that each can be
# applied anew. Pure: nothing here reads a tree or a store.

Kind = Literal["one_sided", "clean", "identical", "overlapping"]
"""``one_sided``: only one side changed it, and its version counts. ``clean``: both changed different aspects (content
on one side, permissions or name on the other), and both count. ``identical``: both made the same change.
``overlapping``: both changed the same aspect, so the fork's changes must be applied anew.
"""

Who = Literal["fork", "production", "both"]

_Versions = dict[bytes, "list[tuple[int, Entry | None]]"]
"""By path: the changesets that touched it, with its entry after each."""

_NOTHING: tuple[Hash, int] = (Hash(b""), -1)


class FileOutcome(NamedTuple):
    """One path that either side has touched."""

    path: bytes
    kind: Kind
    by: Who
    existed: bool
    """Whether it existed at the fork point."""


class SmallChange(NamedTuple):
    """The change that one changeset of the fork made to one file."""

    number: int
    """Which changeset, from 1, the oldest first. 0: all of them at once."""
    before: Entry | None
    after: Entry | None


_DONE: dict[ConflictKind, str] = {
    "both_added": "Added in {them} and, not the same, here.",
    "deleted_here": "Modified in {them} and deleted here.",
    "deleted_there": "Deleted in {them} and modified here.",
}


class Overlap(NamedTuple):
    """A file that both sides have changed, in ways that meet."""

    path: bytes
    """The path of the result: the new name, if one side has renamed it."""
    conflict: MergeConflict
    base_path: bytes
    base: Entry | None
    """Its entry at the fork point; None if it did not exist."""
    production: Entry | None
    fork: Entry | None
    small: Sequence[SmallChange]
    """The changes of its content on the fork, oldest first; a single one, `whole`, if they cannot be separated."""
    numbers: Sequence[int]
    """Which changesets have touched it."""

    @property
    def why(self) -> ConflictKind:
        """In which way both have changed it."""
        return self.conflict.why

    @property
    def whole(self) -> SmallChange:
        """All that the fork has done to it, as one."""
        return SmallChange(0, self.base, self.fork)

    @property
    def mode(self) -> int | None:
        """Its merged permissions; None if both sides changed them differently."""
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
    def detail(self) -> str:
        """Who has changed it, for people: ``Modified in changesets Δ3, Δ4 of the fork and here.``"""
        names = ", ".join(f"Δ{number}" for number in self.numbers)
        them = f"changeset{'s' if len(self.numbers) > 1 else ''} {names} of the fork" if names else "the fork"
        said = _DONE.get(self.why, "Modified in {them} and here.").format(them=them)
        return said if self.why in ("content", *_DONE) else f"{said[:-1]}: {CONFLICT_TEXTS[self.why]}."

    @property
    def version(self) -> str:
        """Identifies the versions that an answer must be for: 32 hex digits that change with either side."""
        sides = (self.base, self.production, self.fork)
        parts = [
            b"-" if side is None else b"%b %d %o" % (side.hash.hex().encode(), side.size, side.mode) for side in sides
        ]
        return hash_bytes(b"\n".join((self.path, *parts))).hex()


class Resolution(NamedTuple):
    """The decision about one file, by a person or a program on a person's behalf."""

    prefer: Prefer | None = None
    """The version of production (``ours``) or of the fork (``theirs``)."""
    content: bytes | None = None
    """Without ``prefer``: its new content; None for no file."""
    version: str | None = None
    """The `Overlap.version` that it was decided for. None: the version shown last."""


class StackedMerge(NamedTuple):
    """The expected changes of production."""

    plan: ThreeWayPlan
    """The difference of the merged state from production, and the conflicts."""
    files: Sequence[FileOutcome]
    """Every path that either side has touched, sorted."""
    overlaps: Sequence[Overlap]
    """The overlaps, sorted, including those that are decided already."""
    sets: Sequence[Sequence[tuple[bytes, Kind]]]
    """For each changeset, oldest first, the kind of each path that it touched."""


def compose(stack: Sequence[Sequence[Change]]) -> list[Change]:
    """The net changes of a stack of changesets (newest last), sorted by path.

    It goes from the last to the first: each path keeps its latest ``after`` and gets its earliest ``before``. A path
    that ends as it began is left out.
    """
    last: dict[bytes, Change] = {}
    for changes in reversed(stack):
        for change in changes:
            later = last.get(change.path)
            last[change.path] = change if later is None else Change(change.path, change.before, later.after)
    return [last[path] for path in sorted(last) if last[path].before != last[path].after]


def classify(
    production: SideChanges,
    fork: SideChanges,
    stack: Sequence[Sequence[Change]],
    *,
    settled: Mapping[bytes, Decision] | None = None,
) -> StackedMerge:
    """The classification of each file; both sides are relative to the fork point, and ``stack`` leads from there to
    ``fork``.

    ``settled`` as in `three_way.plan`.
    """
    plan = three_way.plan(production, fork, settled=settled)
    ours, theirs = three_way.changes_by_path(production), three_way.changes_by_path(fork)
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
    kinds: dict[bytes, FileOutcome] = {}
    for path in sorted(ours.keys() | theirs.keys()):
        kinds[path] = _filed(path, ours.get(path), theirs.get(path), merged, path in overlapping)
    sets: list[list[tuple[bytes, Kind]]] = [
        [(change.path, kinds[change.path].kind) for change in changes if change.path in kinds] for changes in stack
    ]
    return StackedMerge(plan, list(kinds.values()), sorted(overlaps, key=lambda one: one.path), sets)


def kept_paths(paths: Iterable[bytes], side: SideChanges) -> list[bytes]:
    """Those of ``paths``, which existed at the fork point, that ``side`` has not moved or deleted; sorted."""
    changes = three_way.changes_by_path(side)
    return sorted(path for path in paths if path not in changes or changes[path].after is not None)


def _filed(
    path: bytes,
    ours: Change | None,
    theirs: Change | None,
    merged: Mapping[bytes, Entry | None],
    overlapping: bool,
) -> FileOutcome:
    by: Who = "both" if ours and theirs else "production" if ours else "fork"
    existed = (ours or theirs or Change(path, None, None)).before is not None
    if overlapping:
        return FileOutcome(path, "overlapping", by, existed)
    here = ours.after if ours else theirs.before if theirs else None
    found = merged.get(path, here)
    if ours and theirs:
        return FileOutcome(path, "identical" if ours.after == theirs.after else "clean", by, existed)
    wanted = here if ours else theirs.after if theirs else None
    return FileOutcome(path, "one_sided" if found == wanted else "clean", by, existed)


def _overlap(
    conflict: MergeConflict,
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
        path=conflict.merged_path(base),
        conflict=conflict,
        base_path=base,
        base=began,
        production=production,
        fork=fork,
        small=_small(began, fork, touched),
        numbers=sorted(touched),
    )


def _small(base: Entry | None, fork: Entry | None, touched: Mapping[int, Sequence[Entry | None]]) -> list[SmallChange]:
    """The changes of a file's content from ``base`` to ``fork``; ``touched`` maps a changeset to the entries after it,
    under the new name and under the old one.
    """
    found: list[SmallChange] = []
    now = base
    for number in sorted(touched):
        after = next((one for one in touched[number] if one is not None), None)
        if _content(after) != _content(now):
            found.append(SmallChange(number, now, after))
        now = after
    return found if found and _content(now) == _content(fork) else [SmallChange(0, base, fork)]


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
    """The entry of ``one`` at ``path``; if only ``other`` has changed it, the entry before that change."""
    change = one.get(path)
    return change.after if change is not None else _before(path, other, other)


class FileCounts(NamedTuple):
    """How many files become what. Each file of either side, and of the fork point, is counted once."""

    apply_theirs: int
    """Written as the fork has them, or as both sides together make them."""
    keep_production: int
    """Changed by production alone."""
    deletes: int
    """Deleted by the fork."""
    unchanged: int
    """Touched by neither side."""
    overlapping: int
    """Files whose changes must be applied anew."""
    identical: int
    """Changed by both in the same way."""


class MergePlan(NamedTuple):
    """The expected result of merging a fork into a production."""

    base: CheckpointId
    """The fork point, from which changes count. The newest state that both hold."""
    production: CheckpointId
    fork: CheckpointId
    also_bases: Sequence[CheckpointId]
    """Further such states, if both have taken in parts of each other."""
    changesets: int
    """How many the fork has made since."""
    stacked: StackedMerge
    counts: FileCounts
    uncaptured: Sequence[bytes] = ()
    """Paths that the fork stopped capturing, for example by ignoring them, and did not delete: they stay as in
    production. Sorted.
    """

    @property
    def overlapping(self) -> Sequence[Overlap]:
        """The overlaps that must still be applied anew; empty if the plan can be carried out."""
        open_ = set(self.stacked.plan.conflicts)
        return [one for one in self.stacked.overlaps if one.conflict in open_]

    @property
    def result(self) -> Literal["clean", "needs_reapply"]:
        """``clean`` if it can be carried out as it is."""
        return "needs_reapply" if self.stacked.plan.conflicts else "clean"

    @property
    def is_straight(self) -> bool:
        """True if nothing has happened to production since the fork point: then it becomes what the fork is."""
        return not any(one.by != "fork" for one in self.stacked.files)

    @property
    def writes(self) -> Sequence[Change]:
        """The write plan: what production is to get, sorted by path. Nothing for what overlaps."""
        return [change for change in self.stacked.plan.changes if change.after is not None]

    @property
    def deletes(self) -> Sequence[Change]:
        """The deletions in production."""
        return [change for change in self.stacked.plan.changes if change.after is None]


def plan(
    context: Context,
    fork: CheckpointId,
    production: CheckpointId,
    *,
    since: Sequence[CheckpointId] | None = None,
    settled: Mapping[bytes, Decision] | None = None,
) -> MergePlan:
    """The plan of merging the state ``fork`` into the state ``production``.

    ``since`` are the states that changes are relative to: by default the newest common ones (`find_bases`). ``settled``
    decides overlapping files, by `Overlap.path`. Raises `NotFoundError` for a checkpoint that was forgotten,
    `RefusedError` (code ``unrelated``) if the two have no state in common.
    """
    catalog = context.catalog
    theirs = catalog.lineage(fork)
    found = find_bases(context, production, fork, theirs) if since is None else since
    stack = _stack(context, theirs, found[0], fork)
    ours = compare_production(context, found[0], production)
    line, spared = compare_fork(context, found[0], fork, compose(stack))
    stacked = classify(ours, line, stack, settled=settled)
    for other in found[1:]:
        stacked = add_base(context, stacked, other, production, fork, settled=settled or {})
    files = catalog.checkpoint(found[0]).total_files
    counts = _counts(stacked, files)
    stays = kept_paths(spared, ours)
    return MergePlan(found[0], production, fork, found[1:], len(stack), stacked, counts, stays)


def _stack(context: Context, line: Lineage, base: CheckpointId, fork: CheckpointId) -> list[list[Change]]:
    """The changesets that lead from ``base`` to ``fork``, oldest first, without empty ones.

    Changesets that retention dropped are part of the next one. If the fork has merged ``base``, everything before that
    is one changeset.
    """
    from holdfast.store.catalog.merge_parents import descendants_in

    holds = descendants_in(line, base)
    steps: list[CheckpointId] = []
    at = fork
    while at != base:
        steps.append(at)
        parent = line[at].parent
        if parent is None or parent not in holds:
            break
        at = parent
    stored = context.catalog.changesets(steps)
    kept = [name for name in steps if name in stored and name != at]
    recorded = dict(zip(kept, decode_stack(context.store.tenant, [stored[name] for name in kept]), strict=True))
    stack: list[list[Change]] = []
    for name in reversed(steps):
        before = base if name == at else line[name].parent
        if before is not None and name not in recorded:
            first, last = context.catalog.checkpoint(before).root, context.catalog.checkpoint(name).root
            changes = manifest.diff(context.store.pages, first, last)
        else:
            changes = recorded[name]
        if changes:
            stack.append(changes)
    return stack


def add_base(
    context: Context,
    stacked: StackedMerge,
    base: CheckpointId,
    production: CheckpointId,
    fork: CheckpointId,
    *,
    settled: Mapping[bytes, Decision],
) -> StackedMerge:
    """``stacked``, compared with its result from another common state: a difference is an overlap."""
    ours = compare_production(context, base, production)
    theirs, _ = compare_fork(context, base, fork)
    other = classify(ours, theirs, [], settled=settled)
    first = {change.path: change.after for change in stacked.plan.changes}
    second = {change.path: change.after for change in other.plan.changes}
    known = {path for one in stacked.overlaps for path in (one.path, one.conflict.path, one.conflict.there)}
    doubtful = {
        path
        for path in first.keys() | second.keys() | {one.path for one in other.plan.conflicts}
        if first.get(path, b"") != second.get(path, b"") or any(one.path == path for one in other.plan.conflicts)
    } - known
    if not doubtful:
        return stacked
    pages = context.store.pages
    here = manifest.get_many(pages, context.catalog.checkpoint(production).root, sorted(doubtful))
    there = manifest.get_many(pages, context.catalog.checkpoint(fork).root, sorted(doubtful))
    since = manifest.get_many(pages, context.catalog.checkpoint(base).root, sorted(doubtful))
    changes = [change for change in stacked.plan.changes if change.path not in doubtful]
    conflicts, done = list(stacked.plan.conflicts), list(stacked.plan.settled)
    overlaps = list(stacked.overlaps)
    for path in sorted(doubtful):
        conflict = MergeConflict(path, path, "bases")
        one, two = here.get(path), there.get(path)
        overlaps.append(Overlap(path, conflict, path, since.get(path), one, two, [], []))
        decided = settled.get(path)
        (conflicts if decided is None else done).append(conflict)
        if decided is not None:
            after = {"ours": one, "theirs": two, None: decided.entry}[decided.prefer]
            if after != one:
                changes.append(Change(path, one, after))
    files = {one.path: one for one in stacked.files}
    files |= {path: FileOutcome(path, "overlapping", "both", path in since) for path in doubtful}
    sets: list[list[tuple[bytes, Kind]]] = [[(path, files[path].kind) for path, _ in one] for one in stacked.sets]
    return StackedMerge(
        ThreeWayPlan(sorted(changes), sorted(conflicts), sorted(done)),
        [files[path] for path in sorted(files)],
        sorted(overlaps, key=lambda one: one.path),
        sets,
    )


def _counts(stacked: StackedMerge, at_fork_point: int) -> FileCounts:
    apply_theirs = keep = deletes = identical = 0
    merged = {change.path: change.after for change in stacked.plan.changes}
    for one in stacked.files:
        if one.kind == "identical":
            identical += 1
        elif one.kind == "one_sided" and one.by == "production":
            keep += 1
        elif one.kind != "overlapping":
            if merged.get(one.path, b"") is None:
                deletes += 1
            else:
                apply_theirs += 1
    unchanged = at_fork_point - sum(one.existed for one in stacked.files)
    return FileCounts(apply_theirs, keep, deletes, unchanged, len(stacked.plan.conflicts), identical)
