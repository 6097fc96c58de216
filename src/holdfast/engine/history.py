"""Undo and redo: one change back, one change forward, along the events that changed the tree.

Every checkpoint and every full restore is a state; each knows the state that it replaced. What happened between two
states is taken back step by step, by the undo log, as far as steps made it (`holdfast.engine.reversing`), and for the
rest by going to the earlier state. `redo` goes the same way forward, towards the newest state that was undone. Nothing
is ever taken out of the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.engine.journal import Journal
from holdfast.engine.restore import carry_out, new_nonce, preview, refuse_unfinished, save_first
from holdfast.engine.results import RestoreResult
from holdfast.engine.reversing import (
    bring_forward,
    bring_forward_alone,
    foreseen,
    refuse_open,
    steps_since,
    take_back,
)
from holdfast.engine.rules import left_out
from holdfast.engine.status import present
from holdfast.engine.steps import quiet, reached, required
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.store import manifest
from holdfast.store.records import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import Progress
    from holdfast.store.records import Cursor
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
    ``nothing_to_undo`` if there are not that many; if no step was taken back until then, nothing is touched.
    `RefusedError` if somebody else has changed the same since (``force`` goes ahead).
    """
    _check_count(count)
    with context.lock(), reached(context) as service:
        walk = _Walk(context, service, force=force, progress=progress)
        if dry_run:
            return walk.foresee(count)
        with quiet(service):
            cursor = context.catalog.cursor(context.workspace.id)
            refuse_unfinished(context)
            context.tree.make_root()
            if not _came_to_light(context, cursor):
                saved = save_first(context, progress)
                # What only went out of sight is no change to take back: the state before it is.
                count += walk.is_out_of_sight(cursor, saved)
            return walk.back(count)


def undo_steps(
    context: Context,
    *,
    step: int | None = None,
    run: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Take back one step, or all that a run did (``run`` empty: the newest one).

    Where the undo log does not hold all of a run any more, what is missing is taken back by the checkpoint that the
    run began with: not what was ignored. Raises as `undo`.
    """
    with context.lock(), reached(context) as service, quiet(service):
        refuse_unfinished(context)
        context.tree.make_root()
        if step is not None:
            chosen = [found for found in required(service).steps() if found.id == step]
            if not chosen:
                raise NotFoundError(
                    f"there is no step {step} in the undo log", hint="holdfast steps lists those that are"
                )
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
    _check_count(count)
    with context.lock(), reached(context) as service, quiet(service):
        if not dry_run:
            refuse_unfinished(context)
        cursor = context.catalog.cursor(context.workspace.id)
        if cursor.position is None or cursor.redo_tip is None:
            raise _nothing("redo")
        ahead = _ahead(context, cursor.position, cursor.redo_tip)
        if count > len(ahead):
            raise _nothing("redo")
        if not _came_to_light(context, cursor) and present(context).changes():
            raise RefusedError(
                "the tree has changed since the undo, so there is nothing to redo onto it",
                hint="`holdfast undo` saves those changes and takes them back; `holdfast log` lists every state",
                code="changed_since_undo",
            )
        if dry_run:
            return preview(context, context.catalog.checkpoint(ahead[count - 1].checkpoint))
        return _Walk(context, service, force=force, progress=progress).forward(ahead[:count])


def redo_step(context: Context, step: int, *, force: bool = False, progress: Progress | None = None) -> RestoreResult:
    """Bring one undone step forward, onto whatever is there now; what was there is saved first."""
    with context.lock(), reached(context) as service, quiet(service):
        refuse_unfinished(context)
        context.tree.make_root()
        save_first(context, progress)
        return bring_forward_alone(context, required(service), step, force=force, progress=progress)


class _Target(NamedTuple):
    """Where an undo leads next."""

    state: HistoryEvent
    back: int
    """How many changes lie between, which checkpoints take back."""
    steps: Sequence[StepInfo]
    """With ``back`` 0: the steps, newest first, of which the first is to be taken back."""


class _Walk:
    """Goes along the history of one workspace, whose lock is held."""

    def __init__(
        self, context: Context, service: UndoService | None, *, force: bool, progress: Progress | None
    ) -> None:
        self._context = context
        self._service = service
        self._force = force
        self._progress = progress

    def is_out_of_sight(self, before: Cursor, saved: Checkpoint) -> bool:
        """Whether a state that was saved just now is new, and only by what went out of sight."""
        if before.head is None or before.head == saved.id or steps_since(self._context, self._service, self._now()):
            return False
        head = self._context.catalog.checkpoint(before.head)
        return _out_of_sight(self._context, manifest.diff(self._context.store.pages, head.root, saved.root))

    def back(self, count: int) -> RestoreResult:
        """Take back ``count`` changes, from the state that was just saved."""
        done: list[RestoreResult] = []
        while count:
            now = self._now()
            try:
                target = self._next(now, self._root(now), count)
            except NotFoundError as error:
                raise _short(error, done) from None
            if target.back:
                checkpoint = self._context.catalog.checkpoint(target.state.checkpoint)
                done.append(self._go("undo", now, target.state, checkpoint))
                count -= target.back
            else:
                assert self._service is not None
                newest = target.steps[:1]
                done.append(take_back(self._context, self._service, newest, force=self._force, progress=self._progress))
                count -= 1
        return _together(done)

    def forward(self, states: Sequence[HistoryEvent]) -> RestoreResult:
        """Go to the last of ``states``, which lie ahead, one behind the other."""
        done: list[RestoreResult] = []
        at = 0
        while at < len(states):
            now = self._now()
            if now.steps and now.ahead == states[at].seq:
                result = self._bring_forward(states[at])
                if result is not None:
                    done.append(result)
                    at += 1
                    continue
            at += 1
            while at < len(states) and not (states[at - 1].steps and states[at - 1].ahead == states[at].seq):
                at += 1
            state = states[at - 1]
            done.append(self._go("redo", now, state, self._context.catalog.checkpoint(state.checkpoint)))
        return _together(done)

    def foresee(self, count: int) -> RestoreResult:
        """What `back` would do, as far as it can be told without doing it. Changes nothing."""
        context = self._context
        cursor = context.catalog.cursor(context.workspace.id)
        now = None if cursor.position is None else context.catalog.event(cursor.position)
        at_present = present(context, gone_is_empty=True)
        root, target = at_present.root, None
        written, deleted, steps = list[bytes](), list[bytes](), list[int]()
        changes = at_present.changes()
        if changes and not _came_to_light(context, cursor) and not _out_of_sight(context, changes):
            now = HistoryEvent(0, context.clock.now(), "checkpoint", CheckpointId(""), cursor.position)
        if now is None:
            raise _nothing("undo")
        while count:
            found = self._next(now, root, count, done=steps)
            if found.back:
                now, count = found.state, count - found.back
                target = context.catalog.checkpoint(now.checkpoint)
                root = target.root
            else:
                assert self._service is not None
                newest = found.steps[:1]
                lists = foreseen(self._service, newest)
                written, deleted, steps = [*written, *lists[0]], [*deleted, *lists[1]], [*steps, newest[0].id]
                count -= 1
        shown = None if target is None else preview(context, target)
        return RestoreResult(
            checkpoint=now.checkpoint or cursor.head or CheckpointId("") if shown is None else shown.checkpoint,
            rescue=None,
            written=sorted({*written, *(shown.written if shown else ())}),
            deleted=sorted({*deleted, *(shown.deleted if shown else ())}),
            skipped=[],
            dry_run=True,
            undo_command=None,
            steps=steps,
        )

    def _now(self) -> HistoryEvent:
        cursor = self._context.catalog.cursor(self._context.workspace.id)
        if cursor.position is None:
            raise _nothing("undo")
        return self._context.catalog.event(cursor.position)

    def _root(self, state: HistoryEvent) -> Hash:
        return self._context.catalog.checkpoint(state.checkpoint).root

    def _next(self, now: HistoryEvent, root: Hash, most: int, done: Sequence[int] = ()) -> _Target:
        """Where to go from ``now``: to where a step has to be taken back, or ``most`` changes back."""
        state, back = now, 0
        while True:
            steps = [step for step in steps_since(self._context, self._service, state) if step.id not in done]
            if steps:
                return _Target(state, back, steps)
            if not self._force:
                refuse_open(self._context, self._service, state)
            while True:
                if state.previous is None:
                    raise _nothing("undo")
                state = self._context.catalog.event(state.previous)
                checkpoint = _kept(self._context, state)
                if checkpoint is not None:
                    break
            if checkpoint.root != root:
                root, back = checkpoint.root, back + 1
            if back == most:
                return _Target(state, back, ())

    def _bring_forward(self, target: HistoryEvent) -> RestoreResult | None:
        """Redo by the undo log; None if it does not hold the steps any more."""
        try:
            if self._service is not None:
                return bring_forward(self._context, self._service, target, force=self._force)
        except NotFoundError:
            pass
        _LOG.warning(
            "the undo log does not hold the steps any more: "
            "what checkpoints hold is brought back, ignored files are not"
        )
        return None

    def _go(
        self, operation: Literal["undo", "redo"], now: HistoryEvent, state: HistoryEvent, target: Checkpoint
    ) -> RestoreResult:
        context = self._context
        journal = Journal(
            operation=operation,
            target=target.id,
            rescue=now.checkpoint,
            position=now.seq,
            state=state.seq,
            paths=(),
            nonce=new_nonce(context),
            at=context.clock.now(),
            redo_tip=context.catalog.cursor(context.workspace.id).redo_tip,
        )
        return carry_out(context, journal, context.catalog.checkpoint(now.checkpoint), target, self._progress)


def _undo_run(
    context: Context, service: UndoService | None, run: str, *, force: bool, progress: Progress | None
) -> RestoreResult:
    of_run = [step for step in service.steps() if step.run == run] if service is not None else []
    if not force and any(step.state == "open" and step.paths for step in of_run):
        raise RefusedError(
            f"the run {run} is still going on", hint="--force takes back what it has finished", code="step_open"
        )
    events = [event for event in context.catalog.events(context.workspace.id) if event.run == run]
    chosen = [step for step in of_run if step.state == "done" and step.paths]
    evicted = {step for event in events for step in event.steps}.difference(step.id for step in of_run)
    if not of_run and not events:
        raise NotFoundError(f"there was no run {run}", hint="holdfast log and holdfast steps show the runs")
    if of_run and not chosen and not evicted:
        raise NotFoundError(f"nothing of the run {run} is left to undo", code="nothing_to_undo")
    save_first(context, progress)
    done: list[RestoreResult] = []
    if chosen:
        assert service is not None
        done.append(take_back(context, service, chosen, force=force, progress=progress))
    if evicted or not of_run:
        _LOG.warning(
            "the undo log does not hold all of the run any more: what is missing is taken back by the checkpoint "
            "that it began with, ignored files are not"
        )
        done.append(_to_the_start(context, events[-1], progress))
    return _together(done)


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
    taken_back = {step.run for step in steps}
    for event in context.catalog.events(context.workspace.id):
        if event.run and event.run not in taken_back and (event.steps or not steps):
            return event.run
    raise NotFoundError("there is no run to undo", hint="holdfast run -- COMMAND makes one", code="nothing_to_undo")


def _together(done: Sequence[RestoreResult]) -> RestoreResult:
    """What several moves did, one after the other."""
    last = done[-1]
    if len(done) == 1:
        return last
    there: dict[bytes, bool] = {}
    for result in done:
        there |= dict.fromkeys(result.written, True) | dict.fromkeys(result.deleted, False)
    return last._replace(
        rescue=done[0].rescue,
        written=sorted(path for path, is_there in there.items() if is_there),
        deleted=sorted(path for path, is_there in there.items() if not is_there),
        skipped=[item for result in done for item in result.skipped],
        steps=[step for result in done for step in result.steps],
    )


def _short(error: NotFoundError, done: Sequence[RestoreResult]) -> NotFoundError:
    if not done:
        return error
    back = ", ".join(str(step) for result in done for step in result.steps)
    return NotFoundError(
        f"there is nothing more to undo; step {back} was taken back",
        hint="`holdfast redo` brings it forward again",
        code="nothing_to_undo",
    )


def _ahead(context: Context, position: int, tip: int) -> list[HistoryEvent]:
    """The states from just after ``position`` on the way to ``tip``, the next first, that are still kept."""
    path: list[HistoryEvent] = []
    while (onward := _chain(context, position, tip)) is None:
        undone_from = context.catalog.event(position).ahead
        if undone_from is None:
            return []
        path.append(context.catalog.event(undone_from))
        position = undone_from
    return [event for event in (*path, *onward) if _kept(context, event) is not None]


def _chain(context: Context, position: int, tip: int) -> list[HistoryEvent] | None:
    """The states after ``position`` up to ``tip``, each of which replaced the one before; None if they do not."""
    path: list[HistoryEvent] = []
    seq: int | None = tip
    while seq is not None and seq != position:
        event = context.catalog.event(seq)
        path.append(event)
        seq = event.previous
    return None if seq is None else path[::-1]


def _came_to_light(context: Context, cursor: Cursor) -> bool:
    """True if all that is unsaved are files that a state which was undone ignores: the undo took its rules away, and
    nobody has changed anything.
    """
    if cursor.position is None or cursor.redo_tip is None or cursor.position == cursor.redo_tip:
        return False
    changes = present(context, gone_is_empty=True).changes()
    left = {change.path for change in changes}
    if not changes or any(change.before is not None for change in changes):
        return False
    for state in _ahead(context, cursor.position, cursor.redo_tip):
        left -= left_out(context, context.catalog.checkpoint(state.checkpoint).root, left)
        if not left:
            return True
    return False


def _out_of_sight(context: Context, changes: Sequence[Change]) -> bool:
    """True if all that seems deleted is there: the rules on the disk, which no state holds, leave it out."""
    return all(change.after is None for change in changes) and all(
        context.tree.is_there(change.path) for change in changes
    )


def _kept(context: Context, state: HistoryEvent) -> Checkpoint | None:
    """The checkpoint of a state, or None if it was forgotten since."""
    try:
        return context.catalog.checkpoint(state.checkpoint)
    except NotFoundError:
        return None


def _check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"cannot go {count} states; give a number from 1")


def _nothing(verb: str) -> NotFoundError:
    return NotFoundError(
        f"there is nothing (more) to {verb}",
        hint="`holdfast log` lists the states there are",
        code=f"nothing_to_{verb}",
    )
