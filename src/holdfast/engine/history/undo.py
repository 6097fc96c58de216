"""Undo and redo: one change back, one change forward, along the events that changed the tree.

Every checkpoint and every full restore is a state; each knows the state that it replaced. What happened between two
states is taken back step by step, by the undo log, as far as steps made it (`holdfast.engine.history.steps`), and for
the rest by going to the earlier state. `redo` goes the same way forward, towards the newest state that was undone.
Nothing is ever taken out of the history.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial

from holdfast.engine.history.ballast import with_ballast
from holdfast.engine.history.navigator import HistoryNavigator, merge_results
from holdfast.engine.history.open_steps import naming_processes, told_processes
from holdfast.engine.history.other_version import refuse_steps
from holdfast.engine.history.preview import foresee_steps, reversible
from holdfast.engine.history.recovery import catch_up, foresee_catching_up
from holdfast.engine.history.restore import refuse_unfinished, save_first
from holdfast.engine.history.runs import foresee_run, newest_run, stop_run, undo_run
from holdfast.engine.history.states import ahead, came_to_light, check_count, nothing
from holdfast.engine.history.status import present
from holdfast.engine.history.steps import reapply_steps, reverse_steps
from holdfast.engine.opening.mount_guard import make_root
from holdfast.engine.opening.undo_log import infos, quiet, reached, required, touched
from holdfast.model.errors import HoldfastError, RefusedError
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Literal

    from holdfast.engine.history.recovery import CaughtUp
    from holdfast.engine.opening.context import Context
    from holdfast.engine.results.results import RestoreResult
    from holdfast.model.sinks import Progress
    from holdfast.undo.service import UndoService


def undo(
    context: Context,
    count: int = 1,
    *,
    force: bool = False,
    recorded_only: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Take back the newest ``count`` changes to the tree; unsaved changes are saved first and are the first one.

    What steps did is reversed by the undo log, ignored files included. Raises `NotFoundError` with code
    ``nothing_to_undo`` if there are not that many, and the hint names the checkpoint that holds what was not saved
    before; `RefusedError` if somebody else has changed the same since (``force`` goes ahead), or with ``recorded_only``
    if one of the changes was made by neither a step nor Holdfast itself. Then all is as it was; if what was taken back
    until then cannot be brought forward again, ``data`` has its steps (``taken_back``) and how many changes `redo` is
    to bring forward (``redo``). An undo that was cut short is finished first, and counts.
    """
    check_count(count)
    with _reached(context, progress, dry_run=dry_run) as (service, caught_up):
        begin = partial(HistoryNavigator, context, service, force=force, progress=progress, recorded_only=recorded_only)
        if dry_run:
            if caught_up is not None:
                return caught_up.result
            with naming_processes(service):
                return begin().foresee(count)
        done = _of("undo", caught_up)
        if len(done) == count:
            return done[0]
        count -= len(done)
        with quiet(service):
            walk = begin()  # what a server changes between this and the save would be taken for others'
            cursor = context.catalog.cursor(context.workspace.id)
            refuse_unfinished(context)
            make_root(context)
            if not came_to_light(context, cursor):
                walk.refuse_unsaved()
                saved = save_first(context, progress, touched=partial(walk.touched, cursor))
                # What only went out of sight is no change to take back: the state before it is.
                count += walk.is_out_of_sight(cursor, saved)
                walk.new = saved if saved.id != cursor.head else None
            return merge_results([*done, walk.back(count)])


def undo_steps(
    context: Context,
    *,
    steps: Sequence[int] = (),
    run: str = "",
    stop: bool = False,
    force: bool = False,
    recorded_only: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Take back these steps together, or (without any) all that a run did (``run`` empty: the newest one).

    Where the undo log does not hold all of a run any more, what is missing is taken back by the checkpoint that the
    run began with (not with ``recorded_only``): not what was ignored. Raises as `undo`. Where the same was asked for
    before and cut short, that is finished. ``stop``: what is left of the run is ended first (`runs.stop_run`).
    """
    if stop:
        run, stopped = stop_run(context, run)
        try:
            done = undo_steps(context, run=run, force=force, recorded_only=recorded_only, progress=progress)
        except HoldfastError as error:
            error.data = {**(error.data or {}), "stopped": told_processes(stopped)}
            raise
        return done._replace(stopped=stopped)
    with _reached(context, progress, dry_run=dry_run) as (service, caught_up):
        refuse_steps(context, service, steps)
        if dry_run:
            if caught_up is not None:
                return caught_up.result
            with naming_processes(service):
                if steps:
                    return foresee_steps(context, required(service), steps, backward=True, force=force)
                return foresee_run(
                    context, service, run or newest_run(context, service), force=force, recorded_only=recorded_only
                )
        with quiet(service):
            refuse_unfinished(context)
            make_root(context)
            for finished in _of("undo", caught_up):
                its_run = infos(required(service), finished.steps)[0].run
                run = run or ("" if steps else its_run)
                if set(finished.steps) == set(steps) or (not steps and run == its_run and not _is_left(service, run)):
                    return finished
            if steps:
                chosen = reversible(required(service), steps, backward=True)
                save_first(context, progress, touched=partial(touched, service, steps))
                return reverse_steps(context, required(service), chosen, force=force, progress=progress)
            return undo_run(
                context,
                service,
                run or newest_run(context, service),
                force=force,
                recorded_only=recorded_only,
                progress=progress,
            )


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
    changed since the undo: those changes would be lost from sight. A redo that was cut short is finished first, and
    counts.
    """
    check_count(count)
    with _reached(context, progress, dry_run=dry_run) as (service, caught_up), quiet(service):
        done: list[RestoreResult] = []
        if dry_run:
            if caught_up is not None:
                return caught_up.result
        else:
            refuse_unfinished(context)
            done = _of("redo", caught_up)
            if len(done) == count:
                return done[0]
            count -= len(done)
        cursor = context.catalog.cursor(context.workspace.id)
        if cursor.position is None or cursor.redo_tip is None:
            raise nothing("redo")
        onward = ahead(context, cursor.position, cursor.redo_tip)
        if count > len(onward):
            raise nothing("redo")
        walk = HistoryNavigator(context, service, force=force, progress=progress)
        if not came_to_light(context, cursor) and walk.has_changed(present(context).changes()):
            raise RefusedError(
                "the tree has changed since the undo, so there is nothing to redo onto it",
                hint="`holdfast undo` saves those changes and takes them back; `holdfast log` lists every state",
                code="changed_since_undo",
            )
        if dry_run:
            return walk.foresee_forward(onward[:count])
        return merge_results([*done, walk.forward(onward[:count])])


def redo_steps(
    context: Context,
    steps: Sequence[int],
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Bring undone steps forward together, onto whatever is there now; what was there is saved first.

    Where the same was asked for before and cut short, that is finished.
    """
    with _reached(context, progress, dry_run=dry_run) as (service, caught_up), quiet(service):
        refuse_steps(context, service, steps)
        if dry_run:
            if caught_up is not None:
                return caught_up.result
            return foresee_steps(context, required(service), steps, backward=False, force=force)
        refuse_unfinished(context)
        for finished in _of("redo", caught_up):
            if set(finished.steps) == set(steps):
                return finished
        make_root(context)
        save_first(context, progress, touched=partial(touched, service, steps))
        return reapply_steps(context, required(service), steps, force=force, progress=progress)


@contextmanager
def _reached(
    context: Context, progress: Progress | None, *, dry_run: bool
) -> Generator[tuple[UndoService | None, CaughtUp | None]]:
    """The undo log, with the workspace's lock; and what had been cut short, which the history knows now (``dry_run``:
    what would be finished first).
    """
    room = nullcontext() if dry_run else with_ballast(context)
    with context.lock(as_found=True), room, reached(context, looking=dry_run) as service:
        yield service, foresee_catching_up(context, service) if dry_run else catch_up(context, service, progress)


def _of(operation: Literal["undo", "redo"], caught_up: CaughtUp | None) -> list[RestoreResult]:
    return [caught_up.result] if caught_up is not None and caught_up.operation == operation else []


def _is_left(service: UndoService | None, run: str) -> bool:
    return service is not None and any(
        step.run == run and step.state == "done" and step.paths for step in service.steps()
    )
