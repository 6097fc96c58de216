"""The plan of a stacked merge: fork point and changesets from the catalog, what production has done since, and what of
both is to be written.

Nothing is changed here and no content is read, but for what renames are told by. `holdfast.engine.merging.merging`
carries a plan out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from holdfast.engine.merging import classification as stacking
from holdfast.engine.merging.classification import Filed, Overlap, Stacked
from holdfast.engine.merging.deltas import bases, decoded, fork_side, production_side
from holdfast.engine.merging.threeway import WORDS, Conflict, Plan, Settled
from holdfast.model.entries import Change
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.engine.merging.classification import Kind
    from holdfast.engine.merging.threeway import Prefer, Why
    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import CheckpointId
    from holdfast.store.merges import Lineage


class Counts(NamedTuple):
    """How many files become what. Each file of either side, and of the fork point, is counted once."""

    apply_theirs: int
    """Written as the fork has them, or as both sides together make them."""
    keep_production: int
    """Changed by production alone."""
    deletes: int
    """Deleted by the fork."""
    unchanged: int
    """Touched by nobody."""
    overlapping: int
    """Whose changes are to be applied anew."""
    identical: int
    """Changed by both in the same way."""


class MergePlan(NamedTuple):
    """What merging a fork into a production would do."""

    base: CheckpointId
    """The fork point: since when changes are looked at. The newest state that both hold."""
    production: CheckpointId
    fork: CheckpointId
    also_bases: Sequence[CheckpointId]
    """Further such states, if both have taken in parts of each other."""
    changesets: int
    """How many the fork has made since."""
    stacked: Stacked
    counts: Counts
    uncaptured: Sequence[bytes] = ()
    """What the fork captures no more, such as what it has begun to ignore, and has not deleted: it stays as production
    has it. Sorted.
    """

    @property
    def overlapping(self) -> Sequence[Overlap]:
        """What is still to be applied anew; empty if the plan can be carried out."""
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
        """And what is to be deleted from it."""
        return [change for change in self.stacked.plan.changes if change.after is None]


def plan(
    context: Context,
    fork: CheckpointId,
    production: CheckpointId,
    *,
    since: Sequence[CheckpointId] | None = None,
    settled: Mapping[bytes, Settled] | None = None,
) -> MergePlan:
    """What merging the state ``fork`` into the state ``production`` would do.

    ``since`` are the newest states that both hold (`bases`), if they are known already. ``settled`` decides overlapping
    files, by `Overlap.path`. Raises `NotFoundError` for a checkpoint that was forgotten, `RefusedError` (code
    ``unrelated``) if the two have no state in common.
    """
    catalog = context.catalog
    theirs = catalog.lineage(fork)
    found = bases(context, production, fork, theirs) if since is None else since
    stack = _stack(context, theirs, found[0], fork)
    ours = production_side(context, found[0], production)
    line, spared = fork_side(context, found[0], fork, stacking.final(stack))
    stacked = stacking.classify(ours, line, stack, settled=settled)
    for other in found[1:]:
        stacked = also_since(context, stacked, other, production, fork, settled=settled or {})
    files = catalog.checkpoint(found[0]).total_files
    counts = _counts(stacked, files)
    stays = stacking.not_deleted(spared, ours)
    return MergePlan(found[0], production, fork, found[1:], len(stack), stacked, counts, stays)


def _stack(context: Context, line: Lineage, base: CheckpointId, fork: CheckpointId) -> list[list[Change]]:
    """The changesets that lead from ``base`` to ``fork``, the oldest first, without empty ones.

    What retention has dropped is in the one behind it. Where the fork has taken ``base`` in, all before that is one.
    """
    from holdfast.store.merges import holding

    holds = holding(line, base)
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
    recorded = dict(zip(kept, decoded(context.store.tenant, [stored[name] for name in kept]), strict=True))
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


def also_since(
    context: Context,
    stacked: Stacked,
    base: CheckpointId,
    production: CheckpointId,
    fork: CheckpointId,
    *,
    prefer: Prefer | None = None,
    settled: Mapping[bytes, Settled],
) -> Stacked:
    """``stacked`` with what would become of it from another state in common: where the two differ, that overlaps."""
    ours = production_side(context, base, production)
    theirs, _ = fork_side(context, base, fork)
    other = stacking.classify(ours, theirs, [], prefer=prefer, settled=settled)
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
        conflict = Conflict(path, path, "bases")
        one, two = here.get(path), there.get(path)
        overlaps.append(Overlap(path, conflict, path, since.get(path), one, two, [], []))
        decided = settled.get(path, None if prefer is None else Settled(prefer))
        (conflicts if decided is None else done).append(conflict)
        if decided is not None:
            after = {"ours": one, "theirs": two, None: decided.entry}[decided.prefer]
            if after != one:
                changes.append(Change(path, one, after))
    files = {one.path: one for one in stacked.files}
    files |= {path: Filed(path, "overlapping", "both", path in since) for path in doubtful}
    sets: list[list[tuple[bytes, Kind]]] = [[(path, files[path].kind) for path, _ in one] for one in stacked.sets]
    return Stacked(
        Plan(sorted(changes), sorted(conflicts), sorted(done)),
        [files[path] for path in sorted(files)],
        sorted(overlaps, key=lambda one: one.path),
        sets,
    )


def _counts(stacked: Stacked, at_fork_point: int) -> Counts:
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
    return Counts(apply_theirs, keep, deletes, unchanged, len(stacked.plan.conflicts), identical)


def to_json(plan: MergePlan) -> dict[str, Any]:
    """What ``merge --dry-run --json`` prints and ``POST /api/merge`` answers (docs/reference/json.md)."""
    counts = plan.counts
    found: dict[str, Any] = {
        "result": plan.result,
        "fork_checkpoint": plan.base,
        "production_checkpoint": plan.production,
        "promote_checkpoint": plan.fork,
        "changesets": plan.changesets,
        "straight": plan.is_straight,
        "changes": {
            "apply_theirs": counts.apply_theirs,
            "keep_production": counts.keep_production,
            "deletes": counts.deletes,
            "unchanged": counts.unchanged,
            "overlapping": counts.overlapping,
            "identical": counts.identical,
        },
        "writes": [display(change.path) for change in plan.writes],
        "deletes": [display(change.path) for change in plan.deletes],
        "uncaptured": [display(path) for path in plan.uncaptured],
    }
    overlapping = plan.overlapping
    if overlapping:
        found["overlapping_files"] = [overlap_json(one) for one in overlapping]
    return found


def overlap_json(one: Overlap) -> dict[str, Any]:
    """One file that is to be settled."""
    return {
        "path": display(one.path),
        "production_path": display(one.conflict.path),
        "fork_path": display(one.conflict.there),
        "changeset_count": len(one.numbers),
        "changesets": list(one.numbers),
        "why": one.why,
        "detail": detail(one),
        "version": one.version,
        "can_reapply": one.is_applicable,
    }


_DONE: dict[Why, str] = {
    "both_added": "Added in {them} and, not the same, in production.",
    "deleted_here": "Modified in {them} and deleted in production.",
    "deleted_there": "Deleted in {them} and modified in production.",
}


def detail(one: Overlap) -> str:
    """Who has changed it, for people: ``Modified in changesets Δ3, Δ4 and in production.``"""
    names = ", ".join(f"Δ{number}" for number in one.numbers)
    them = f"changeset{'s' if len(one.numbers) > 1 else ''} {names}" if names else "the fork"
    said = _DONE.get(one.why, "Modified in {them} and in production.").format(them=them)
    return said if one.why in ("content", *_DONE) else f"{said[:-1]}: {WORDS[one.why]}."
