"""Bringing two lines of work together: where they parted, what either has done since, and the state that comes of it.

The merged state is a checkpoint of its own before anything touches the tree, so that the tree is brought there as by
any restore: undoable, and finished or taken back where it is cut short.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.history import operations
from holdfast.engine.history.checkpoint import make_room
from holdfast.engine.history.derived_state import create_derived_checkpoint
from holdfast.model.checkpoint import Provenance
from holdfast.model.content import SMALL_BLOB_BYTES
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.paths import display
from holdfast.store.catalog_records import MergeParent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.engine.merging.three_way import Prefer, ThreeWayPlan
    from holdfast.engine.opening.context import Context
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.blobs.content_writer import WrittenBlobs

_MOST_SAID = 4000
"""Characters of a command that a merged state tells of."""


def plan_merge(
    context: Context,
    bases: Sequence[CheckpointId],
    ours: CheckpointId,
    theirs: CheckpointId,
    *,
    prefer: Prefer | None = None,
) -> tuple[ThreeWayPlan, list[bytes]]:
    """What would become of ``ours`` by all that ``theirs`` has done since the first of ``bases``, and what ``theirs``
    only captures no more: that stays. Changes nothing.

    ``bases`` are the states that both hold, as `holdfast.engine.merging.deltas.find_bases` finds them: a file of which
    several tell different things is in conflict. Raises `NotFoundError` for a checkpoint that was forgotten.
    """
    from holdfast.engine.merging import stacked_plan
    from holdfast.engine.merging.deltas import compare_fork, compare_production
    from holdfast.engine.merging.stacked_plan import add_base

    base, *also = bases
    line, spared = compare_fork(context, base, theirs)
    here = compare_production(context, base, ours)
    found = stacked_plan.classify(here, line, [], prefer=prefer)
    for other in also:
        found = add_base(context, found, other, ours, theirs, prefer=prefer, settled={})
    return found.plan, stacked_plan.kept_paths(spared, here)


def store_contents(context: Context, new: Mapping[Hash, bytes]) -> WrittenBlobs:
    """Store content that no state has yet; what was stored already costs nothing."""
    make_room(context, 0)
    writer = context.store.writer()
    try:
        for content in new.values():
            if len(content) <= SMALL_BLOB_BYTES:
                writer.add(content)
            else:
                writer.add_stream((content,))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def merge_provenance(author: str, message: str, command: str = "") -> Provenance:
    """Who has merged what and why, as a record of it can hold that: a command may be long, and no text."""
    return Provenance(author, message, display(os.fsencode(command))[:_MOST_SAID])


class TreeMerge(NamedTuple):
    """What merging did, or (``dry_run``) would do."""

    base: CheckpointId
    """The state since which changes were looked at."""
    ours: CheckpointId
    """The state before."""
    theirs: CheckpointId
    plan: ThreeWayPlan
    restored: RestoreResult | None
    """What happened to the tree; None if nothing did: a dry run, conflicts, or nothing to do."""
    uncaptured: Sequence[bytes] = ()
    """What ``theirs`` captures no more, and has not deleted: it stays as it is here. Sorted."""

    @property
    def done(self) -> bool:
        """True unless something is in conflict."""
        return not self.plan.conflicts


def merge_into(
    context: Context,
    bases: Sequence[CheckpointId],
    theirs: CheckpointId,
    provenance: Provenance,
    *,
    prefer: Prefer | None = None,
    dry_run: bool = False,
    bring: Callable[[CheckpointId, CheckpointId], RestoreResult] | None = None,
    whole: bool = False,
) -> TreeMerge:
    """Bring what ``theirs`` has done since the first of ``bases`` into the tree of the workspace.

    ``bring(merged, ours)`` brings the tree, which is as ``ours``, to the state that is to come of it (None: by
    `operations.restore`). The tree is saved first. If anything is in conflict, nothing else happens, and the answer
    says what. ``whole``: the tree holds all of ``theirs`` then, so that a later merge looks at what comes after that
    alone. ``bases`` as `plan_merge` has them. Raises `RefusedError` (code ``changed_meanwhile``) if another process
    changes the tree meanwhile, and as ``bring``.
    """
    ours, base = operations.save(context).checkpoint.id, bases[0]
    plan, spared = plan_merge(context, bases, ours, theirs, prefer=prefer)
    restored = None
    taken_in = MergeParent(theirs, base) if whole else None
    if plan.changes and not plan.conflicts and not dry_run:
        with context.lock():
            merged = create_derived_checkpoint(context, ours, plan.changes, provenance, taken_in=taken_in)
        restored = operations.restore(context, merged, expected=ours) if bring is None else bring(merged, ours)
    elif taken_in is not None and not plan.conflicts and not dry_run and base not in (ours, theirs):
        context.catalog.add_merge_parents(ours, taken_in)
    return TreeMerge(base, ours, theirs, plan, restored, spared)
