"""Writes entries to a workspace's history, and decides its position after each: the only module that does.

The history is a chain of states, each with its predecessor. An entry is a new state, which becomes the position, or
records how an existing state was reached. `redo` follows the chain to the redo tip.
"""

from __future__ import annotations

from holdfast.model.checkpoint import HistoryEvent
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation
    from holdfast.model.checkpoint import EventKind
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog_records import Cursor


class HistoryEntry(NamedTuple):
    """An event to append, without values that are known only then, and the workspace's position after it."""

    operation: EventKind
    previous: int | None = None
    """The state that it replaces."""
    ahead: int | None = None
    """The state from which steps were undone to this one; of a prompt that is no state, the one it came in."""
    steps: tuple[int, ...] = ()
    run: str = ""
    position: int | None = None
    """The position after it; None: this state."""
    redo_tip: int | None = None
    """The state that `redo` leads to then; None: there is nothing to redo."""
    author: str = ""
    text: str = ""
    """As `HistoryEvent` has them."""
    undo_seq: int | None = None
    """`Context.undo_seq` before the tree was scanned for it; None: the value at the append. A step that ends between
    scan and append is not in the state.
    """

    @property
    def is_way_back(self) -> bool:
        """Whether it is the result of a restore, an undo or a redo."""
        return self.operation in ("restore", "undo", "redo")

    def event(self, context: Context, checkpoint: CheckpointId, at: int | None = None) -> HistoryEvent:
        """The event, which happens now, or (``at``) when the checkpoint was made; its number is assigned."""
        at = context.clock.now() if at is None else at
        seq = context.undo_seq() if self.undo_seq is None else self.undo_seq
        return HistoryEvent(
            0,
            at,
            self.operation,
            checkpoint,
            self.previous,
            self.ahead,
            self.steps,
            self.run,
            seq,
            self.author,
            self.text,
        )


def next_state(
    cursor: Cursor,
    operation: EventKind = "checkpoint",
    *,
    steps: tuple[int, ...] = (),
    run: str = "",
    author: str = "",
    text: str = "",
) -> HistoryEntry:
    """The state that follows the present one."""
    return HistoryEntry(operation, cursor.position, steps=steps, run=run, author=author, text=text)


def record(
    context: Context,
    entry: HistoryEntry,
    checkpoint: CheckpointId,
    *,
    expected: Cursor,
    head: CheckpointId | None = None,
) -> None:
    """Append ``entry``, whose state is ``checkpoint``, to the history. ``head`` is the tree's checkpoint then (None:
    ``checkpoint``). Raises `RefusedError` (``moved``) if the workspace's position is not ``expected``.

    A new checkpoint is appended by its own transaction instead.
    """
    context.catalog.record_event(
        context.workspace.id,
        entry.event(context, checkpoint),
        expected=expected,
        head=head or checkpoint,
        position=entry.position,
        redo_tip=entry.redo_tip,
    )


def record_run(context: Context, run: str, command: str, steps: tuple[int, ...] = ()) -> None:
    """Note that a run of ``command`` begins or ends here. The tree is where it was."""
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.head is not None, "it was saved before"
    entry = HistoryEntry("run", steps=steps, run=run, text=command, position=cursor.position, redo_tip=cursor.redo_tip)
    record(context, entry, cursor.head, expected=cursor)


def record_prompt(context: Context, prompt: str, author: str, *, expected: Cursor) -> None:
    """Record a prompt while the tree equals its last saved state. The redo tip stays."""
    assert expected.head is not None, "it was saved before"
    entry = HistoryEntry(
        "prompt",
        ahead=expected.position,
        position=expected.position,
        redo_tip=expected.redo_tip,
        author=author,
        text=prompt,
    )
    record(context, entry, expected.head, expected=expected)


def record_end(
    context: Context,
    operation: Operation,
    *,
    reached: bool = True,
    head: CheckpointId | None = None,
    apart: int | None = None,
) -> None:
    """Append the end of an operation that brought the tree to its target. ``reached``: the tree equals the target;
    ``head`` is then the target, or its part that its own rules capture. ``apart``: the state before it, if it was cut
    short and steps ran since: it is a change of its own.

    A restore of some paths, or one that left the tree different from the target, keeps the position; its changes are
    unsaved, and `undo` reverses them.
    """
    cursor = context.catalog.cursor(context.workspace.id)
    target = operation.target
    if apart is not None:
        record(context, HistoryEntry("restore", apart), target, expected=cursor)
    elif operation.state is not None:
        record(context, _to_state(context, operation, cursor), target, expected=cursor)
    elif reached:
        record(context, HistoryEntry("restore", operation.position), head or target, expected=cursor)
    elif operation.rescue is not None and (not operation.paths or cursor.position != operation.position):
        # It is one change, although it was interrupted: undo must not stop at the intermediate state, which was saved.
        entry = HistoryEntry("restore", position=operation.position, redo_tip=operation.redo_tip)
        record(context, entry, target, expected=cursor, head=operation.rescue)


def reversed_state(context: Context, operation: Operation, before: int | None) -> HistoryEntry:
    """The state after a reversal of steps. After an undo its predecessor is ``before``, the state before the steps, and
    `redo` leads to the state in which they were undone; a redo is a new change.
    """
    if operation.kind == "undo":
        assert operation.position is not None
        here = context.catalog.event(operation.position)
        if here.operation == "undo" and here.ahead is not None and set(operation.steps).issubset(here.steps):
            # It completes an undo that the system refused in part, so redo leads to where that began.
            return HistoryEntry("undo", before, here.ahead, here.steps, redo_tip=operation.redo_tip)
        return HistoryEntry("undo", before, operation.position, operation.steps, redo_tip=operation.redo_tip)
    return next_state(context.catalog.cursor(context.workspace.id), "redo", steps=operation.steps)


def _to_state(context: Context, operation: Operation, cursor: Cursor) -> HistoryEntry:
    """The entry for an undo or a redo to an existing state."""
    tip = cursor.redo_tip if operation.redo_tip is None else operation.redo_tip
    entry = HistoryEntry(operation.kind, steps=operation.steps, position=operation.state, redo_tip=tip)
    if operation.kind != "undo" or operation.position in (None, operation.state):
        return entry
    assert operation.position is not None
    assert operation.state is not None
    if context.catalog.event(operation.position).ahead is None:
        return entry
    # `redo` leads back to where steps were undone, and on by the undo log: a state that knows that.
    before = context.catalog.event(operation.state).previous
    return entry._replace(previous=before, ahead=operation.position, position=None)
