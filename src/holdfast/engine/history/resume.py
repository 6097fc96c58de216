"""The one way in which a restore that was cut short is finished, or taken back.

`restore --continue` and `--abort` come here, undo and redo by checkpoints among what they mend, and so do sessions
for a checkout, a merge, a pick or an adoption of theirs. What somebody has changed since stays as it is, and is said
(`holdfast.engine.history.partial_restore`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.ballast import with_ballast
from holdfast.engine.history.partial_restore import Mending
from holdfast.engine.history.restore import UNDO_COMMAND, carry_out, result, save_as, save_as_its_own, save_first
from holdfast.engine.history.status import present
from holdfast.engine.opening import restore_journal as journals
from holdfast.engine.opening.mount_guard import make_root
from holdfast.engine.opening.undo_log import any_since, kept_still
from holdfast.model.errors import LockedError, NotFoundError, RefusedError
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.restore_journal import Journal
    from holdfast.engine.results.results import RestoreResult
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.model.sinks import Progress

_LOG = Log(__name__)


def unfinished(context: Context) -> Journal | None:
    """The restore that was cut short, if there is one. One that is still at work in another process is not."""
    journal = journals.read(context.folder)
    if journal is None:
        return None
    try:
        with context.lock(timeout=0):
            return journals.read(context.folder)
    except LockedError:
        return None


def resume(context: Context, progress: Progress | None = None, *, as_state: bool = False) -> RestoreResult:
    """Finish a restore or fork that was cut short. What the tree holds by now is saved first and stays in the
    history. What somebody has changed since is left alone, and in ``skipped``. ``as_state`` as `restore` has it.

    Cut short in its turn, it is finished by another call. Raises `NotFoundError` (code ``nothing_unfinished``), also
    before anything is saved or changed if the checkpoint that it was going to is gone; it can be taken back then.
    """
    with context.lock(), with_ballast(context), kept_still(context):
        journal = _require_unfinished(context)
        done = _mend(context, journal, progress)
        # (What it had done before it was cut short is not among what is done now.)
        if as_state and journal.operation == "restore" and present(context).changes():
            save_as_its_own(context, journal, progress)
        return done


def abandon(context: Context, progress: Progress | None = None) -> RestoreResult:
    """Take a restore that was cut short back: the tree becomes what it was before it began, but for what somebody has
    changed since, which is left alone, and in ``skipped``. Otherwise as `resume`.
    """
    with context.lock(), with_ballast(context), kept_still(context):
        journal = _require_unfinished(context)
        if journal.rescue is None:
            raise RefusedError(
                f"the unfinished fork in {display(context.workspace.path)} began with an empty directory",
                hint="finish it with `holdfast restore --continue`, or delete the directory",
            )
        if journal.taken_back is not None:
            return _mend(context, journal, progress)  # that is what it was doing
        return _mend(
            context,
            journal._replace(
                operation="undo", target=journal.rescue, state=journal.position, taken_back=journal.target
            ),
            progress,
            again=False,
        )


def _mend(context: Context, journal: Journal, progress: Progress | None, *, again: bool = True) -> RestoreResult:
    """Bring the tree from wherever it is to the journal's target. Needs the lock."""
    target = _target(context, journal)
    kept = context.tree.clean(journal.nonce).kept
    if journal.operation == "fork":
        from holdfast.engine.history.write_out import write_out

        done = result(journal, write_out(context, journal, progress))
    else:
        apart = None
        if any_since(context, journal):
            make_root(context)
            now, apart = save_as(context, "checkpoint", progress)
        else:
            now = save_first(context, progress)
        # What has come to light or was made since was not there to be deleted when the restore began; on the way back
        # nothing is deleted but what the restore may have made.
        before = context.catalog.checkpoint(journal.rescue or journal.target)
        after, evidence = target.root, before.root
        if journal.taken_back is not None:
            after = evidence = _root_taken_back(context, journal.taken_back, before)
        mending = Mending(evidence, (before.root, after), again, apart)
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


def _root_taken_back(context: Context, taken_back: CheckpointId, before: Checkpoint) -> Hash:
    """What ``taken_back`` holds, to which a restore was going from ``before``; of ``before`` if nothing is left of it:
    what the restore did is then spared as if somebody had done it since.
    """
    try:
        return context.catalog.checkpoint(taken_back).root
    except NotFoundError:
        pinned = context.catalog.pinned_root(taken_back)
    if pinned is not None:
        return pinned
    _LOG.warning(
        "the checkpoint %s was forgotten: what the restore to it did cannot be told from what somebody has changed "
        "since, and stays; `holdfast restore %s` takes all of it back",
        taken_back,
        before.id[:12],
    )
    return before.root


def _require_unfinished(context: Context) -> Journal:
    journal = journals.read(context.folder)
    if journal is None:
        raise NotFoundError("no restore was cut short in this workspace", code="nothing_unfinished")
    return journal
