"""The state that production is to be in: its own, and what a fork has done. The one place that knows how that is found.

Whatever stands behind it, the contract is `combine`'s: a checkpoint that no tree stands on yet, or what only a person
or an agent can decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.merging import merging
from holdfast.engine.merging.reapply.building import ladder_of
from holdfast.engine.merging.stacked import detail
from holdfast.engine.promotion.spec import Counts, Overlap
from holdfast.model.checkpoint import Provenance
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.store.records import TakenIn

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId


class Combined(NamedTuple):
    """What comes of the two."""

    base: CheckpointId
    merged: CheckpointId | None
    """The merged state; None if nothing is to be done, or not everything can be told."""
    changes: Sequence[Change]
    """From production's state to the merged one."""
    changesets: int
    """How many steps of work the fork has done."""
    counts: Counts
    overlapping: Sequence[Overlap]
    """What cannot be told; then ``merged`` is None."""
    record: str = ""
    """How each file that both sides have changed came to be, as `TakenIn` keeps it."""
    uncaptured: Sequence[bytes] = ()
    """What the fork captures no more, and has not deleted: it stays as production has it."""


def combine(
    context: Context,
    ours: CheckpointId,
    theirs: CheckpointId,
    provenance: Provenance | None,
    *,
    name: CheckpointId | None = None,
    stop: threading.Event | None = None,
    environment: Mapping[bytes, bytes] | None = None,
) -> Combined:
    """Put production's state ``ours`` and the fork's state ``theirs`` together, by a stacked merge and its ladder.

    Moves nothing, and takes production's lock for the commit alone: the ladder may ask somebody, which ``stop``, when
    it is set, ends, and which gets this ``environment`` (None: this process's). The merged state gets the id ``name``.
    Without a ``provenance`` nothing is stored and nobody asked, and ``merged`` is None. Raises `RefusedError`
    (``unrelated``) where the two have no state in common.
    """
    dry_run = provenance is None
    found = merging.prepare(
        context,
        ours,
        theirs,
        provenance or Provenance(),
        ladder=ladder_of(context, stop=stop, environment=environment),
        dry_run=dry_run,
        name=name,
    )
    plan = found.plan
    overlapping = [
        Overlap(
            display(one.path),
            len(one.numbers),
            detail(one),
            found.foreseen[one.path].to_json() if one.path in found.foreseen else None,
        )
        for one in plan.overlapping
    ]
    return Combined(
        plan.base,
        None if found.merged == ours else found.merged,
        plan.stacked.plan.changes,
        plan.changesets,
        Counts(**plan.counts._asdict()),
        overlapping,
        merging.record_of(found.records),
        plan.uncaptured,
    )


def note_taken_in(
    context: Context, became: CheckpointId, theirs: CheckpointId, base: CheckpointId, record: str
) -> None:
    """Note that production's state ``became`` holds all that the fork has done: the next promotion of the same fork
    begins there. Idempotent.

    Nothing is noted of a state that the fork stands on (what was built is what was there before): no state is its own
    ancestor, and what the fork has done did not come to it.
    """
    if became in context.catalog.lineage(theirs):
        return
    context.catalog.note_taken_in(became, TakenIn(theirs, base, record))
