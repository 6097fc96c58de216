"""Restores, undos and redos that were cut short: each is brought to its end and entered in the history.

A command that is about to change the tree or the history does this first. What saves by itself does not: it keeps what
there is, and the note that says what was under way.
"""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.engine.history._restore_plan import Resumption
from holdfast.engine.history._step_reversal import (
    preview_steps,
    record_redone,
    record_undone,
    repeat_result,
    undo_effect,
)
from holdfast.engine.history.restore import (
    UNDO_COMMAND,
    carry_out,
    record_result,
    record_state,
    restore_result,
    save_rescue,
)
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.context import with_disk_reserve
from holdfast.engine.opening.identity import recreate_root
from holdfast.engine.opening.operation_journal import (
    Journal,
    UndoNote,
    read_journal,
    read_undo_note,
    refuse_unfinished,
    remove_undo_note,
)
from holdfast.engine.opening.undo_log import any_step_since, open_and_quieten, open_service
from holdfast.model.errors import HoldfastError, LockedError, NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.message_text import named_steps
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Literal

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.command_results import RestoreResult
    from holdfast.model.content import Progress
    from holdfast.model.entries import NotCaptured
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_SHOWN = 3


class FinishedOperation(NamedTuple):
    """What had been cut short, and is done."""

    operation: Literal["undo", "redo"]
    result: RestoreResult


def finish_interrupted(
    context: Context, service: UndoService | None, progress: Progress | None = None
) -> FinishedOperation | None:
    """Enter in the history what an undo or a redo that was cut short has left, once the undo log has finished it. Needs
    the lock. What is entered, and was told to no user, is said all the same, and counts.

    None if there was none, or it had not begun. Raises `FormatError` if the note of it is damaged, `RefusedError` while
    a restore is unfinished.
    """
    note = read_undo_note(context.folder)
    if note is None:
        return None
    refuse_unfinished(context.folder)
    entry = _entry(context, note)
    if service is None or not _is_done(service, note) or not (entry or _is_next(context, note)):
        remove_undo_note(context.folder)
        return None
    with service.quiet():
        if entry is not None:
            result = repeat_result(context, service, note, entry)
        elif note.operation == "undo":
            result = record_undone(context, service, note, undo_effect(service, note.steps), progress)
        else:
            result = record_redone(context, service, note, progress)
    steps = f"{named_steps(note.steps)} {'was' if len(note.steps) == 1 else 'were'}"
    alone = _skipped_text(result.skipped)
    if note.operation == "undo":
        said = f"an undo that was cut short is finished: {steps} taken back{alone}; `holdfast redo` brings it forward"
    else:
        said = f"a redo that was cut short is finished: {steps} brought forward{alone}; `holdfast undo` takes it back"
    _LOG.warning("%s again", said)
    return FinishedOperation(note.operation, result)


def preview_finish(context: Context, service: UndoService | None) -> FinishedOperation | None:
    """What `finish_interrupted` would do and return, once the undo log has finished it: said, and not done. Needs the
    lock.
    """
    from holdfast.undo.local_service.undo_service import LocalUndoService

    note = read_undo_note(context.folder)
    if note is None or service is None or not (_entry(context, note) or _is_next(context, note)):
        return None
    refuse_unfinished(context.folder)
    pending = service.unfinished if isinstance(service, LocalUndoService) else ()
    if not set(note.steps).issubset(pending) and not _is_done(service, note):
        return None
    _LOG.warning(
        "the %s that was cut short would be finished first: what would come after that can be foreseen once it is",
        note.operation,
    )
    backward = note.operation == "undo"
    return FinishedOperation(note.operation, preview_steps(context, service, note.steps, backward=backward, begun=True))


def lock_and_finish(context: Context, progress: Progress | None = None) -> None:
    """`finish_interrupted`, for what has nothing else to do with the undo log."""
    with context.lock(as_found=True), open_service(context) as service:
        finish_interrupted(context, service, progress)


@contextmanager
def log_failure() -> Generator[None]:
    """For saving, which must not fail because something else cannot be finished: that is said, and its note stays."""
    try:
        yield
    except HoldfastError as error:
        _LOG.warning(
            "an undo or a redo was cut short and cannot be finished now, so what there is will be saved as it is: %s",
            error,
        )


def _skipped_text(skipped: Sequence[NotCaptured]) -> str:
    """What a finished reversal has not brought back: the process that finished it may have told another user."""
    if not skipped:
        return ""
    shown = ", ".join(f"{display(item.path)} ({item.reason})" for item in skipped[:_SHOWN])
    return f" but for what was left as it is: {shown}{', …' if len(skipped) > _SHOWN else ''}"


def _is_done(service: UndoService, note: UndoNote) -> bool:
    """Whether all of the steps were reversed since the note was left."""
    acted = {step.id: step.acted for step in service.steps()}
    return all(acted.get(step, 0) > note.acted for step in note.steps)


def _entry(context: Context, note: UndoNote) -> HistoryEvent | None:
    """What the history has of it already: killed just after that was entered, it was not told. Since then the tree may
    have been saved, and nothing else has happened.
    """
    for event in context.catalog.events(context.workspace.id):
        if event.operation != "checkpoint" or event.seq <= note.position:
            is_its = event.seq > note.position and (event.operation, event.steps) == (note.operation, note.steps)
            return event if is_its else None
    return None


def _is_next(context: Context, note: UndoNote) -> bool:
    """Whether nothing has happened since but that the tree was saved."""
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at != note.position:
        state = context.catalog.event(at)
        if state.operation != "checkpoint":
            return False
        at = state.previous
    return at is not None


# The one way in which a restore that was cut short is finished, or taken back.
#
# `restore --continue` and `--abort` come here, undo and redo by checkpoints among what they mend, and so do sessions
# for a checkout, a merge, a pick or an adoption of theirs. What others have changed since stays as it is, and is said
# (`holdfast.engine.history._restore_plan`).


def unfinished(context: Context) -> Journal | None:
    """The restore that was cut short, if there is one. One that is still at work in another process is not."""
    journal = read_journal(context.folder)
    if journal is None:
        return None
    try:
        with context.lock(timeout=0):
            return read_journal(context.folder)
    except LockedError:
        return None


def resume(context: Context, progress: Progress | None = None, *, as_state: bool = False) -> RestoreResult:
    """Finish a restore or fork that was cut short. What the tree holds by now is saved first and stays in the
    history. What others have changed since is left alone, and in ``skipped``. ``as_state`` as `restore` has it.

    Cut short in its turn, it is finished by another call. Raises `NotFoundError` (code ``nothing_unfinished``), also
    before anything is saved or changed if the checkpoint that it was going to is gone; it can be taken back then.
    """
    with context.lock(), with_disk_reserve(context), open_and_quieten(context):
        journal = _require_unfinished(context)
        done = _go_on(context, journal, progress)
        # (What it had done before it was cut short is not among what is done now.)
        if as_state and journal.operation == "restore" and scan_tree(context).changes():
            record_result(context, journal, progress)
        return done


def abandon(context: Context, progress: Progress | None = None) -> RestoreResult:
    """Take a restore that was cut short back: the tree becomes what it was before it began, but for what others have
    changed since, which is left alone, and in ``skipped``. Otherwise as `resume`.
    """
    with context.lock(), with_disk_reserve(context), open_and_quieten(context):
        journal = _require_unfinished(context)
        if journal.rescue is None:
            raise RefusedError(
                f"the unfinished fork in {display(context.workspace.path)} began with an empty directory",
                hint="finish it with `holdfast restore --continue`, or delete the directory",
            )
        if journal.taken_back is not None:
            return _go_on(context, journal, progress)  # that is what it was doing
        return _go_on(
            context,
            journal._replace(
                operation="undo", target=journal.rescue, state=journal.position, taken_back=journal.target
            ),
            progress,
            again=False,
        )


def _go_on(context: Context, journal: Journal, progress: Progress | None, *, again: bool = True) -> RestoreResult:
    """Bring the tree from wherever it is to the journal's target. Needs the lock."""
    target = _target(context, journal)
    kept = context.tree.clean(journal.nonce).kept
    if journal.operation == "fork":
        from holdfast.engine.history.tree_copy import write_out

        done = restore_result(journal, write_out(context, journal, progress))
    else:
        apart = None
        if any_step_since(context, journal):
            recreate_root(context)
            now, apart = record_state(context, "checkpoint", progress)
        else:
            now = save_rescue(context, progress)
        # What has come to light or was made since was not there to be deleted when the restore began; on the way back
        # nothing is deleted but what the restore may have made.
        before = context.catalog.checkpoint(journal.rescue or journal.target)
        after, evidence = target.root, before.root
        if journal.taken_back is not None:
            after = evidence = _root_of(context, journal.taken_back, before)
        mending = Resumption(evidence, (before.root, after), again, apart)
        done = carry_out(context, journal, now, target, progress, mending=mending)
        if apart is not None:
            undo_command = UNDO_COMMAND if done.written or done.deleted else None
            done = done._replace(rescue=now.id, undo_command=undo_command)
        elif journal.taken_back is not None:
            # Half way is no state of the history, but what was there can be had again.
            back = f"holdfast restore {now.id[:12]}" if done.written or done.deleted else None
            done = done._replace(rescue=now.id, undo_command=back)
    return done._replace(skipped=[*kept, *done.skipped])


def _target(context: Context, journal: Journal) -> Checkpoint:
    try:
        return context.catalog.checkpoint(journal.target)
    except NotFoundError as error:
        if journal.taken_back is not None:
            raise
        raise NotFoundError(
            f"the checkpoint {journal.target} was forgotten: "
            f"the {journal.operation} that was cut short cannot be finished",
            hint="delete the directory, and fork another checkpoint"
            if journal.operation == "fork"
            else "`holdfast restore --abort` goes back to what was before",
        ) from error


def _root_of(context: Context, taken_back: CheckpointId, before: Checkpoint) -> Hash:
    """What ``taken_back`` holds, to which a restore was going from ``before``; of ``before`` if nothing is left of it:
    what the restore did is then spared as if others had done it since.
    """
    try:
        return context.catalog.checkpoint(taken_back).root
    except NotFoundError:
        pinned = context.catalog.pinned_root(taken_back)
    if pinned is not None:
        return pinned
    _LOG.warning(
        "the checkpoint %s was forgotten: what the restore to it did cannot be told from what others have changed "
        "since, and stays; `holdfast restore %s` takes all of it back",
        taken_back,
        before.id[:12],
    )
    return before.root


def _require_unfinished(context: Context) -> Journal:
    journal = read_journal(context.folder)
    if journal is None:
        raise NotFoundError("no restore was cut short in this workspace", code="nothing_unfinished")
    return journal
