"""The target state of production: its own with a fork's changes. Only this module knows how it is found.

For every method the contract is `combine`'s: a checkpoint that no tree has yet, or the decisions that only a person or
an agent can make.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.engine.history.checkpoint import create_checkpoint_locked
from holdfast.engine.history.recovery import lock_and_finish
from holdfast.engine.merging import fork_merge
from holdfast.engine.merging.reapply.resolver import ladder_of
from holdfast.engine.merging.stacked_plan import Resolution
from holdfast.engine.opening.operation_journal import refuse_unfinished, reverses_steps
from holdfast.engine.opening.undo_log import open_if_running
from holdfast.engine.promotion.build_isolation import environment_of
from holdfast.engine.promotion.spec import OverlappingFile, PlanCounts, PromotionAnswer
from holdfast.model.answers.merges import Foreseen
from holdfast.model.checkpoint import Provenance
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import new_checkpoint_id
from holdfast.model.json_encoder import encode
from holdfast.model.paths import display, parse_display
from holdfast.store.catalog_records import MergeParent

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.engine.merging.reapply.resolver import Ladder
    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion._job_context import PromotionJob
    from holdfast.engine.promotion.spec import DecidedFile
    from holdfast.model.entries import Change
    from holdfast.model.ids import CheckpointId


_MOST_DIFFERENCES = 1 << 20
"""Letters of differences that an answer, which the catalog keeps, has at most."""


class CombinedState(NamedTuple):
    """The result of combining the two."""

    base: CheckpointId
    merged: CheckpointId | None
    """The merged state; None if there is nothing to do, or a decision is open."""
    changes: Sequence[Change]
    """From production's state to the merged one."""
    changesets: int
    """How many steps of work the fork has done."""
    counts: PlanCounts
    overlapping: Sequence[OverlappingFile]
    """The open decisions; then ``merged`` is None."""
    record: str = ""
    """How each file that both sides have changed came to be, as `MergeParent` keeps it."""
    uncaptured: Sequence[bytes] = ()
    """Paths that the fork stopped capturing, and did not delete: they stay as in production."""


def combine(
    context: Context,
    ours: CheckpointId,
    theirs: CheckpointId,
    provenance: Provenance | None,
    *,
    decided: Iterable[DecidedFile] = (),
    name: CheckpointId | None = None,
    stop: threading.Event | None = None,
    environment: Mapping[bytes, bytes] | None = None,
) -> CombinedState:
    """Merge the fork's state ``theirs`` into production's state ``ours``, by a stacked merge and its ladder.

    Files that a person has ``decided`` skip the ladder. Moves nothing, and takes production's lock for the commit
    alone: the ladder may ask an agent. Setting ``stop`` ends the agent, whose ``environment`` defaults to this
    process's. The merged state gets the id ``name``. Without a ``provenance`` nothing is stored and no agent asked, and
    ``merged`` is None. Raises `RefusedError` (``unrelated``) where the two have no state in common.
    """

    def ladder() -> Ladder:
        return ladder_of(context, stop=stop, environment=environment)

    resolutions = {parse_display(one.path): Resolution(one.prefer, one.content, one.version) for one in decided}
    policy = fork_merge.OverlapPolicy(ladder, resolutions, dry_run=provenance is None)
    found = fork_merge.prepare(context, ours, theirs, provenance or Provenance(), policy, name=name)
    plan = found.plan
    overlapping: list[OverlappingFile] = []
    room = _MOST_DIFFERENCES
    for one in plan.overlapping:
        differences = found.differences.get(one.path)
        if differences is not None:
            room -= sum(map(len, differences))
        here, there = (None, None) if differences is None or room < 0 else differences
        foreseen = found.foreseen.get(one.path)
        overlapping.append(
            OverlappingFile(
                display(one.path),
                len(one.numbers),
                one.detail,
                one.why,
                one.version,
                here,
                there,
                None if foreseen is None else dict(encode(Foreseen, foreseen)),
            )
        )
    return CombinedState(
        plan.base,
        None if found.merged == ours else found.merged,
        plan.stacked.plan.changes,
        plan.changesets,
        PlanCounts(**plan.counts._asdict()),
        overlapping,
        fork_merge.encode_record(found.records),
        plan.uncaptured,
    )


def note_taken_in(
    context: Context, became: CheckpointId, theirs: CheckpointId, base: CheckpointId, record: str
) -> None:
    """Record that production's state ``became`` has all of the fork's changes: the next promotion of the same fork
    begins there. Idempotent.

    Nothing is recorded for a state that is an ancestor of the fork (the build equals the former state): no state may be
    its own ancestor, and the fork's changes are not in it.
    """
    if became in context.catalog.lineage(theirs):
        return
    context.catalog.add_merge_parents(became, MergeParent(theirs, base, record))
    if record:
        fork_merge.forget_answers(context, [parse_display(one["path"]) for one in json.loads(record)["files"]])


# Before the build: production is saved, and its target state is found. Its tree is only read.

UNCHANGED = "Production unchanged."


def plan(job: PromotionJob) -> PromotionAnswer | None:
    """Save production, and find its target state; the result, or None if a build must follow.

    Raises `RefusedError` during a run in production, or if a restore of it was cut short.
    """
    context, facts, spec = job.context, job.facts, job.spec
    provenance = Provenance(spec.author, spec.message, spec.command)
    if reverses_steps(context.folder):
        lock_and_finish(context)
    with context.lock():
        refuse_unfinished(context.folder)
        refuse_running(context)
        ours = create_checkpoint_locked(context, CheckpointRequest(kind="auto")).checkpoint.id
    # Recorded before the checkpoint exists: after a kill, the next process knows which one to forget.
    name = new_checkpoint_id(context.random)
    facts.plans.append(name)
    job.save()
    combined = combine(
        context,
        ours,
        job.row.theirs,
        provenance,
        decided=spec.resolutions,
        name=name,
        stop=job.site.stop,
        environment=environment_of(job),
    )
    facts.base, facts.ours, facts.merged = combined.base, ours, combined.merged or ""
    facts.record, facts.changesets, facts.changes = combined.record, combined.changesets, combined.counts
    facts.uncaptured = [display(path) for path in combined.uncaptured]
    named = [one for one in (ours, job.row.theirs, combined.merged) if one is not None]
    context.catalog.pin_all([context.catalog.checkpoint(one) for one in named], job.pins)
    job.save()
    if job.site.stop.is_set():
        return interrupted_answer()
    answer = plan_answer(combined)
    return None if answer.result == "clean" else answer


def interrupted_answer() -> PromotionAnswer:
    """How it ends where the user wants it to."""
    return PromotionAnswer(
        result="failed",
        code="interrupted",
        message="it was interrupted",
        recovery="Fork removed. Production unchanged.",
    )


def plan_answer(combined: CombinedState) -> PromotionAnswer:
    """The answer of a plan: ``needs_reapply``, ``unchanged``, or ``clean`` if there is something to do."""
    result = "needs_reapply" if combined.overlapping else "clean" if combined.changes else "unchanged"
    return PromotionAnswer(
        result=result,
        changesets=combined.changesets,
        changes=combined.counts,
        overlapping_files=list(combined.overlapping),
        uncaptured=[display(path) for path in combined.uncaptured],
        recovery=UNCHANGED,
    )


def refuse_running(context: Context) -> None:
    """Raise `RefusedError` while supervised processes in the workspace have a keeper: they would stay there."""
    with open_if_running(context) as service:
        if service is not None:
            raise RefusedError(
                f"a supervised process runs in {display(context.workspace.path)}, and the "
                "swap would leave it in the old directory",
                hint="promote when the run is over",
                code="run_going_on",
            )
