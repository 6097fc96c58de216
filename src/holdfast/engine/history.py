"""Undo and redo: one change back, one change forward, along the events that changed the tree.

Every checkpoint and every full restore is a state; each knows the state that it replaced. What happened between two
states is taken back step by step, by the undo log, as far as steps made it (`holdfast.engine.reversing`), and for the
rest by going to the earlier state. `redo` goes the same way forward, towards the newest state that was undone. Nothing
is ever taken out of the history.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast.engine.journal import Journal
from holdfast.engine.restore import carry_out, new_nonce, preview, refuse_unfinished, save_first
from holdfast.engine.reversing import bring_forward_alone, catch_up, foresee_steps, take_back
from holdfast.engine.states import ahead, came_to_light, check_count, kept, nothing
from holdfast.engine.status import present
from holdfast.engine.steps import infos, quiet, reached, required
from holdfast.engine.walking import Walk, together
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.context import Context
    from holdfast.engine.results import RestoreResult
    from holdfast.model.sinks import Progress
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import StepInfo, UndoService

_LOG = Log(__name__)


def undo(
    context: Context,
    count: int = 1,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Take back the newest ``count`` changes to the tree; unsaved changes are saved first and are the first one.

    What steps did is reversed by the undo log, ignored files included. Raises `NotFoundError` with code
    ``nothing_to_undo`` if there are not that many; if no step was taken back until then, nothing is touched, and the
    hint names the checkpoint that holds what was not saved before.
    `RefusedError` if somebody else has changed the same since (``force`` goes ahead). An undo that was cut short is
    finished first, and counts.
    """
    check_count(count)
    with _reached(context, progress) as (service, finished):
        walk = Walk(context, service, force=force, progress=progress)
        if dry_run:
            return walk.foresee(count)
        done = [finished] if finished is not None else []
        if len(done) == count:
            return done[0]
        count -= len(done)
        with quiet(service):
            cursor = context.catalog.cursor(context.workspace.id)
            refuse_unfinished(context)
            context.tree.make_root()
            if not came_to_light(context, cursor):
                saved = save_first(context, progress)
                # What only went out of sight is no change to take back: the state before it is.
                count += walk.is_out_of_sight(cursor, saved)
                walk.new = saved if saved.id != cursor.head else None
            return together([*done, walk.back(count)])


def undo_steps(
    context: Context,
    *,
    steps: Sequence[int] = (),
    run: str = "",
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Take back these steps together, or (without any) all that a run did (``run`` empty: the newest one).

    Where the undo log does not hold all of a run any more, what is missing is taken back by the checkpoint that the
    run began with: not what was ignored. Raises as `undo`. Where the same was asked for before and cut short, that is
    finished.
    """
    with _reached(context, progress) as (service, finished):
        if dry_run:
            if steps:
                return foresee_steps(context, required(service), steps, backward=True)
            return _foresee_run(context, service, run or _newest_run(context, service), force=force)
        with quiet(service):
            refuse_unfinished(context)
            context.tree.make_root()
            if finished is not None:
                if set(finished.steps) == set(steps):
                    return finished
                if not steps and not run:
                    run = infos(required(service), finished.steps)[0].run
                if not steps and not _is_left(service, run):
                    return finished
            if steps:
                chosen = infos(required(service), steps)
                save_first(context, progress)
                return take_back(context, required(service), chosen, force=force, progress=progress)
            return _undo_run(context, service, run or _newest_run(context, service), force=force, progress=progress)


def redo(
    context: Context,
    count: int = 1,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Bring back the newest ``count`` changes that `undo` took back.

    Raises `NotFoundError` with code ``nothing_to_redo`` if there are not that many, and `RefusedError` if the tree has
    changed since the undo: those changes would be lost from sight.
    """
    check_count(count)
    with _reached(context, progress) as (service, _), quiet(service):
        if not dry_run:
            refuse_unfinished(context)
        cursor = context.catalog.cursor(context.workspace.id)
        if cursor.position is None or cursor.redo_tip is None:
            raise nothing("redo")
        onward = ahead(context, cursor.position, cursor.redo_tip)
        if count > len(onward):
            raise nothing("redo")
        if not came_to_light(context, cursor) and present(context).changes():
            raise RefusedError(
                "the tree has changed since the undo, so there is nothing to redo onto it",
                hint="`holdfast undo` saves those changes and takes them back; `holdfast log` lists every state",
                code="changed_since_undo",
            )
        if dry_run:
            return preview(context, context.catalog.checkpoint(onward[count - 1].checkpoint))
        return Walk(context, service, force=force, progress=progress).forward(onward[:count])


def redo_steps(
    context: Context,
    steps: Sequence[int],
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Bring undone steps forward together, onto whatever is there now; what was there is saved first."""
    with _reached(context, progress) as (service, _), quiet(service):
        if dry_run:
            return foresee_steps(context, required(service), steps, backward=False)
        refuse_unfinished(context)
        context.tree.make_root()
        save_first(context, progress)
        return bring_forward_alone(context, required(service), steps, force=force, progress=progress)


@contextmanager
def _reached(context: Context, progress: Progress | None) -> Generator[tuple[UndoService | None, RestoreResult | None]]:
    """The undo log, with the workspace's lock; and what an undo that was cut short did, which the history knows now."""
    with context.lock(), reached(context) as service:
        yield service, catch_up(context, service, progress)


def _is_left(service: UndoService | None, run: str) -> bool:
    return service is not None and any(
        step.run == run and step.state == "done" and step.paths for step in service.steps()
    )


class _OfRun(NamedTuple):
    """What is left to take back of a run."""

    steps: Sequence[StepInfo]
    start: HistoryEvent | None
    """Its beginning, where the undo log does not hold all of it: what is missing is taken back by that checkpoint."""


def _left_of(context: Context, service: UndoService | None, run: str, *, force: bool) -> _OfRun:
    """Raises as `undo_steps`."""
    steps = service.steps() if service is not None else ()
    of_run = [step for step in steps if step.run == run]
    if not force and any(step.state == "open" and step.paths for step in of_run):
        raise RefusedError(
            f"the run {run} is still going on", hint="--force takes back what it has finished", code="step_open"
        )
    events = [event for event in context.catalog.events(context.workspace.id) if event.run == run]
    if not of_run and not events:
        raise NotFoundError(f"there was no run {run}", hint="holdfast log and holdfast steps show the runs")
    chosen = [step for step in of_run if step.state == "done" and step.paths]
    start = None
    if not of_run or _is_forgotten(service, events, of_run):
        start = _start(context, run, events)
    if not chosen and (start is None or _is_taken_back(context, start)):
        raise NotFoundError(f"nothing of the run {run} is left to undo", code="nothing_to_undo")
    if start is not None and not force:
        _refuse_others(steps, start)
    return _OfRun(chosen, start)


def _foresee_run(context: Context, service: UndoService | None, run: str, *, force: bool) -> RestoreResult:
    chosen, start = _left_of(context, service, run, force=force)
    done: list[RestoreResult] = []
    if chosen:
        assert service is not None
        done.append(foresee_steps(context, service, [step.id for step in chosen], backward=True))
    if start is not None:
        done.append(preview(context, context.catalog.checkpoint(start.checkpoint)))
    return together(done)


def _undo_run(
    context: Context, service: UndoService | None, run: str, *, force: bool, progress: Progress | None
) -> RestoreResult:
    chosen, start = _left_of(context, service, run, force=force)
    save_first(context, progress)
    done: list[RestoreResult] = []
    if chosen:
        assert service is not None
        done.append(take_back(context, service, chosen, force=force, progress=progress))
    if start is not None:
        _LOG.warning(
            "the undo log does not hold all of the run any more: what is missing is taken back by the checkpoint "
            "that it began with, ignored files are not"
        )
        done.append(_to_the_start(context, start, progress))
    result = together(done)
    if start is not None and chosen:
        again = "".join(f" --step {step}" for step in sorted(result.steps))
        return result._replace(undo_command=f"{result.undo_command} && holdfast redo{again}")
    return result


def _is_forgotten(service: UndoService | None, events: Sequence[HistoryEvent], of_run: Sequence[StepInfo]) -> bool:
    """Whether the undo log has given up steps of a run: it says so, or a step that the run ended with is not there."""
    if service is not None and events and events[-1].run in service.forgotten():
        return True
    return not {step for event in events for step in event.steps}.issubset(step.id for step in of_run)


def _start(context: Context, run: str, events: Sequence[HistoryEvent]) -> HistoryEvent:
    """The beginning of a run, of which the checkpoint is still kept."""
    if events and kept(context, events[-1]) is not None:
        return events[-1]
    raise NotFoundError(
        f"the undo log does not hold all of the run {run} any more, nor is the checkpoint kept that it began with",
        hint="holdfast steps lists the steps that can still be undone",
    )


def _is_taken_back(context: Context, start: HistoryEvent) -> bool:
    """Whether the tree is in a state that stands on a return to the checkpoint that the run began with."""
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at > start.seq:
        state = context.catalog.event(at)
        if state.operation == "restore" and state.checkpoint == start.checkpoint:
            return True
        at = state.previous
    return False


def _refuse_others(steps: Sequence[StepInfo], start: HistoryEvent) -> None:
    """Raise `RefusedError` if others than the run that began with ``start`` have changed the tree since: the checkpoint
    would take that back as well.
    """
    since = start.at * 1000
    others = [
        str(step.id)
        for step in steps
        if step.run != start.run and step.paths and step.state != "undone" and (step.ended_at or since) >= since
    ]
    if others:
        raise RefusedError(
            f"the undo log does not hold all of the run {start.run} any more, and the checkpoint that it began with "
            f"would also take back what others have done since: step {', '.join(others)}",
            hint="undo those first, or --force takes all of it back",
            code="others_since",
        )


def _to_the_start(context: Context, begin: HistoryEvent, progress: Progress | None) -> RestoreResult:
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.head is not None
    now, target = context.catalog.checkpoint(cursor.head), context.catalog.checkpoint(begin.checkpoint)
    journal = Journal(
        operation="restore",
        target=target.id,
        rescue=now.id,
        position=cursor.position,
        state=None,
        paths=(),
        nonce=new_nonce(context),
        at=context.clock.now(),
        redo_tip=cursor.redo_tip,
    )
    return carry_out(context, journal, now, target, progress)


def _newest_run(context: Context, service: UndoService | None) -> str:
    """The newest run of which anything is left to take back."""
    steps: Sequence[StepInfo] = service.steps() if service is not None else ()
    done = [step for step in steps if step.run and step.state in ("done", "open") and step.paths]
    if done:
        return max(done, key=lambda step: step.acted).run
    known, forgotten = {step.run for step in steps}, set(service.forgotten() if service is not None else ())
    for event in context.catalog.events(context.workspace.id):
        if event.run and (event.run in forgotten or (event.run not in known and (event.steps or not steps))):
            return event.run
    raise NotFoundError("there is no run to undo", hint="holdfast run -- COMMAND makes one", code="nothing_to_undo")
