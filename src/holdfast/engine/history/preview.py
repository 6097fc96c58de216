"""What taking steps back, or bringing them forward, does to which paths: told of what was done, and before it is."""

from __future__ import annotations

from holdfast.engine.history.open_steps import refusal
from holdfast.engine.history.outside_policy import foresee
from holdfast.engine.history.path_changes import effect, summed
from holdfast.engine.opening.undo_log import infos
from holdfast.engine.results.results import RestoreResult
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import CheckpointId
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.history.path_changes import Effect
    from holdfast.engine.opening.context import Context
    from holdfast.undo.service import StepInfo, UndoService


def foreseen(service: UndoService, steps: Iterable[int]) -> Effect:
    """What undoing the steps, in this order, writes and deletes; or has, where it is done."""
    return effect([service.changes(step) for step in steps], backward=True)


def brought(service: UndoService, steps: Iterable[int]) -> Effect:
    """What redoing the steps has written and deleted."""
    return effect([service.changes(step) for step in steps], backward=False)


def reversible(service: UndoService, steps: Sequence[int], *, backward: bool) -> list[StepInfo]:
    """The steps, the last that acted first, which can be undone (redone: not ``backward``) as far as they are at their
    end (else `RefusedError`), and not undone (done) already (else `NotFoundError`).
    """
    chosen = sorted(infos(service, steps), key=lambda step: step.acted, reverse=True)
    for step in chosen:
        if step.state == "open":
            if going_on := [one for one in service.going_on() if one.step == step.id]:
                raise refusal(service, going_on)
            raise RefusedError(f"step {step.id} is still going on", hint="wait until it ends", code="step_open")
        if step.state == ("undone" if backward else "done"):
            raise NotFoundError(f"step {step.id} is {'undone already' if backward else 'not undone'}")
    return chosen


def foresee_steps(
    context: Context,
    service: UndoService,
    steps: Sequence[int],
    *,
    backward: bool,
    force: bool = False,
    begun: bool = False,
) -> RestoreResult:
    """What undoing the steps together (or redoing them: not ``backward``) would do. Changes nothing. ``begun``: it was
    cut short, and is to be finished.

    Raises as `reversible`, and `RefusedError` if they do not go without others, or others have changed the same since
    (not with ``force``).
    """
    if begun:
        chosen = sorted(infos(service, steps), key=lambda step: list(steps).index(step.id))
    else:
        chosen = reversible(service, steps, backward=backward)
        if not force:
            foresee(context, service, [step.id for step in chosen], forward=not backward)
    seen = effect([service.changes(step.id) for step in chosen], backward=backward)
    head = context.catalog.cursor(context.workspace.id).head
    return dry_result(context, head or CheckpointId(""), [seen], [step.id for step in chosen])


def dry_result(
    context: Context, reached: CheckpointId, effects: Sequence[Effect], steps: Sequence[int]
) -> RestoreResult:
    """What a dry run answers: that the steps were to lead to ``reached``, with the effects, one after the other."""
    written, gone = summed(effects)
    # What the first of them bring, and others take away again, is not there now.
    brought = {path for written, _ in effects for path in written}
    deleted = [path for path in gone if path not in brought or context.tree.is_there(path, directories=True)]
    return RestoreResult(
        checkpoint=reached,
        rescue=None,
        written=written,
        deleted=deleted,
        skipped=[],
        dry_run=True,
        undo_command=None,
        steps=steps,
    )
