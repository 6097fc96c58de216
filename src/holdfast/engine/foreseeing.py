"""What taking steps back, or bringing them forward, does to which paths: told of what was done, and before it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.results import RestoreResult
from holdfast.engine.steps import infos
from holdfast.model.errors import NotFoundError
from holdfast.model.ids import CheckpointId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.context import Context
    from holdfast.undo.service import PathChange, StepInfo, UndoService

Effect = tuple[list[bytes], list[bytes]]
"""What is written, and what is deleted."""


def foreseen(service: UndoService, steps: Iterable[int]) -> Effect:
    """What undoing the steps, in this order, writes and deletes; or has, where it is done."""
    return effect([service.changes(step) for step in steps], backward=True)


def brought(service: UndoService, steps: Iterable[int]) -> Effect:
    """What redoing the steps has written and deleted."""
    return effect([service.changes(step) for step in steps], backward=False)


def effect(changes: Iterable[Sequence[PathChange]], *, backward: bool) -> Effect:
    """What is written and what is deleted where the changes, step by step, are made or taken back."""
    there: dict[bytes, bool] = {}
    for change in (change for step in changes for change in step):
        gone = change.change == ("added" if backward else "deleted")
        there[change.path] = not gone
        if change.change == "renamed" and change.source is not None:
            there[change.path] = not backward
            there[change.source] = backward
    written = sorted(path for path, is_there in there.items() if is_there)
    return written, sorted(path for path, is_there in there.items() if not is_there)


def reversible(service: UndoService, steps: Sequence[int], *, backward: bool) -> list[StepInfo]:
    """The steps, the last that acted first, which can be undone (redone: not ``backward``) as far as they are at their
    end, and not undone (done) already: else `NotFoundError`.
    """
    chosen = sorted(infos(service, steps), key=lambda step: step.acted, reverse=True)
    for step in chosen:
        if step.state == "open":
            raise NotFoundError(f"step {step.id} is still going on", hint="wait until it ends")
        if step.state == ("undone" if backward else "done"):
            raise NotFoundError(f"step {step.id} is {'undone already' if backward else 'not undone'}")
    return chosen


def foresee_steps(context: Context, service: UndoService, steps: Sequence[int], *, backward: bool) -> RestoreResult:
    """What undoing the steps together (or redoing them: not ``backward``) would do. Changes nothing.

    Raises as `reversible`. What else it may be refused for shows when it is done.
    """
    chosen = reversible(service, steps, backward=backward)
    written, deleted = effect([service.changes(step.id) for step in chosen], backward=backward)
    head = context.catalog.cursor(context.workspace.id).head
    return RestoreResult(
        checkpoint=head or CheckpointId(""),
        rescue=None,
        written=written,
        deleted=deleted,
        skipped=[],
        dry_run=True,
        undo_command=None,
        steps=[step.id for step in chosen],
    )
