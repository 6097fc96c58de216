"""Undo and redo: one change back, one change forward, along the events that changed the tree.

Every checkpoint and every full restore is a state; each knows the state that it replaced. Between two states, changes
of steps are undone step by step by the undo log (`holdfast.engine.history._step_reversal`), and all others by going to
the earlier state. `redo` goes the same way forward, towards the newest state that was undone. Nothing is ever removed
from the history.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial

from holdfast.engine.history._navigator import HistoryNavigator, merge_results
from holdfast.engine.history._step_reversal import (
    Effect,
    files_at,
    preview_steps,
    reapply_steps,
    reverse_steps,
    reversible_steps,
)
from holdfast.engine.history._undo_guards import (
    check_count,
    floor_at,
    is_set_aside_run,
    kept_checkpoint,
    naming_processes,
    nothing_error,
    only_ignored_files,
    only_unignored_files,
    redo_chain,
    refuse_set_aside_run,
    refuse_set_aside_steps,
)
from holdfast.engine.history.restore import REDO_COMMAND, carry_out, preview, save_rescue
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.context import with_disk_reserve
from holdfast.engine.opening.identity import recreate_root
from holdfast.engine.opening.operation_journal import new_operation, refuse_unfinished, reverses_steps
from holdfast.engine.opening.undo_log import (
    find_steps,
    has_ended,
    open_service,
    quieten,
    require_service,
    touched_paths,
)
from holdfast.model.command_results import StoppedProcess
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import named_processes, process_details, step_options
from holdfast.model.paths import display, under
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Literal

    from holdfast.engine.history.recovery import FinishedOperation
    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import HistoryEvent
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import Progress
    from holdfast.undo.service import StepInfo, UndoService


# Undoing a whole run: by the undo log, and steps that it has forgotten by the checkpoint from the run's beginning.

_LOG = Log(__name__)

_SHOWN = 5


class _RunRemainder(NamedTuple):
    """The part of a run that can still be undone."""

    steps: Sequence[StepInfo]
    start: HistoryEvent | None
    """The run's beginning, if the undo log lacks steps: its checkpoint undoes the missing ones."""


_PAUSE = 0.02
_KILLED_SECONDS = 30.0
"""How long a busy machine may take to end killed processes."""


def newest_run(context: Context, service: UndoService | None) -> str:
    """The newest run with changes left to reverse."""
    steps: Sequence[StepInfo] = service.steps() if service is not None else ()
    done = [step for step in steps if step.run and (step.state == "open" or _is_to_undo(step)) and step.paths]
    if done:
        return max(done, key=lambda step: step.acted).run
    known = {step.run for step in steps}
    events: dict[str, list[HistoryEvent]] = {}
    for event in context.catalog.events(context.workspace.id):
        if event.run:
            events.setdefault(event.run, []).append(event)
    for run, of_run in events.items():
        if _is_forgotten(context, service, of_run, [step for step in steps if step.run == run]):
            return run
    if any(known) or events:
        raise NotFoundError(
            "no run is left to undo",
            hint="`holdfast redo` brings undone steps forward; `holdfast steps` shows them",
            code="nothing_to_undo",
        )
    raise NotFoundError("there is no run to undo", hint="holdfast run -- COMMAND makes one", code="nothing_to_undo")


def preview_run(
    context: Context, service: UndoService | None, run: str, *, force: bool, recorded_only: bool
) -> RestoreResult:
    """The result that `undo_run` would have. Changes nothing."""
    chosen, start = _remainder_of(context, service, run, force=force, recorded_only=recorded_only)
    done: list[RestoreResult] = []
    if chosen:
        assert service is not None
        done.append(preview_steps(context, service, [step.id for step in chosen], backward=True, force=force))
    if start is not None:
        target = context.catalog.checkpoint(start.checkpoint)
        last = preview(context, target)
        if chosen and service is not None:
            steps = Effect([*done[0].written], [*done[0].deleted], {})
            held = files_at(context, service, target, steps, [step.id for step in chosen])
            last = last._replace(foreseen=held | {**last.foreseen})
        done.append(last)
    return merge_results(done)


def undo_run(
    context: Context,
    service: UndoService | None,
    run: str,
    *,
    force: bool,
    recorded_only: bool,
    progress: Progress | None,
) -> RestoreResult:
    """Undo the rest of a run, all of it or nothing, after saving the present state. Needs the lock.

    Raises `NotFoundError` if nothing is left, or the rest cannot be undone any more. Raises `RefusedError` if the run
    still goes on, if others' changes would be undone with it (``recorded_only``: might be), or (``steps_forgotten``) if
    the log has forgotten steps, so that ignored files would keep their changes; and as `reverse_steps`.
    """
    chosen, start = _remainder_of(context, service, run, force=force, recorded_only=recorded_only)
    # A return to the run's first checkpoint may change any path.
    save_rescue(
        context, progress, touched=tuple if start else partial(touched_paths, service, [step.id for step in chosen])
    )
    navigator = HistoryNavigator(context, service, force=force, progress=progress)
    before = navigator.current_state()
    done: list[RestoreResult] = []
    if chosen:
        assert service is not None
        done.append(reverse_steps(context, service, chosen, force=force, progress=progress))
    if start is not None:
        _LOG.warning(
            "the undo log has forgotten steps of the run: the checkpoint before the run takes their "
            "changes back; ignored files that they changed stay as they are"
        )
        try:
            done.append(_restore_start(context, start, progress))
        except HoldfastError as error:
            raise navigator.bring_forward_again(before, done, error) from error
    result = merge_results(done)
    if start is not None and chosen:
        again = REDO_COMMAND + step_options(sorted(result.steps))
        ways = [way for way in (done[-1].undo_command, again) if way is not None]
        return result._replace(undo_command=" && ".join(ways))
    return result


def _remainder_of(
    context: Context, service: UndoService | None, run: str, *, force: bool, recorded_only: bool
) -> _RunRemainder:
    """Raises as `undo_run`."""
    steps = service.steps() if service is not None else ()
    of_run = [step for step in steps if step.run == run]
    if not force and service is not None and any(step.state == "open" and step.paths for step in of_run):
        raise _still_running(service, run)
    events = [event for event in context.catalog.events(context.workspace.id) if event.run == run]
    if not of_run and not events:
        raise NotFoundError(f"there was no run {run}", hint="holdfast log and holdfast steps show the runs")
    chosen = [step for step in of_run if _is_to_undo(step) and step.paths]
    start = None
    if _is_forgotten(context, service, events, of_run):
        start = _start_of(context, run, events)
    if not chosen and (start is None or _is_taken_back(context, start)):
        raise NotFoundError(f"nothing of the run {run} is left to undo", code="nothing_to_undo")
    if start is not None and recorded_only:
        raise RefusedError(
            f"the undo log no longer holds all of the run {run}, and the checkpoint before it "
            "would also take back edits by other processes",
            code="barrier",
        )
    if start is not None and not force:
        refuse_set_aside_run(context, events)
        _refuse_later_steps(steps, start)
        if context.settings.undo.outside != "warn":
            _refuse_edits(context, service, events, of_run)
        raise RefusedError(
            f"the undo log has forgotten steps of the run {run}: undo can no longer bring back "
            "ignored files that they changed or removed",
            hint="--force takes back the remaining steps, and the rest by the checkpoint before the run",
            code="steps_forgotten",
        )
    return _RunRemainder(chosen, start)


def _still_running(service: UndoService, run: str) -> RefusedError:
    found = service.processes(run)
    return RefusedError(
        f"the run {run} is still running{f': {named_processes(found)}' if found else ''}",
        hint=f"`holdfast undo --run {run} --stop` ends it first; --force takes back its finished steps",
        code="step_open",
        data={"run": run, "processes": process_details(found)},
    )


def _is_forgotten(
    context: Context, service: UndoService | None, events: Sequence[HistoryEvent], of_run: Sequence[StepInfo]
) -> bool:
    """Whether the undo log has forgotten steps of the run: it reports so, or a step that the run ended with is missing;
    for a run without a noted end, if there is no log, or one was set aside since.
    """
    if service is None:
        return not _has_ended(events) or any(event.steps for event in events)
    if events and (
        events[-1].run in service.forgotten() or (not _has_ended(events) and is_set_aside_run(context, events))
    ):
        return True
    return not {step for event in events for step in event.steps}.issubset(step.id for step in of_run)


def _start_of(context: Context, run: str, events: Sequence[HistoryEvent]) -> HistoryEvent:
    """The beginning of a run, of which the checkpoint is still kept."""
    if events and kept_checkpoint(context, events[-1]) is not None:
        return events[-1]
    raise NotFoundError(
        f"the undo log no longer holds all of the run {run}, and the checkpoint before it is gone too",
        hint="`holdfast steps` lists the steps that undo can still take back",
    )


def _is_taken_back(context: Context, start: HistoryEvent) -> bool:
    """Whether the tree's state follows from a return to the checkpoint at the run's beginning."""
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at > start.seq:
        state = context.catalog.event(at)
        if state.operation == "restore" and state.checkpoint == start.checkpoint:
            return True
        at = state.previous
    return False


def _refuse_later_steps(steps: Sequence[StepInfo], start: HistoryEvent) -> None:
    """Raise `RefusedError` if others than the run that began with ``start`` have changed the tree since: the checkpoint
    would take that back as well.
    """
    others = [
        str(step.id)
        for step in steps
        if step.run != start.run and step.paths and step.state != "undone" and not has_ended(step, start)
    ]
    if others:
        raise RefusedError(
            f"the undo log no longer holds all of the run {start.run}, and the checkpoint before it "
            f"would also take back later steps: {', '.join(others)}",
            hint="undo those first, or --force takes all of it back",
            code="others_since",
        )


def _refuse_edits(
    context: Context, service: UndoService | None, events: Sequence[HistoryEvent], of_run: Sequence[StepInfo]
) -> None:
    """Raise `RefusedError` if the tree has changes since the run's end that its own steps do not explain: others made
    them, and the checkpoint would undo them as well (I8).
    """
    missing = f"the undo log no longer holds all of the run {events[-1].run}"
    end = kept_checkpoint(context, events[0]) if _has_ended(events) else None
    if end is None:
        raise RefusedError(
            f"{missing}, and the state at its end is not known: the checkpoint before it would also "
            "take back later edits by other processes",
            hint="--force takes all of it back",
            code="others_since",
        )
    now = scan_tree(context, gone_is_empty=True)
    own: set[bytes] = set()
    for step in of_run:
        assert service is not None
        own |= {change.path for change in service.changes(step.id)}
    changes = [
        change
        for change in manifest.diff(now.pages, end.root, now.root)
        if not any(under(change.path, path) for path in own)
    ]
    if changes and not only_ignored_files(context, changes):
        shown = ", ".join(display(change.path) for change in changes[:_SHOWN])
        raise RefusedError(
            f"{missing}, and the checkpoint before it would also take back later edits by other "
            f"processes: {shown}{', …' if len(changes) > _SHOWN else ''}",
            hint="undo that first, or --force takes all of it back",
            code="others_since",
        )


def _has_ended(events: Sequence[HistoryEvent]) -> bool:
    """Whether a run's end was noted, and not its beginning alone."""
    return len(events) > 1


def _restore_start(context: Context, begin: HistoryEvent, progress: Progress | None) -> RestoreResult:
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.head is not None
    now, target = context.catalog.checkpoint(cursor.head), context.catalog.checkpoint(begin.checkpoint)
    operation = new_operation(context, "restore", target.id, rescue=now.id)
    return carry_out(context, operation, now, target, progress)


def stop_run(context: Context, run: str) -> tuple[str, Sequence[StoppedProcess]]:
    """End the processes of a run (empty: the newest): SIGTERM to each of them, and to no other process; SIGKILL to
    those left after ``undo.stop_timeout``. Returns the run and the processes, when its steps are closed.

    Raises `NotFoundError` if there is no run, `RefusedError` if a process does not end.
    """
    import signal  # short commands do without it

    with open_service(context) as service:
        run = run or newest_run(context, service)
        found = () if service is None else service.processes(run)
        if service is None or not found:
            return run, ()
        with _tolerate_keeper_end():
            for number in (signal.SIGTERM, signal.SIGKILL):
                service.signal(run, number)
                if _wait(context, lambda: service.signal(run, 0) == 0, killed=number == signal.SIGKILL):
                    break
            else:
                raise RefusedError(
                    f"{named_processes(service.processes(run))} of the run {run} did not end",
                    hint="nothing was taken back; end these processes, and try again",
                    code="step_open",
                )
            steps = service.steps
            _wait(context, lambda: not any(step.run == run and step.state == "open" for step in steps()), killed=True)
    return run, [StoppedProcess(one.pid, one.command, one.step) for one in found]


@contextmanager
def _tolerate_keeper_end() -> Generator[None]:
    """With the last process of the last run its keeper ends, which closes the steps."""
    from holdfast.supervisor.control.keeper_port import GONE

    try:
        yield
    except HoldfastError as error:
        if error.code != GONE:
            raise


def _wait(context: Context, is_so: Callable[[], bool], *, killed: bool) -> bool:
    """Wait until the condition holds, for ``undo.stop_timeout``, or longer for killed processes; whether it does."""
    deadline = context.clock.monotonic() + (_KILLED_SECONDS if killed else context.settings.undo.stop_timeout)
    while not (found := is_so()) and context.clock.monotonic() < deadline:
        time.sleep(_PAUSE)
    return found


def undo(
    context: Context,
    count: int = 1,
    *,
    to: int | None = None,
    force: bool = False,
    recorded_only: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Undo the newest ``count`` changes to the tree, or all since a prompt (``to``: its number); unsaved changes are
    saved first and count as the newest.

    The undo log reverses steps, ignored files included. Raises `NotFoundError` with code ``nothing_to_undo``, before
    any file is changed, if there are fewer changes, or none since the prompt: ``data`` has their number
    (``available``), and the hint names the checkpoint of the unsaved changes. Raises `RefusedError` if others have
    changed the same paths since (``force`` goes ahead), or with ``recorded_only`` if neither a step nor Holdfast made
    one of the changes. Then the tree is as before; if the undone part cannot be redone, ``data`` has its steps
    (``taken_back``) and the number of changes that `redo` must bring forward (``redo``). An interrupted undo is
    finished first, and counts.
    """
    check_count(count)
    with _open_log(context, progress, dry_run=dry_run) as (service, finished):
        if dry_run and finished is not None:
            return finished.result
        begin = partial(
            HistoryNavigator,
            context,
            service,
            force=force,
            progress=progress,
            recorded_only=recorded_only,
            floor=None if to is None else floor_at(context, service, to),
        )
        if dry_run:
            with naming_processes(service):
                return begin().preview_back(count if to is None else None)
        done = _results_of("undo", finished)
        if to is None:
            if len(done) == count:
                return done[0]
            count -= len(done)
        with quieten(service):
            navigator = begin()  # what a server changes between this and the save would be taken for others'
            cursor = context.catalog.cursor(context.workspace.id)
            refuse_unfinished(context.folder)
            recreate_root(context)
            hidden = 0
            if not only_unignored_files(context, cursor):
                navigator.refuse_unsaved()
                saved = save_rescue(context, progress, touched=partial(navigator.touched, cursor))
                # Files that are merely ignored now are no change to undo: the state before that one is.
                hidden = int(navigator.is_only_hidden(cursor, saved))
                navigator.rescue = saved if saved.id != cursor.head else None
            number = None if to is not None else count + hidden
            if number != 1:  # for a single change, `back` itself finds out before it changes anything
                try:
                    navigator.refuse_too_many(number, hidden=hidden)
                except NotFoundError:
                    if to is None or not done:
                        raise
                    return done[0]  # it was all that could be undone
            return merge_results([*done, navigator.back(number, hidden=hidden)])


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
    """Undo these steps together, or (without any) all changes of a run (``run`` empty: the newest one).

    If the undo log lacks steps of the run, the checkpoint at its beginning undoes them, except for ignored files (not
    with ``recorded_only``). Raises as `undo`. An interrupted attempt at the same is finished. ``stop``: the run's
    processes are ended first (`stop_run`).
    """
    if stop:
        run, stopped = stop_run(context, run)
        try:
            done = undo_steps(context, run=run, force=force, recorded_only=recorded_only, progress=progress)
        except HoldfastError as error:
            error.data = {**(error.data or {}), "stopped": process_details(stopped)}
            raise
        return done._replace(stopped=stopped)
    with _open_log(context, progress, dry_run=dry_run) as (service, finished):
        refuse_set_aside_steps(context, service, steps)
        if dry_run:
            if finished is not None:
                return finished.result
            with naming_processes(service):
                if steps:
                    return preview_steps(context, require_service(service), steps, backward=True, force=force)
                return preview_run(
                    context, service, run or newest_run(context, service), force=force, recorded_only=recorded_only
                )
        with quieten(service):
            refuse_unfinished(context.folder)
            recreate_root(context)
            for done in _results_of("undo", finished):
                its_run = find_steps(require_service(service), done.steps)[0].run
                run = run or ("" if steps else its_run)
                if set(done.steps) == set(steps) or (not steps and run == its_run and not _is_left(service, run)):
                    return done
            if steps:
                chosen = reversible_steps(require_service(service), steps, backward=True)
                save_rescue(context, progress, touched=partial(touched_paths, service, steps))
                return reverse_steps(context, require_service(service), chosen, force=force, progress=progress)
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

    Raises `NotFoundError` with code ``nothing_to_redo`` if there are not that many (``data`` has how many there are:
    ``available``), and `RefusedError` if the tree has changed since the undo: those changes would be lost from sight. A
    redo that was cut short is finished first, and counts.
    """
    check_count(count)
    with _open_log(context, progress, dry_run=dry_run) as (service, finished), quieten(service):
        done: list[RestoreResult] = []
        if dry_run:
            if finished is not None:
                return finished.result
        else:
            refuse_unfinished(context.folder)
            done = _results_of("redo", finished)
            if len(done) == count:
                return done[0]
            count -= len(done)
        cursor = context.catalog.cursor(context.workspace.id)
        if cursor.position is None or cursor.redo_tip is None:
            raise nothing_error("redo")
        onward = redo_chain(context, cursor.position, cursor.redo_tip)
        if count > len(onward):
            raise nothing_error("redo", available=len(onward))
        navigator = HistoryNavigator(context, service, force=force, progress=progress)
        if not only_unignored_files(context, cursor) and navigator.has_changed(scan_tree(context).changes()):
            raise RefusedError(
                "the tree has changed since the undo, so there is nothing to redo onto it",
                hint="`holdfast undo` saves those changes and takes them back; `holdfast log` lists every state",
                code="changed_since_undo",
            )
        if dry_run:
            return navigator.preview_forward(onward[:count])
        return merge_results([*done, navigator.forward(onward[:count])])


def redo_steps(
    context: Context,
    steps: Sequence[int],
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Redo undone steps together, onto the present tree, which is saved first.

    An interrupted attempt at the same is finished.
    """
    with _open_log(context, progress, dry_run=dry_run) as (service, finished), quieten(service):
        refuse_set_aside_steps(context, service, steps)
        if dry_run:
            if finished is not None:
                return finished.result
            return preview_steps(context, require_service(service), steps, backward=False, force=force)
        refuse_unfinished(context.folder)
        for done in _results_of("redo", finished):
            if set(done.steps) == set(steps):
                return done
        recreate_root(context)
        save_rescue(context, progress, touched=partial(touched_paths, service, steps))
        return reapply_steps(context, require_service(service), steps, force=force, progress=progress)


@contextmanager
def _open_log(
    context: Context, progress: Progress | None, *, dry_run: bool
) -> Generator[tuple[UndoService | None, FinishedOperation | None]]:
    """The undo log, with the workspace's lock; and the interrupted operation that was finished, and is in the history
    now (``dry_run``: that would be finished first).
    """
    room = nullcontext() if dry_run else with_disk_reserve(context)
    with context.lock(as_found=True), room, open_service(context, read_only=dry_run) as service:
        if not reverses_steps(context.folder):
            yield service, None
            return
        from holdfast.engine.history.recovery import (  # operations are rarely interrupted
            finish_interrupted,
            preview_finish,
        )

        yield service, preview_finish(context, service) if dry_run else finish_interrupted(context, service, progress)


def _results_of(operation: Literal["undo", "redo"], finished: FinishedOperation | None) -> list[RestoreResult]:
    return [finished.result] if finished is not None and finished.operation == operation else []


def _is_left(service: UndoService | None, run: str) -> bool:
    return service is not None and any(step.run == run and _is_to_undo(step) and step.paths for step in service.steps())


def _is_to_undo(step: StepInfo) -> bool:
    """Whether the step is done, or what the system refused when it was undone is left of it."""
    return step.state == "done" or step.refused == "undo"
