"""Interrupted operations: each is finished or reversed, and recorded in the history, only here.

An interrupted reversal of steps is finished by the next command that changes the tree or the history. An interrupted
restore waits for `restore --continue` or `--abort`; sessions and promotions call this module for their own. Automatic
checkpoints do neither: they save the present tree and keep the operation's record.
"""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.engine.history._restore_plan import Resumption
from holdfast.engine.history._step_reversal import preview_steps, record_reversal
from holdfast.engine.history.restore import (
    UNDO_COMMAND,
    carry_out,
    record_result,
    record_state,
    restore_result,
    save_rescue,
)
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.context import pause_watcher, with_disk_reserve
from holdfast.engine.opening.identity import recreate_root
from holdfast.engine.opening.operation_journal import read_operation, remove_operation
from holdfast.engine.opening.undo_log import any_step_since, open_and_quieten, open_service
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import named_steps
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation, OperationKind
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import Progress
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_SHOWN = 3
_LOOKED_BACK = 200
_SAVES = ("checkpoint", "prompt")
"""Events with which the tree was saved, and nothing else has happened."""
"""Events to search for the end of a restore."""


class FinishedOperation(NamedTuple):
    """An interrupted operation that was finished."""

    operation: OperationKind
    result: RestoreResult


def settle(
    context: Context,
    operation: Operation,
    service: UndoService | None,
    progress: Progress | None = None,
    *,
    back: bool = False,
) -> RestoreResult | None:
    """Finish an interrupted operation, or (``back``) reverse it, and record it in the history: the one way for all
    commands. Needs the lock. None if it had not begun.

    Reversals of steps are finished by the undo log when it is opened, and never reversed themselves.
    """
    if operation.steps:
        return _settle_steps(context, operation, service, progress)
    if not back or operation.taken_back is not None:  # a reversal goes on in its own direction
        return _go_on(context, operation, progress)
    if operation.rescue is None:
        raise RefusedError(
            f"the unfinished fork in {display(context.workspace.path)} began with an empty directory",
            hint="finish it with `holdfast restore --continue`, or delete the directory",
        )
    way_back = operation._replace(
        kind="undo", target=operation.rescue, state=operation.position, taken_back=operation.target
    )
    return _go_on(context, way_back, progress, again=False)


def finish_interrupted(
    context: Context, service: UndoService | None, progress: Progress | None = None
) -> FinishedOperation | None:
    """Settle an interrupted undo or redo of steps, before another command. Needs the lock. One that is recorded but was
    never reported is reported, and counts.

    None without one, or if it had not begun. An operation by checkpoints waits for the user. Raises `FormatError` if
    the record is damaged.
    """
    operation = read_operation(context.folder)
    if operation is None or not operation.steps:
        return None
    result = settle(context, operation, service, progress)
    if result is None:
        return None
    steps = f"{named_steps(operation.steps)} {'was' if len(operation.steps) == 1 else 'were'}"
    alone = _skipped_text(result.skipped)
    if operation.kind == "undo":
        said = f"an undo that was cut short is finished: {steps} taken back{alone}; `holdfast redo` brings it forward"
    else:
        said = f"a redo that was cut short is finished: {steps} brought forward{alone}; `holdfast undo` takes it back"
    _LOG.warning("%s again", said)
    return FinishedOperation(operation.kind, result)


def preview_finish(context: Context, service: UndoService | None) -> FinishedOperation | None:
    """The result and the report that `finish_interrupted` would give after the undo log's part; changes nothing. Needs
    the lock.
    """
    from holdfast.undo.local_service.undo_service import LocalUndoService

    operation = read_operation(context.folder)
    if operation is None or not operation.steps or service is None:
        return None
    if not (_entry(context, operation) or _is_next(context, operation)):
        return None
    pending = service.unfinished if isinstance(service, LocalUndoService) else ()
    if not set(operation.steps).issubset(pending) and not _is_done(service, operation):
        return None
    _LOG.warning(
        "the %s that was cut short would be finished first: only then can Holdfast foresee the rest",
        operation.kind,
    )
    backward = operation.kind == "undo"
    seen = preview_steps(context, service, operation.steps, backward=backward, begun=True)
    return FinishedOperation(operation.kind, seen)


def lock_and_finish(context: Context, progress: Progress | None = None) -> None:
    """`finish_interrupted` for a command that does not use the undo log otherwise, with a running watcher paused."""
    with pause_watcher(context), context.lock(as_found=True), open_service(context) as service:
        finish_interrupted(context, service, progress)


@contextmanager
def log_failure() -> Generator[None]:
    """For checkpoints, which must not fail because of an interrupted operation: log it and keep its record."""
    try:
        yield
    except HoldfastError as error:
        _LOG.warning(
            "an undo or a redo was cut short and cannot be finished now, so the next save takes the tree as it is: %s",
            error,
        )


def resume(context: Context, progress: Progress | None = None, *, as_state: bool = False) -> RestoreResult:
    """Finish a restore or fork that was cut short. The present tree is saved first and stays in the history. Paths that
    others changed since stay, and are in ``skipped``. ``as_state`` as in `restore`.

    After another interruption, call it again. Raises `NotFoundError` if there is none (code ``nothing_unfinished``),
    and if its target checkpoint is gone: then nothing was saved or changed, and `abandon` still works.
    """
    return _settle_restore(context, progress, back=False, as_state=as_state)


def abandon(context: Context, progress: Progress | None = None) -> RestoreResult:
    """Reverse a restore that was cut short: the tree returns to its state before, except for paths that others changed
    since, which stay and are in ``skipped``. Otherwise as `resume`.
    """
    return _settle_restore(context, progress, back=True, as_state=False)


def has_reached(context: Context, target: CheckpointId, since: int) -> bool:
    """Whether the history has the end of an operation to ``target`` that began after the event ``since``: another
    process may have finished or reversed it, or undone its result.
    """
    moves = (one for one in context.catalog.events(context.workspace.id, limit=_LOOKED_BACK) if one.seq > since)
    newest = next((one for one in moves if one.operation in ("restore", "undo", "redo")), None)
    reached = context.catalog.cursor(context.workspace.id).head if newest is None else newest.checkpoint
    return reached == target


def _settle_restore(context: Context, progress: Progress | None, *, back: bool, as_state: bool) -> RestoreResult:
    with context.lock(), with_disk_reserve(context), open_and_quieten(context):
        operation = read_operation(context.folder)
        done = None
        if operation is not None and not operation.steps:
            done = settle(context, operation, None, progress, back=back)
            # The changes from before the interruption are unsaved, and not among those made now.
            if as_state and operation.kind == "restore" and scan_tree(context).changes():
                record_result(context, operation, progress)
        if done is None:
            raise NotFoundError("no restore was cut short in this workspace", code="nothing_unfinished")
        return done


# Steps that were being reversed.


def _settle_steps(
    context: Context, operation: Operation, service: UndoService | None, progress: Progress | None
) -> RestoreResult | None:
    entry = _entry(context, operation)
    if service is None or not _is_done(service, operation) or not (entry or _is_next(context, operation)):
        remove_operation(context.folder, operation)
        return None
    with service.quiet():
        return record_reversal(context, service, operation, progress, entry)


def _skipped_text(skipped: Sequence[NotCaptured]) -> str:
    """The paths that a finished reversal skipped: its own process may have reported them to another user."""
    if not skipped:
        return ""
    shown = ", ".join(f"{display(item.path)} ({item.reason})" for item in skipped[:_SHOWN])
    return f", except for these, left as they are: {shown}{', …' if len(skipped) > _SHOWN else ''}"


def _is_done(service: UndoService, operation: Operation) -> bool:
    """Whether all of the steps were reversed since the record was left."""
    acted = {step.id: step.acted for step in service.steps()}
    return all(acted.get(step, 0) > operation.acted for step in operation.steps)


def _entry(context: Context, operation: Operation) -> HistoryEvent | None:
    """The event of the reversal, if it is recorded already: a kill may have come between the record and the report.
    Since then the tree may have been saved, but nothing else has happened.
    """
    since = operation.position or 0
    for event in context.catalog.events(context.workspace.id):
        if event.operation not in _SAVES or event.seq <= since:
            is_its = event.seq > since and (event.operation, event.steps) == (operation.kind, operation.steps)
            return event if is_its else None
    return None


def _is_next(context: Context, operation: Operation) -> bool:
    """Whether nothing has happened since but that the tree was saved."""
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at != operation.position:
        state = context.catalog.event(at)
        if state.operation not in _SAVES:
            return False
        at = state.previous
    return at is not None


# A tree on its way to a checkpoint. Others' changes since then stay and are reported
# (`holdfast.engine.history._restore_plan`).


def _go_on(context: Context, operation: Operation, progress: Progress | None, *, again: bool = True) -> RestoreResult:
    """Bring the tree from any intermediate state to the operation's target. Needs the lock."""
    target = _target(context, operation)
    kept = context.tree.clean(operation.nonce).kept
    if operation.kind == "fork":
        from holdfast.engine.history.tree_copy import write_out

        done = restore_result(operation, write_out(context, operation, progress))
    else:
        apart = None
        if any_step_since(context, operation):
            recreate_root(context)
            now, apart = record_state(context, "checkpoint", progress)
        else:
            now = save_rescue(context, progress)
        # Files that appeared since the restore began were not there to be deleted; a reversal deletes only files that
        # the restore may have made.
        before = context.catalog.checkpoint(operation.rescue or operation.target)
        after, evidence = target.root, before.root
        if operation.taken_back is not None:
            after = evidence = _root_of(context, operation.taken_back, before)
        mending = Resumption(evidence, (before.root, after), again, apart)
        done = carry_out(context, operation, now, target, progress, mending=mending)
        if apart is not None:
            undo_command = UNDO_COMMAND if done.written or done.deleted else None
            done = done._replace(rescue=now.id, undo_command=undo_command)
        elif operation.taken_back is not None:
            # The intermediate state is not in the history, but can be restored.
            back = f"holdfast restore {now.id[:12]}" if done.written or done.deleted else None
            done = done._replace(rescue=now.id, undo_command=back)
    return done._replace(skipped=[*kept, *done.skipped])


def _target(context: Context, operation: Operation) -> Checkpoint:
    try:
        return context.catalog.checkpoint(operation.target)
    except NotFoundError as error:
        if operation.taken_back is not None:
            raise
        raise NotFoundError(
            f"the checkpoint {operation.target} was forgotten: "
            f"the {operation.kind} that was cut short cannot be finished",
            hint="delete the directory, and fork another checkpoint"
            if operation.kind == "fork"
            else "`holdfast restore --abort` goes back to the state before",
        ) from error


def _root_of(context: Context, taken_back: CheckpointId, before: Checkpoint) -> Hash:
    """The manifest of ``taken_back``, the target of a restore from ``before``. If it is gone, that of ``before``: the
    restore's changes are then kept, as if others had made them since.
    """
    try:
        return context.catalog.checkpoint(taken_back).root
    except NotFoundError:
        pinned = context.catalog.pinned_root(taken_back)
    if pinned is not None:
        return pinned
    _LOG.warning(
        "the checkpoint %s was forgotten: Holdfast cannot tell the changes of its restore from later "
        "edits, and leaves both; `holdfast restore %s` takes all of them back",
        taken_back,
        before.id[:12],
    )
    return before.root
