"""What the undo log of another version holds alone, which was set aside: undo and redo do not pass it unasked."""

from __future__ import annotations

from holdfast.engine.history.states import kept
from holdfast.engine.opening.undo_log import log_directory
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import UndoService


def refuse_steps(context: Context, service: UndoService | None, steps: Collection[int]) -> None:
    """Raise `VersionMismatchError` if the undo log lacks one of ``steps``, and a log was set aside that may hold it."""
    if service is None or _last(context) is None:
        return
    if missing := set(steps).difference(step.id for step in service.steps()):
        raise _mismatch(f"the undo log does not hold step {min(missing)}")


def refuse_run(context: Context, events: Sequence[HistoryEvent]) -> None:
    """Raise `VersionMismatchError` if steps of a run are in a log that was set aside. ``events``: its, newest first."""
    if is_others(context, events):
        run, first = events[-1].run, events[-1]
        way = f"; `holdfast restore {first.checkpoint[:12]}` is one" if kept(context, first) is not None else ""
        raise _mismatch(f"the undo log does not hold the run {run}", way)


def is_others(context: Context, events: Sequence[HistoryEvent]) -> bool:
    """Whether a run, of which the history has ``events``, newest first, began before a log was set aside."""
    return bool(events) and (last := _last(context)) is not None and (events[-1].undo_seq or 0) <= last


def refuse_redo(context: Context, undone: HistoryEvent) -> None:
    """Raise `VersionMismatchError` if the steps that ``undone`` has taken back are in a log that was set aside."""
    last = _last(context)
    if last is not None and (undone.undo_seq or 0) <= last:
        raise _mismatch("the undo log does not hold the steps that were undone")


def refuse_state(context: Context, state: HistoryEvent) -> None:
    """Raise `VersionMismatchError` if to go back to ``state`` is to go past steps in a log that was set aside: by
    checkpoints alone, which leave ignored files as they are.
    """
    if is_behind(context, state):
        raise _mismatch(
            "undo comes to what was recorded before", f"; `holdfast restore {state.checkpoint[:12]}` would lead on"
        )


def is_behind(context: Context, state: HistoryEvent) -> bool:
    """Whether steps that are in a log which was set aside may have ended after ``state``."""
    last = _last(context)
    return last is not None and (state.undo_seq or 0) < last


def _last(context: Context) -> int | None:
    from holdfast.undo.version import last_of_others

    return last_of_others(log_directory(context))


def _mismatch(what: str, way: str = "") -> Exception:
    from holdfast.undo.version import VersionMismatchError

    return VersionMismatchError(
        f"{what}, and an undo log of another version of Holdfast was set aside: only that version can undo its steps",
        hint=f"checkpoints lead back, but for ignored files: `holdfast restore CHECKPOINT`{way}. `holdfast steps "
        "--discard` forgets the other log, and all steps",
    )
