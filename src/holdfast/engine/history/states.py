"""The states of a workspace's history: which lie ahead, which are kept, and where nothing more is."""

from __future__ import annotations

from holdfast.engine.history.saved_rules import left_out
from holdfast.engine.history.status import present
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change
    from holdfast.store.records import Cursor, HistoryEvent


def ahead(context: Context, position: int, tip: int) -> list[HistoryEvent]:
    """The states from just after ``position`` on the way to ``tip``, the next first, that are still kept."""
    path: list[HistoryEvent] = []
    while (onward := _chain(context, position, tip)) is None:
        undone_from = context.catalog.event(position).ahead
        if undone_from is None:
            return []
        path.append(context.catalog.event(undone_from))
        position = undone_from
    return [event for event in (*path, *onward) if kept(context, event) is not None]


def _chain(context: Context, position: int, tip: int) -> list[HistoryEvent] | None:
    """The states after ``position`` up to ``tip``, each of which replaced the one before; None if they do not."""
    path: list[HistoryEvent] = []
    seq: int | None = tip
    while seq is not None and seq != position:
        event = context.catalog.event(seq)
        path.append(event)
        seq = event.previous
    return None if seq is None else path[::-1]


def came_to_light(context: Context, cursor: Cursor) -> bool:
    """True if all that is unsaved are files that a state which was undone ignores: the undo took its rules away, and
    nobody has changed anything.
    """
    if cursor.position is None or cursor.redo_tip is None or cursor.position == cursor.redo_tip:
        return False
    changes = present(context, gone_is_empty=True).changes()
    left = {change.path for change in changes}
    if not changes or any(change.before is not None for change in changes):
        return False
    for state in ahead(context, cursor.position, cursor.redo_tip):
        left -= left_out(context, context.catalog.checkpoint(state.checkpoint).root, left)
        if not left:
            return True
    return False


def out_of_sight(context: Context, changes: Sequence[Change]) -> bool:
    """True if all that seems deleted is there: the rules on the disk, which no state holds, leave it out."""
    return all(change.after is None for change in changes) and all(
        context.tree.is_there(change.path) for change in changes
    )


def kept(context: Context, state: HistoryEvent) -> Checkpoint | None:
    """The checkpoint of a state, or None if it was forgotten since."""
    try:
        return context.catalog.checkpoint(state.checkpoint)
    except NotFoundError:
        return None


def check_count(count: int) -> None:
    if count < 1:
        raise UsageError(f"cannot go {count} states; give a number from 1")


def nothing(verb: str, saved: Checkpoint | None = None) -> NotFoundError:
    """The error; ``saved`` is the checkpoint that was made just before, if one was."""
    known = "" if saved is None else f"what was not saved yet is checkpoint {saved.id[:12]} now; "
    return NotFoundError(
        f"there is nothing (more) to {verb}",
        hint=f"{known}`holdfast log` lists the states there are",
        code=f"nothing_to_{verb}",
    )
