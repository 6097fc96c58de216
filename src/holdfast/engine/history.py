"""Undo and redo: one state back, one state forward, along the events that changed the tree.

Every checkpoint and every full restore is a state; each knows the state that it replaced. `undo` goes to that one,
`redo` towards the newest state that was undone. Nothing is ever taken out of the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.engine.journal import Journal
from holdfast.engine.restore import carry_out, new_nonce, preview, refuse_unfinished, save_first
from holdfast.engine.rules import left_out
from holdfast.engine.status import present
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.store import manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.engine.results import RestoreResult
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import Progress
    from holdfast.store.records import Cursor, HistoryEvent


def undo(context: Context, count: int = 1, *, dry_run: bool = False, progress: Progress | None = None) -> RestoreResult:
    """Take back the newest ``count`` changes to the tree; unsaved changes are saved first and are the first one.

    Raises `NotFoundError` with code ``nothing_to_undo`` if there are not that many; then nothing is touched, and the
    hint names the checkpoint that holds what was not saved before.
    """
    _check_count(count)
    new: Checkpoint | None = None
    with context.lock():
        cursor = context.catalog.cursor(context.workspace.id)
        if not dry_run:
            refuse_unfinished(context)
            context.tree.make_root()
        if _came_to_light(context, cursor):
            steps = count
        elif dry_run:
            changes = present(context, gone_is_empty=True).changes()
            steps = count if not changes or _out_of_sight(context, changes) else count - 1
        else:
            saved = save_first(context, progress)
            # What only went out of sight is no change to take back: the state before it is.
            steps = count + 1 if _is_new_and_out_of_sight(context, cursor, saved) else count
            new = saved if saved.id != cursor.head else None
            cursor = context.catalog.cursor(context.workspace.id)
        if cursor.position is None:
            raise _nothing("undo")
        now = context.catalog.event(cursor.position)
        state, target = now, context.catalog.checkpoint(now.checkpoint)
        for _ in range(steps):
            before = _before(context, state, target.root)
            if before is None:
                raise _nothing("undo", new)
            state, target = before
        if dry_run:
            return preview(context, target)
        return _go(context, "undo", now, state, target, progress)


def redo(context: Context, count: int = 1, *, dry_run: bool = False, progress: Progress | None = None) -> RestoreResult:
    """Bring back the newest ``count`` changes that `undo` took back.

    Raises `NotFoundError` with code ``nothing_to_redo`` if there are not that many, and `RefusedError` if the tree has
    changed since the undo: those changes would be lost from sight.
    """
    _check_count(count)
    with context.lock():
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
        state = ahead[count - 1]
        target = context.catalog.checkpoint(state.checkpoint)
        if dry_run:
            return preview(context, target)
        now = context.catalog.event(cursor.position)
        return _go(context, "redo", now, state, target, progress)


def _go(
    context: Context,
    operation: Literal["undo", "redo"],
    now: HistoryEvent,
    state: HistoryEvent,
    target: Checkpoint,
    progress: Progress | None,
) -> RestoreResult:
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
    return carry_out(context, journal, context.catalog.checkpoint(now.checkpoint), target, progress)


def _before(context: Context, state: HistoryEvent, root: Hash) -> tuple[HistoryEvent, Checkpoint] | None:
    """The nearest earlier state that is still kept and is not the same tree, if there is one."""
    at = state
    while at.previous is not None:
        at = context.catalog.event(at.previous)
        checkpoint = _kept(context, at)
        if checkpoint is not None and checkpoint.root != root:
            return at, checkpoint
    return None


def _ahead(context: Context, position: int, tip: int) -> list[HistoryEvent]:
    """The states from just after ``position`` up to ``tip``, oldest first, that are still kept."""
    path: list[HistoryEvent] = []
    seq: int | None = tip
    while seq is not None and seq != position:
        event = context.catalog.event(seq)
        path.append(event)
        seq = event.previous
    return [] if seq is None else [event for event in reversed(path) if _kept(context, event) is not None]


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


def _is_new_and_out_of_sight(context: Context, before: Cursor, saved: Checkpoint) -> bool:
    if before.head is None or before.head == saved.id:
        return False
    head = context.catalog.checkpoint(before.head)
    return _out_of_sight(context, manifest.diff(context.store.pages, head.root, saved.root))


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


def _nothing(verb: str, saved: Checkpoint | None = None) -> NotFoundError:
    """The error; ``saved`` is the checkpoint that was made just before, if one was."""
    known = "" if saved is None else f"what was not saved yet is checkpoint {saved.id[:12]} now; "
    return NotFoundError(
        f"there is nothing (more) to {verb}",
        hint=f"{known}`holdfast log` lists the states there are",
        code=f"nothing_to_{verb}",
    )
