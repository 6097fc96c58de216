"""What is entered in a workspace's history, and where the workspace then stands in it: decided and written here alone.

The history is a chain of states, each of which knows the state that it replaced. An entry is a state itself, at which
the workspace then stands, or it says what led to a state that there is. `redo` leads along the chain to the redo tip.
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
    """An event that is to be appended, without what is known only then, and where the workspace stands after it."""

    operation: EventKind
    previous: int | None = None
    """The state that it replaces."""
    ahead: int | None = None
    """The state from which steps were undone to this one; of a prompt that is no state, the one it came in."""
    steps: tuple[int, ...] = ()
    run: str = ""
    position: int | None = None
    """The state that the workspace stands at then; None: this one."""
    redo_tip: int | None = None
    """The state that `redo` leads to then; None: there is nothing to redo."""
    author: str = ""
    text: str = ""
    """As `HistoryEvent` has them."""
    undo_seq: int | None = None
    """What `Context.undo_seq` was when the tree began to be looked at for it; None: as it is then. A step that ends
    between the look and the entry is not in the state.
    """

    @property
    def is_way_back(self) -> bool:
        """Whether it is what a restore, an undo or a redo has left."""
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
    """Append ``entry``, whose state is ``checkpoint``, to the history. The tree stands on ``head`` then (None: on
    ``checkpoint``). Raises `RefusedError` (``moved``) if the workspace does not stand where ``expected`` says.

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
    """Note that a prompt came in where the tree is as it was saved last. What `redo` leads to stays."""
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
    """Append how an operation that brought the tree to its target has ended. ``reached``: the tree is as that has it;
    ``head`` is then the target, or what is left of it under its own rules. ``apart`` is the state before it, where it
    was cut short and steps came in between: it is a change of its own.

    A restore of some paths only, or one that left the tree in another state than the target, leaves it where it was in
    its history, with changes to save: they are then what `undo` takes back.
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
        # Cut short and finished, it is one change all the same: the half-way state, which was saved, is none to go back
        # to.
        entry = HistoryEntry("restore", position=operation.position, redo_tip=operation.redo_tip)
        record(context, entry, target, expected=cursor, head=operation.rescue)


def reversed_state(context: Context, operation: Operation, before: int | None) -> HistoryEntry:
    """The state that reversed steps leave. After an undo it stands on ``before``, the state from before the steps, and
    `redo` leads to where they were undone; a redo is a new change.
    """
    if operation.kind == "undo":
        assert operation.position is not None
        here = context.catalog.event(operation.position)
        if here.operation == "undo" and here.ahead is not None and set(operation.steps).issubset(here.steps):
            # What the system had refused of that undo is brought to its end: it leads to where that was done.
            return HistoryEntry("undo", before, here.ahead, here.steps, redo_tip=operation.redo_tip)
        return HistoryEntry("undo", before, operation.position, operation.steps, redo_tip=operation.redo_tip)
    return next_state(context.catalog.cursor(context.workspace.id), "redo", steps=operation.steps)


def _to_state(context: Context, operation: Operation, cursor: Cursor) -> HistoryEntry:
    """What an undo or a redo has led to, where that is a state that there was."""
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
