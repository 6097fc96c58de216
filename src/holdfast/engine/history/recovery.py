"""What follows an undo or a redo by the log that was cut short: it is brought to its end, and the history learns of it.

Whoever is about to change the tree or the history does this first. What saves by itself does not: it keeps what there
is, and the note that says what was under way.
"""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.engine.history.preview import foresee_steps, foreseen
from holdfast.engine.history.restore import refuse_unfinished
from holdfast.engine.history.steps import enter_redone, enter_undone, told_again
from holdfast.engine.opening import undo_note
from holdfast.engine.opening.undo_log import reached
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING
from holdfast.model.wording import named_steps

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Literal

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.undo_note import Note
    from holdfast.engine.results.results import RestoreResult
    from holdfast.model.entries import NotCaptured
    from holdfast.model.sinks import Progress
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import UndoService

_LOG = Log(__name__)

_SHOWN = 3


class CaughtUp(NamedTuple):
    """What had been cut short, and is done."""

    operation: Literal["undo", "redo"]
    result: RestoreResult


def catch_up(context: Context, service: UndoService | None, progress: Progress | None = None) -> CaughtUp | None:
    """Enter in the history what an undo or a redo that was cut short has left, once the undo log has finished it. Needs
    the lock. What is entered, and was not told to anybody, is said all the same, and counts.

    None if there was none, or it had not begun. Raises `FormatError` if the note of it is damaged, `RefusedError` while
    a restore is unfinished.
    """
    note = undo_note.read(context.folder)
    if note is None:
        return None
    refuse_unfinished(context)
    entry = _entry(context, note)
    if service is None or not _is_done(service, note) or not (entry or _is_next(context, note)):
        undo_note.remove(context.folder)
        return None
    with service.quiet():
        if entry is not None:
            result = told_again(context, service, note, entry)
        elif note.operation == "undo":
            result = enter_undone(context, service, note, foreseen(service, note.steps), progress)
        else:
            result = enter_redone(context, service, note, progress)
    steps = f"{named_steps(note.steps)} {'was' if len(note.steps) == 1 else 'were'}"
    alone = _left_alone(result.skipped)
    if note.operation == "undo":
        said = f"an undo that was cut short is finished: {steps} taken back{alone}; `holdfast redo` brings it forward"
    else:
        said = f"a redo that was cut short is finished: {steps} brought forward{alone}; `holdfast undo` takes it back"
    _LOG.warning("%s again", said)
    return CaughtUp(note.operation, result)


def foresee_catching_up(context: Context, service: UndoService | None) -> CaughtUp | None:
    """What `catch_up` would do and return, once the undo log has finished it: said, and not done. Needs the lock."""
    from holdfast.undo.local_service import LocalUndoService

    note = undo_note.read(context.folder)
    if note is None or service is None or not (_entry(context, note) or _is_next(context, note)):
        return None
    refuse_unfinished(context)
    pending = service.unfinished if isinstance(service, LocalUndoService) else ()
    if not set(note.steps).issubset(pending) and not _is_done(service, note):
        return None
    _LOG.warning(
        "the %s that was cut short would be finished first: what would come after that can be foreseen once it is",
        note.operation,
    )
    backward = note.operation == "undo"
    return CaughtUp(note.operation, foresee_steps(context, service, note.steps, backward=backward, begun=True))


def finish_first(context: Context, progress: Progress | None = None) -> None:
    """`catch_up`, for what has nothing else to do with the undo log."""
    with context.lock(as_found=True), reached(context) as service:
        catch_up(context, service, progress)


@contextmanager
def nevertheless() -> Generator[None]:
    """For saving, which must not fail because something else cannot be finished: that is said, and its note stays."""
    try:
        yield
    except HoldfastError as error:
        _LOG.warning(
            "an undo or a redo was cut short and cannot be finished now, so what there is will be saved as it is: %s",
            error,
        )


def _left_alone(skipped: Sequence[NotCaptured]) -> str:
    """What a finished reversal has not brought back: whoever finished it may have told nobody who sees this."""
    if not skipped:
        return ""
    shown = ", ".join(f"{display(item.path)} ({item.reason})" for item in skipped[:_SHOWN])
    return f" but for what was left as it is: {shown}{', …' if len(skipped) > _SHOWN else ''}"


def _is_done(service: UndoService, note: Note) -> bool:
    """Whether all of the steps were reversed since the note was left."""
    acted = {step.id: step.acted for step in service.steps()}
    return all(acted.get(step, 0) > note.acted for step in note.steps)


def _entry(context: Context, note: Note) -> HistoryEvent | None:
    """What the history has of it already: killed just after that was entered, nobody was told. Since then the tree may
    have been saved, and nothing else has happened.
    """
    for event in context.catalog.events(context.workspace.id):
        if event.operation != "checkpoint" or event.seq <= note.position:
            is_its = event.seq > note.position and (event.operation, event.steps) == (note.operation, note.steps)
            return event if is_its else None
    return None


def _is_next(context: Context, note: Note) -> bool:
    """Whether nothing has happened since but that the tree was saved."""
    at = context.catalog.cursor(context.workspace.id).position
    while at is not None and at != note.position:
        state = context.catalog.event(at)
        if state.operation != "checkpoint":
            return False
        at = state.previous
    return at is not None
