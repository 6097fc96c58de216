"""Before anything is built: production is saved, and what is to become of it is put together. Its tree is only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.checkpoint import take_locked
from holdfast.engine.history.restore import refuse_unfinished
from holdfast.engine.opening.undo_log import kept
from holdfast.engine.promotion.boxes import environment_of
from holdfast.engine.promotion.combining import combine
from holdfast.engine.promotion.spec import Answer
from holdfast.engine.results.results import Request
from holdfast.model.checkpoint import Provenance
from holdfast.model.errors import RefusedError
from holdfast.model.ids import new_checkpoint_id
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.engine.promotion.combining import Combined
    from holdfast.engine.promotion.work import Work

UNCHANGED = "Production unchanged."


def plan(work: Work) -> Answer | None:
    """Save production, and put its state and the fork's together; how that ended, or None if there is something to
    build.

    Raises `RefusedError` while a run is going on in production, or a restore of it was cut short.
    """
    context, facts, spec = work.context, work.facts, work.spec
    provenance = Provenance(spec.author, spec.message, spec.command)
    with context.lock():
        refuse_unfinished(context)
        refuse_running(context)
        ours = take_locked(context, Request(kind="auto")).checkpoint.id
    # (Noted before there is such a checkpoint: killed in between, whoever comes next knows what to forget.)
    name = new_checkpoint_id(context.random)
    facts.plans.append(name)
    work.save()
    combined = combine(
        context,
        ours,
        work.row.theirs,
        provenance,
        name=name,
        stop=work.site.stop,
        environment=environment_of(work),
    )
    facts.base, facts.ours, facts.merged = combined.base, ours, combined.merged or ""
    facts.record, facts.changesets, facts.changes = combined.record, combined.changesets, combined.counts
    facts.uncaptured = [display(path) for path in combined.uncaptured]
    named = [one for one in (ours, work.row.theirs, combined.merged) if one is not None]
    context.catalog.pin_all([context.catalog.checkpoint(one) for one in named], work.pins)
    work.save()
    if work.site.stop.is_set():
        return interrupted()
    answer = answer_of(combined)
    return None if answer.result == "clean" else answer


def interrupted() -> Answer:
    """How it ends where the user wants it to."""
    return Answer(
        result="failed",
        code="interrupted",
        message="it was interrupted",
        recovery="Fork removed. Production unchanged.",
    )


def answer_of(combined: Combined) -> Answer:
    """What a plan says: ``needs_reapply``, ``unchanged``, or ``clean`` where something can be done."""
    result = "needs_reapply" if combined.overlapping else "clean" if combined.changes else "unchanged"
    return Answer(
        result=result,
        changesets=combined.changesets,
        changes=combined.counts,
        overlapping_files=list(combined.overlapping),
        uncaptured=[display(path) for path in combined.uncaptured],
        recovery=UNCHANGED,
    )


def refuse_running(context: Context) -> None:
    """Raise `RefusedError` while what runs supervised in the workspace has a keeper: it would be left behind."""
    with kept(context) as service:
        if service is not None:
            raise RefusedError(
                f"something runs supervised in {display(context.workspace.path)}, and would be left in the old "
                "directory",
                hint="promote when the run is over",
                code="run_going_on",
            )
