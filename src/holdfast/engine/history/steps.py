"""Taking steps back and bringing them forward by the undo log, and entering that in the workspace's history.

The history is a chain of states; between two of them lie the steps that ended since the earlier one. What an undo of
steps leaves is a state of its own: it stands on the newest state from before those steps began, and knows (``ahead``)
the state that they were undone from, which redo brings forward by the same steps.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from holdfast.engine.history.checkpoint import Recorded, take_touched
from holdfast.engine.history.known_states import noting
from holdfast.engine.history.open_steps import with_processes
from holdfast.engine.history.outside_policy import crossing
from holdfast.engine.history.path_changes import effect
from holdfast.engine.history.preview import brought, foreseen, reversible
from holdfast.engine.history.restore import REDO_COMMAND, UNDO_COMMAND
from holdfast.engine.history.states import kept
from holdfast.engine.history.status import present
from holdfast.engine.opening import undo_note
from holdfast.engine.opening.early_scan import recall
from holdfast.engine.opening.undo_log import infos, touched
from holdfast.engine.opening.undo_note import Note
from holdfast.engine.results.results import Request, RestoreResult
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.records import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import Literal

    from holdfast.engine.history.path_changes import Effect
    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import CheckpointId
    from holdfast.model.sinks import Progress
    from holdfast.undo.service import StepInfo, UndoService


def reverse_steps(
    context: Context,
    service: UndoService,
    steps: Sequence[StepInfo],
    *,
    force: bool,
    progress: Progress | None,
) -> RestoreResult:
    """Undo steps from the state that the tree was just saved in, and save what that leaves. Needs the lock.

    Raises what `UndoService.undo` raises; then nothing is touched. Killed in between, `catch_up` does the rest.
    """
    steps = sorted(steps, key=lambda step: step.acted, reverse=True)
    note = _note(context, "undo", steps)
    seen = [service.changes(step) for step in note.steps]
    try:
        recall()
        with _noted(context, note):
            crossing(context, service, note.steps, service.undo, force=force)
    except RefusedError as error:
        raise _with_a_way_out(context, with_processes(service, error), note.position) from None
    return enter_undone(context, service, note, effect(seen, backward=True), progress)


def enter_undone(
    context: Context,
    service: UndoService,
    note: Note,
    what: Effect,
    progress: Progress | None,
) -> RestoreResult:
    """Save what the undo of the steps left, as a state of its own; then nothing is unfinished any more."""
    head = _saved_before(context, note)
    before = _before(context, note.position, infos(service, note.steps))
    event = HistoryEvent(0, 0, "undo", head, before, note.position, note.steps)
    left = take_touched(
        context,
        Request(kind="auto"),
        partial(touched, service, note.steps),
        progress,
        recorded=Recorded(event, note.redo_tip),
    )
    return _told(context, service, note, left.id, what)


def bring_forward(
    context: Context, service: UndoService, target: HistoryEvent, *, force: bool, progress: Progress | None
) -> RestoreResult:
    """Redo the steps of the state that the tree is in, which leads to ``target``. Needs the lock.

    Raises what `UndoService.redo` raises; then nothing is touched. Killed in between, `catch_up` does the rest.
    """
    position = context.catalog.cursor(context.workspace.id).position
    assert position is not None
    return _bring_forward(context, service, context.catalog.event(position).steps, target.seq, force, progress)


def reapply_steps(
    context: Context, service: UndoService, steps: Sequence[int], *, force: bool, progress: Progress | None
) -> RestoreResult:
    """Redo steps, together, onto the state that the tree was just saved in: a new change, which undo takes back. Needs
    the lock. Raises, and is cut short, as `bring_forward`.
    """
    return _bring_forward(context, service, steps, None, force, progress)


def _bring_forward(
    context: Context,
    service: UndoService,
    steps: Sequence[int],
    target: int | None,
    force: bool,
    progress: Progress | None,
) -> RestoreResult:
    note = _note(context, "redo", reversible(service, steps, backward=False), target)
    recall()
    with _noted(context, note):
        crossing(context, service, note.steps, service.redo, force=force)
    return enter_redone(context, service, note, progress)


def enter_redone(context: Context, service: UndoService, note: Note, progress: Progress | None) -> RestoreResult:
    """Enter in the history that the steps were brought forward; then nothing is unfinished any more."""
    head = _saved_before(context, note)
    target = None if note.target is None else context.catalog.event(note.target)
    if target is not None and kept(context, target) is not None:
        _go_on_to(context, target, note)
        reached = target.checkpoint
    else:
        event = HistoryEvent(
            0, 0, "redo", head, context.catalog.cursor(context.workspace.id).position, None, note.steps
        )
        reached = take_touched(
            context,
            Request(kind="auto"),
            partial(touched, service, note.steps),
            progress,
            recorded=Recorded(event, None),
        ).id
    return _told(context, service, note, reached, brought(service, note.steps))


def told_again(context: Context, service: UndoService, note: Note, entry: HistoryEvent) -> RestoreResult:
    """What the history has as ``entry`` already, and nobody was told of; then nothing is unfinished any more."""
    effect_of = foreseen if note.operation == "undo" else brought
    return _told(context, service, note, entry.checkpoint, effect_of(service, note.steps))


def _told(context: Context, service: UndoService, note: Note, reached: CheckpointId, what: Effect) -> RestoreResult:
    """The result. The note goes last: killed before, whoever comes next says what was done."""
    way = REDO_COMMAND if note.operation == "undo" else way_back(service, note.steps)
    rescue = _saved_before(context, note)
    result = _result(context, reached, rescue, note.steps, what, _left(service, note.steps), way)
    undo_note.remove(context.folder)
    return result


def _go_on_to(context: Context, target: HistoryEvent, note: Note) -> None:
    """Let the history stand at the state that the steps were undone from."""
    catalog, workspace = context.catalog, context.workspace.id
    catalog.record_event(
        workspace,
        context.event("redo", target.checkpoint, steps=note.steps),
        expected=catalog.cursor(workspace),
        head=target.checkpoint,
        position=target.seq,
        redo_tip=note.redo_tip,
    )
    with noting(context) as note_contents:
        root = catalog.checkpoint(target.checkpoint).root
        if present(context).root == root:
            note_contents(root)


def _note(
    context: Context, operation: Literal["undo", "redo"], steps: Sequence[StepInfo], target: int | None = None
) -> Note:
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.position is not None
    assert cursor.redo_tip is not None
    return Note(
        operation,
        cursor.position,
        cursor.redo_tip,
        target,
        max(step.acted for step in steps),
        tuple(step.id for step in steps),
    )


@contextmanager
def _noted(context: Context, note: Note) -> Generator[None]:
    """Leave the note while the steps are being reversed, and until the history knows; not if that is refused."""
    undo_note.write(context.folder, note)
    try:
        yield
    except (RefusedError, NotFoundError, IntegrityError):
        undo_note.remove(context.folder)
        raise


def _saved_before(context: Context, note: Note) -> CheckpointId:
    """The checkpoint of what was there before: after a kill, something half way may have been saved since."""
    saved = kept(context, context.catalog.event(note.position))
    if saved is not None:
        return saved.id
    head = context.catalog.cursor(context.workspace.id).head
    assert head is not None
    return head


def _result(
    context: Context,
    checkpoint: CheckpointId,
    rescue: CheckpointId,
    steps: Sequence[int],
    what: Effect,
    left: Sequence[NotCaptured],
    undo_command: str,
) -> RestoreResult:
    written, deleted = what
    alone = {one.path for one in left}

    def is_so(path: bytes, *, there: bool) -> bool:
        # (What was left alone somewhere else may have been on its way to here, or from here.)
        return path not in alone and (not alone or context.tree.is_there(path, directories=True) is there)

    return RestoreResult(
        checkpoint=checkpoint,
        rescue=rescue,
        written=[path for path in written if is_so(path, there=True)],
        deleted=[path for path in deleted if is_so(path, there=False)],
        skipped=left,
        dry_run=False,
        undo_command=undo_command,
        steps=steps,
    )


def way_back(service: UndoService, steps: Sequence[int]) -> str:
    """The command that takes back steps which were just brought forward together: all of them, and nothing else."""
    chosen = sorted(infos(service, steps), key=lambda step: step.acted)
    if len(chosen) == 1 or set(steps) == set(service.connected(chosen[-1].id)):
        return UNDO_COMMAND  # they are the newest change
    run = chosen[0].run
    of_run = {step.id for step in service.steps() if step.run == run and step.paths}
    if run and of_run == set(steps) and run not in service.forgotten():
        return f"{UNDO_COMMAND} --run {run}"
    return UNDO_COMMAND + "".join(f" --step {step.id}" for step in chosen)


def _before(context: Context, position: int, steps: Sequence[StepInfo]) -> int | None:
    """The newest state before ``position`` that is from before any of the steps began."""
    begun, began = min(step.begun for step in steps), min(step.started_at for step in steps) // 1000
    at = context.catalog.event(position).previous
    while at is not None:
        state = context.catalog.event(at)
        # (An earlier version has recorded no number.)
        if state.at <= began if state.undo_seq is None else state.undo_seq < begun:
            break
        at = state.previous
    return at


def _left(service: UndoService, steps: Iterable[int]) -> list[NotCaptured]:
    """What the reversal of the steps left as it is: all of it, also where several processes had their part in it."""
    return [NotCaptured(one.path, one.account) for step in steps for one in service.conflicts(step)]


def _with_a_way_out(context: Context, error: RefusedError, position: int) -> RefusedError:
    previous = context.catalog.event(position).previous
    hint = error.hint or ""
    if previous is not None:
        saved = context.catalog.event(previous).checkpoint[:12]
        hint += f"{'; ' if hint else ''}`holdfast restore {saved}` goes back by what checkpoints hold"
    return RefusedError(error.message, hint=hint or None, code=error.code, data=error.data)
