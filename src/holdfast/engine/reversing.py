"""Taking steps back and bringing them forward by the undo log, and entering that in the workspace's history.

The history is a chain of states; between two of them lie the steps that ended since the earlier one. What an undo of
steps leaves is a state of its own: it stands on the newest state from before those steps began, and knows (``ahead``)
the state that they were undone from, which redo brings forward by the same steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine import undo_note
from holdfast.engine.checkpoint import Recorded, Request, take_locked
from holdfast.engine.restore import REDO_COMMAND, UNDO_COMMAND, refuse_unfinished
from holdfast.engine.results import RestoreResult
from holdfast.engine.status import present
from holdfast.engine.steps import infos
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Log
from holdfast.store.records import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.engine.context import Context
    from holdfast.model.ids import Hash
    from holdfast.model.sinks import Progress
    from holdfast.undo.service import PathChange, StepInfo, UndoReport, UndoService

_LOG = Log(__name__)

_MOST_NOTED_BYTES = 1 << 19
"""What the undo log is told of one step: less than a request to a keeper may have."""
_ENTRY_BYTES = 32


def steps_since(context: Context, service: UndoService | None, state: HistoryEvent) -> list[StepInfo]:
    """The steps that belong to a state and not to the one that it replaced, the newest first; finished ones."""
    if service is None:
        return []
    return [step for step in _since(context, service, state) if step.state == "done" and step.paths]


def refuse_open(context: Context, service: UndoService | None, state: HistoryEvent) -> None:
    """Raise `RefusedError` if a step that is not at its end has changed the tree since the state before: what it did
    is no finished change, and must not be taken away from under it.
    """
    if service is None:
        return
    for step in _since(context, service, state):
        if step.state == "open" and step.paths:
            raise RefusedError(
                f"step {step.id} is still going on, and has changed the tree",
                hint="wait until it ends (what an agent writes by itself: some seconds of quiet); "
                "--force takes back what checkpoints hold of it",
                code="step_open",
            )


def _since(context: Context, service: UndoService, state: HistoryEvent) -> list[StepInfo]:
    since = 0 if state.previous is None else context.catalog.event(state.previous).at * 1000
    brought = state.steps if state.operation == "redo" else ()
    found = [step for step in service.steps() if step.ended_at is None or step.ended_at > since or step.id in brought]
    return sorted(found, key=lambda step: step.acted, reverse=True)


def take_back(
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
    position = context.catalog.cursor(context.workspace.id).position
    assert position is not None
    ids = tuple(step.id for step in steps)
    newest_first = sorted(steps, key=lambda step: step.acted, reverse=True)
    seen = [service.changes(step.id) for step in newest_first]
    undo_note.write(context.folder, undo_note.Note(position, ids))
    try:
        report = service.undo(ids, force=force)
    except RefusedError as error:
        undo_note.remove(context.folder)
        raise _with_a_way_out(context, error, position) from None
    except (NotFoundError, IntegrityError):
        undo_note.remove(context.folder)
        raise
    return _enter(context, service, steps, _effect(seen, backward=True), _left(report), progress)


def catch_up(context: Context, service: UndoService | None, progress: Progress | None) -> RestoreResult | None:
    """Enter in the history what an undo that was cut short has left, once the undo log has finished it. Needs the lock.

    None if there was none, or it had not begun, or somebody has saved the tree since.
    """
    note = undo_note.read(context.folder)
    if note is None:
        return None
    refuse_unfinished(context)
    known = {step.id: step for step in service.steps() if step.state in ("undone", "partly")} if service else {}
    is_here = context.catalog.cursor(context.workspace.id).position == note.position
    if service is None or not is_here or not known.keys() >= set(note.steps):
        undo_note.remove(context.folder)
        return None
    steps = [known[step] for step in note.steps]
    effect = foreseen(service, note.steps)
    with service.quiet():
        done = _enter(context, service, steps, effect, [], progress)
    _LOG.warning(
        "an undo that was cut short is finished: step %s was taken back; `holdfast redo` brings it forward again",
        ", ".join(str(step) for step in sorted(note.steps)),
    )
    return done


def _enter(
    context: Context,
    service: UndoService,
    steps: Sequence[StepInfo],
    effect: tuple[list[bytes], list[bytes]],
    left: list[NotCaptured],
    progress: Progress | None,
) -> RestoreResult:
    """Save what the undo of the steps left, as a state of its own."""
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.position is not None
    assert cursor.head is not None
    ids = tuple(step.id for step in steps)
    began = min(step.started_at for step in steps) // 1000
    event = HistoryEvent(0, 0, "undo", cursor.head, _before(context, cursor.position, began), cursor.position, ids)
    done = take_locked(context, Request(kind="auto"), progress, recorded=Recorded(event, cursor.redo_tip))
    undo_note.remove(context.folder)
    note_contents(context, service, steps, done.checkpoint.root)
    written, deleted = effect
    return RestoreResult(
        checkpoint=done.checkpoint.id,
        rescue=cursor.head,
        written=written,
        deleted=deleted,
        skipped=left,
        dry_run=False,
        undo_command=REDO_COMMAND,
        steps=ids,
    )


def bring_forward(context: Context, service: UndoService, target: HistoryEvent, *, force: bool) -> RestoreResult:
    """Redo the steps of the state that the tree is in, which leads to ``target``. Needs the lock.

    Raises what `UndoService.redo` raises; then nothing is touched.
    """
    catalog = context.catalog
    cursor = catalog.cursor(context.workspace.id)
    assert cursor.position is not None
    ids = catalog.event(cursor.position).steps
    report = service.redo(ids, force=force)
    written, deleted = _effect([service.changes(step) for step in ids], backward=False)
    event = HistoryEvent(0, context.clock.now(), "redo", target.checkpoint, None, steps=ids)
    catalog.record_event(
        context.workspace.id,
        event,
        expected=cursor,
        head=target.checkpoint,
        position=target.seq,
        redo_tip=cursor.redo_tip,
    )
    root = catalog.checkpoint(target.checkpoint).root
    if present(context).root == root:
        note_contents(context, service, [step for step in service.steps() if step.id in ids], root)
    return RestoreResult(
        checkpoint=target.checkpoint,
        rescue=cursor.head,
        written=written,
        deleted=deleted,
        skipped=_left(report),
        dry_run=False,
        undo_command=way_back(service, ids),
        steps=ids,
    )


def bring_forward_alone(
    context: Context, service: UndoService, steps: Sequence[int], *, force: bool, progress: Progress | None
) -> RestoreResult:
    """Redo steps, together, onto the state that the tree was just saved in: a new change, which undo takes back. Needs
    the lock.
    """
    cursor = context.catalog.cursor(context.workspace.id)
    assert cursor.head is not None
    report = service.redo(steps, force=force)
    written, deleted = _effect([service.changes(step) for step in steps], backward=False)
    event = HistoryEvent(0, 0, "redo", cursor.head, cursor.position, steps=tuple(steps))
    done = take_locked(context, Request(kind="auto"), progress, recorded=Recorded(event, None))
    return RestoreResult(
        checkpoint=done.checkpoint.id,
        rescue=cursor.head,
        written=written,
        deleted=deleted,
        skipped=_left(report),
        dry_run=False,
        undo_command=way_back(service, steps),
        steps=tuple(steps),
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


def note_contents(context: Context, service: UndoService, steps: Iterable[StepInfo], root: Hash) -> None:
    """Tell the undo log what the steps left, as the manifest that was just saved has it.

    Then a step can still be undone when somebody has changed its files and a checkpoint has brought them back.
    """
    from holdfast.store import manifest

    for step in steps:
        paths = [change.path for change in service.changes(step.id)]
        entries = manifest.get_many(context.store.pages, root, sorted(paths))
        room = _MOST_NOTED_BYTES
        noted: list[tuple[bytes, bytes]] = []
        for path, entry in entries.items():
            room -= len(path) + _ENTRY_BYTES
            if room < 0:
                break  # a step of very many files is not known again whole: then it is forced, or restored
            noted.append((path, entry.hash))
        if noted:
            service.note_contents(step.id, noted)


def foreseen(service: UndoService, steps: Iterable[int]) -> tuple[list[bytes], list[bytes]]:
    """What undoing the steps would write and delete."""
    return _effect([service.changes(step) for step in steps], backward=True)


def foresee_steps(context: Context, service: UndoService, steps: Sequence[int], *, backward: bool) -> RestoreResult:
    """What undoing the steps together (or redoing them: not ``backward``) would do. Changes nothing.

    Raises `NotFoundError` if one is not there, or is not to be undone (redone). What else it may be refused for shows
    when it is done.
    """
    chosen = sorted(infos(service, steps), key=lambda step: step.acted, reverse=True)
    for step in chosen:
        if step.state == "open":
            raise NotFoundError(f"step {step.id} is still going on", hint="wait until it ends")
        if step.state == ("undone" if backward else "done"):
            raise NotFoundError(f"step {step.id} is {'undone already' if backward else 'not undone'}")
    written, deleted = _effect([service.changes(step.id) for step in chosen], backward=backward)
    head = context.catalog.cursor(context.workspace.id).head
    return RestoreResult(
        checkpoint=head or CheckpointId(""),
        rescue=None,
        written=written,
        deleted=deleted,
        skipped=[],
        dry_run=True,
        undo_command=None,
        steps=[step.id for step in chosen],
    )


def _before(context: Context, position: int, began: int) -> int | None:
    """The newest state before ``position`` that is from before a time."""
    at = context.catalog.event(position).previous
    while at is not None:
        state = context.catalog.event(at)
        if state.at <= began:
            break
        at = state.previous
    return at


def _effect(changes: Iterable[Sequence[PathChange]], *, backward: bool) -> tuple[list[bytes], list[bytes]]:
    """What is written and what is deleted where the changes, step by step, are made or taken back."""
    there: dict[bytes, bool] = {}
    for change in (change for step in changes for change in step):
        gone = change.change == ("added" if backward else "deleted")
        there[change.path] = not gone
        if change.change == "renamed" and change.source is not None:
            there[change.path] = not backward
            there[change.source] = backward
    written = sorted(path for path, is_there in there.items() if is_there)
    return written, sorted(path for path, is_there in there.items() if not is_there)


def _left(report: UndoReport) -> list[NotCaptured]:
    from holdfast.model.paths import display

    return [
        NotCaptured(one.path, one.reason if one.kept is None else f"{one.reason}; {display(one.kept)} holds the other")
        for one in report.conflicts
    ]


def _with_a_way_out(context: Context, error: RefusedError, position: int) -> RefusedError:
    previous = context.catalog.event(position).previous
    hint = error.hint or ""
    if previous is not None:
        saved = context.catalog.event(previous).checkpoint[:12]
        hint += f"{'; ' if hint else ''}`holdfast restore {saved}` goes back by what checkpoints hold"
    return RefusedError(error.message, hint=hint or None, code=error.code)
