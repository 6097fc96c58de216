"""Undoing and redoing steps by the undo log, and recording it in the workspace's history.

The history is a chain of states; between two of them lie the steps that ended since the earlier one. An undo of steps
makes a state of its own: its predecessor is the newest state from before those steps, and ``ahead`` is the state in
which they were undone, to which redo returns by the same steps.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from holdfast.engine.history._undo_guards import (
    check_reversal,
    kept_checkpoint,
    reverse_past_edits,
    step_open_error,
    with_processes,
)
from holdfast.engine.history.checkpoint import create_checkpoint_or_part
from holdfast.engine.history.history_writer import record_end, reversed_state
from holdfast.engine.history.restore import REDO_COMMAND, UNDO_COMMAND
from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.operation_journal import new_operation, remove_operation, write_operation
from holdfast.engine.opening.undo_log import find_steps, report_saved, touched_paths
from holdfast.model.command_results import CheckpointRequest, RestoreResult
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import CheckpointId
from holdfast.model.message_text import step_options
from holdfast.model.paths import under
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from typing import Literal

    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.operation_journal import Operation
    from holdfast.model.checkpoint import Checkpoint, HistoryEvent
    from holdfast.model.content import Progress
    from holdfast.model.entries import Entry
    from holdfast.undo.service import ConflictInfo, PathChange, StepInfo, UndoService


# The net effect of consecutive changes: the written and the deleted paths.
#
# Written paths have their final names, deleted paths their former ones; both include moves of parent directories.


class Effect(NamedTuple):
    """The written and the deleted paths."""

    written: list[bytes]
    deleted: list[bytes]
    letters: Mapping[bytes, str]
    """As `RestoreResult.letters`."""
    foreseen: Mapping[bytes, Entry | None] = MappingProxyType({})
    """As `RestoreResult.foreseen`; a later effect without it makes an earlier one unknown."""


def net_effect(steps: Iterable[Sequence[PathChange]], *, backward: bool) -> Effect:
    """The net effect of the changes of each step when made or (``backward``) reversed.

    A file that is made and deleted again is not listed, nor are the contents of a moved directory.
    """
    outcome = _Outcome()
    for changes in steps:
        outcome.add(changes, backward=backward)
    return outcome.effect()


def combine_effects(effects: Iterable[Effect]) -> Effect:
    """The net effect of several in sequence, as far as paths show it: a path that is written and later deleted counts
    as deleted, even if it did not exist before.
    """
    there: dict[bytes, bool] = {}
    letters: dict[bytes, str] = {}
    """The first letter of each path: D for one that existed and was deleted."""
    foreseen: dict[bytes, Entry | None] = {}
    for written, deleted, found, files in effects:
        gone = frozenset(deleted)
        anew = gone.union(written)
        for path in [path for path in foreseen if not anew.isdisjoint((path, *_above(path)))]:
            del foreseen[path]
        foreseen |= files
        lost = [path for path, is_there in there.items() if is_there and not gone.isdisjoint(_above(path))]
        for path in lost:
            del there[path]
        there |= dict.fromkeys(written, True) | dict.fromkeys(deleted, False)
        for path in written:
            letters.setdefault(path, found.get(path, "M"))
        for path in deleted:
            letters.setdefault(path, "D")
    written = sorted(path for path, is_there in there.items() if is_there)
    return Effect(
        written,
        sorted(path for path, is_there in there.items() if not is_there),
        {path: letters[path] for path in written if letters[path] in ("A", "T")},
        foreseen,
    )


class _Outcome:
    """The net effect of some steps so far."""

    def __init__(self) -> None:
        self._there: dict[bytes, bool] = {}
        """True: a present path that was written. False: a path that is gone."""
        self._before: dict[bytes, bool] = {}
        """Whether a path existed before all the steps."""
        self._ways: set[bytes] = set()
        """The directories that any of these names lies in, or has."""

    def add(self, changes: Sequence[PathChange], *, backward: bool) -> None:
        """Make the changes of one step, or reverse them."""
        moves = [(one.path, one.source) for one in changes if one.source is not None]
        moved = dict(moves if backward else [(source, path) for path, source in moves])
        lost, gained = ("added", "deleted") if backward else ("deleted", "added")
        self._move(moved)
        # Exchanged names lose their files, and then get new ones.
        for path in (*(one.path for one in changes if one.change == lost), *moved):
            self._before.setdefault(path, self._was_there(path))
            self._put(path, is_there=False)
        for path in (*(one.path for one in changes if one.change == gained), *moved.values()):
            self._before.setdefault(path, False)
            self._put(path, is_there=True)
        for change in changes:
            if change.change in ("modified", "metadata"):
                # A change has the name that the file had at the step's end.
                path = _moved(change.path, moved) if backward else change.path
                self._before.setdefault(path, self._was_there(path))
                self._put(path, is_there=True)

    def _move(self, moved: Mapping[bytes, bytes]) -> None:
        """Apply the moves to all present paths, including those below moved directories."""
        if any(path in self._ways for path in moved):  # only a directory has paths below it
            going = [path for path, is_there in self._there.items() if is_there]
        else:
            going = [path for path in moved if self._there.get(path)]
        there = {_moved(path, moved): True for path in going}
        for path in going:
            del self._there[path]
        for path in there:
            self._put(path, is_there=True)

    def _put(self, path: bytes, *, is_there: bool) -> None:
        self._there[path] = is_there
        for above in _above(path):
            if above in self._ways:
                break
            self._ways.add(above)

    def effect(self) -> Effect:
        """The net effect."""
        written = sorted(path for path, is_there in self._there.items() if is_there)
        gone = (path for path, is_there in self._there.items() if not is_there)
        added = dict.fromkeys((path for path in written if not self._before.get(path, True)), "A")
        return Effect(written, sorted(path for path in gone if self._before[path]), added)

    def _was_there(self, path: bytes) -> bool:
        """Whether the present file of this name had it before: no parent was made or moved here."""
        return all(self._before.get(above, True) for above in _above(path))


def _moved(path: bytes, moved: Mapping[bytes, bytes]) -> bytes:
    """``path`` after the moves: the nearest moved parent decides."""
    for above in (path, *_above(path)):
        if above in moved:
            return moved[above] + path[len(above) :]
    return path


def _above(path: bytes) -> Iterator[bytes]:
    """The directories that a path lies in, the nearest first; without the root."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


# The effect of undoing or redoing steps on paths: for reports and for previews.


def undo_effect(service: UndoService, steps: Iterable[int]) -> Effect:
    """The written and deleted paths of undoing the steps in this order, before or after it is done."""
    return net_effect([service.changes(step) for step in steps], backward=True)


def redo_effect(service: UndoService, steps: Iterable[int]) -> Effect:
    """The written and deleted paths of redoing the steps."""
    return net_effect([service.changes(step) for step in steps], backward=False)


def with_files_before(
    context: Context, service: UndoService, effect: Effect, steps: Sequence[int], taken_back: Collection[int]
) -> Effect:
    """The effect of undoing the steps, the last of ``taken_back``, with the entries that all of that results in. They
    come from the newest state before the steps, for paths that nothing else changed between that state and the steps'
    end. Ignored files are in no state.
    """
    chosen = find_steps(service, steps)
    at = _state_before(context, context.catalog.cursor(context.workspace.id).position, chosen)
    state = None if at is None else context.catalog.event(at)
    checkpoint = None if state is None else kept_checkpoint(context, state)
    if state is None or checkpoint is None or state.undo_seq is None:
        return effect
    since, until = state.undo_seq, max(step.acted for step in chosen)
    others = touched_paths(
        service,
        (
            step.id
            for step in service.steps()
            if step.id not in taken_back
            and step.begun < until
            and (step.ended is None or max(step.ended, step.acted) > since)
        ),
    )
    others.update(path for edit in service.barriers() if since < edit.id < until for path in edit.paths)
    if b"" in others:
        return effect
    found = files_at(context, service, checkpoint, effect, taken_back)
    # The result is unknown for paths that others changed, for their parents, and for ignored files.
    not_known = others.union(above for path in others for above in (path + b"/", *(one + b"/" for one in _above(path))))
    written = set(effect.written)
    return effect._replace(
        foreseen={
            path: entry
            for path, entry in found.items()
            if not_known.isdisjoint((path, *_above(path))) and (entry is not None or path not in written)
        }
    )


def files_at(
    context: Context, service: UndoService, checkpoint: Checkpoint, effect: Effect, steps: Iterable[int]
) -> dict[bytes, Entry | None]:
    """The entries in a checkpoint of an effect's paths, and of paths below the directories that the steps moved; as in
    `RestoreResult.foreseen`.
    """
    pages, root, paths = context.store.pages, checkpoint.root, sorted({*effect.written, *effect.deleted})
    found: dict[bytes, Entry | None] = {**dict.fromkeys(paths), **manifest.get_many(pages, root, paths)}
    moves = [change for step in steps for change in service.changes(step) if change.source is not None]
    for path in {path for change in moves for path in (change.path, change.source) if path is not None}:
        found |= manifest.iterate(pages, root, path)
        found[path + b"/"] = None
    return found


def reversible_steps(service: UndoService, steps: Sequence[int], *, backward: bool) -> list[StepInfo]:
    """The steps, last action first, which can be undone (redone: not ``backward``). Raises `RefusedError` for a running
    step, `NotFoundError` for one that is undone (done) already.
    """
    chosen = sorted(find_steps(service, steps), key=lambda step: step.acted, reverse=True)
    for step in chosen:
        if step.state == "open":
            if going_on := [one for one in service.going_on() if one.step == step.id]:
                raise step_open_error(service, going_on)
            raise RefusedError(f"step {step.id} is still going on", hint="wait until it ends", code="step_open")
        if step.state == ("undone" if backward else "done"):
            raise NotFoundError(f"step {step.id} is {'undone already' if backward else 'not undone'}")
    return chosen


def preview_steps(
    context: Context,
    service: UndoService,
    steps: Sequence[int],
    *,
    backward: bool,
    force: bool = False,
    begun: bool = False,
) -> RestoreResult:
    """Preview undoing the steps together (or redoing them: not ``backward``). Changes nothing. ``begun``: it was cut
    short and will be finished.

    Raises as `reversible_steps`, and `RefusedError` if other steps depend on them, or others have changed the same
    paths since (not with ``force``). ``skipped`` are the paths at which others have replaced what the steps left.
    """
    alone: Sequence[ConflictInfo] = ()
    if begun:
        chosen = sorted(find_steps(service, steps), key=lambda step: list(steps).index(step.id))
    else:
        chosen = reversible_steps(service, steps, backward=backward)
        alone = check_reversal(context, service, [step.id for step in chosen], forward=not backward, force=force)
    ids = [step.id for step in chosen]
    seen = net_effect([service.changes(step) for step in ids], backward=backward)
    if backward:
        seen = with_files_before(context, service, seen, ids, ids)
    head = context.catalog.cursor(context.workspace.id).head
    seen = without_left_alone(service, seen, ids, alone)
    return dry_run_result(context, head or CheckpointId(""), [seen], ids, alone)


def without_left_alone(
    service: UndoService, effect: Effect, steps: Iterable[int], alone: Sequence[ConflictInfo]
) -> Effect:
    """The effect of undoing or redoing steps, without the paths that stay as others have left them."""
    if not alone:
        return effect
    stay = {one.path for one in alone}
    # A moved file stays where it is if another process has taken one of its two places.
    moves = [(one.path, one.source) for step in steps for one in service.changes(step) if one.source is not None]
    stay.update(path for ends in moves if not stay.isdisjoint(ends) for path in ends)
    return effect._replace(
        written=[path for path in effect.written if path not in stay],
        deleted=[path for path in effect.deleted if path not in stay],
        foreseen={
            path: entry
            for path, entry in effect.foreseen.items()
            if path not in stay and not (path.endswith(b"/") and any(under(one, path[:-1]) for one in stay))
        },
    )


def dry_run_result(
    context: Context,
    reached: CheckpointId,
    effects: Sequence[Effect],
    steps: Sequence[int],
    alone: Sequence[ConflictInfo] = (),
) -> RestoreResult:
    """The result of a dry run: the steps lead to ``reached``, with the effects in sequence, which lack the paths that
    are left ``alone``.
    """
    written, gone, letters, foreseen = combine_effects(effects)
    # A path that one effect writes and a later one deletes does not exist now.
    brought = {path for effect in effects for path in effect.written}
    deleted = [path for path in gone if path not in brought or context.tree.is_there(path, directories=True)]
    return RestoreResult(
        checkpoint=reached,
        rescue=None,
        written=written,
        deleted=deleted,
        skipped=[NotCaptured(one.path, one.account) for one in alone],
        dry_run=True,
        undo_command=None,
        steps=steps,
        letters=letters,
        foreseen=foreseen,
    )


def reverse_steps(
    context: Context,
    service: UndoService,
    steps: Sequence[StepInfo],
    *,
    force: bool,
    progress: Progress | None,
) -> RestoreResult:
    """Undo steps from the state that was just saved, and save the result. Needs the lock.

    Raises as `UndoService.undo`; then nothing has changed. After a kill, `finish_interrupted` completes it.
    """
    steps = sorted(steps, key=lambda step: step.acted, reverse=True)
    operation = _begin(context, "undo", steps)
    try:
        with _leave_record(context, operation):
            reverse_past_edits(context, service, operation.steps, service.undo, force=force)
    except RefusedError as error:
        raise _with_restore_hint(context, with_processes(service, error), operation, steps) from None
    return record_reversal(context, service, operation, progress)


def reapply_steps(
    context: Context,
    service: UndoService,
    steps: Sequence[int],
    state: int | None = None,
    *,
    force: bool,
    progress: Progress | None,
) -> RestoreResult:
    """Redo steps together, to the ``state`` that they were undone from. Without it, redo them onto the state that was
    just saved, as a new change, which undo reverses. Needs the lock.

    Raises as `UndoService.redo`; then nothing has changed. After a kill, `finish_interrupted` completes it.
    """
    operation = _begin(context, "redo", reversible_steps(service, steps, backward=False), state)
    with _leave_record(context, operation):
        reverse_past_edits(context, service, operation.steps, service.redo, force=force)
    return record_reversal(context, service, operation, progress)


def record_reversal(
    context: Context,
    service: UndoService,
    operation: Operation,
    progress: Progress | None,
    entry: HistoryEvent | None = None,
) -> RestoreResult:
    """Record in the history that the steps were reversed, unless ``entry`` already does; the operation is finished
    then. Its journal is removed last: after a kill before that, the next command reports the reversal.
    """
    target = None if operation.state is None else context.catalog.event(operation.state)
    if entry is not None:
        reached = entry.checkpoint
    elif target is not None and kept_checkpoint(context, target) is not None:
        reached = target.checkpoint
        record_end(context, operation._replace(target=reached))
        _report_again(context, target)
    else:
        undoing = operation.kind == "undo"
        before = None
        if undoing:
            start = _begun_from(context, operation).previous
            before = _state_before(context, start, find_steps(service, operation.steps))
        reached = create_checkpoint_or_part(
            context,
            CheckpointRequest(kind="auto"),
            partial(touched_paths, service, operation.steps),
            progress,
            recorded=reversed_state(context, operation, before),
        ).id
    result = _result(context, service, operation, reached)
    remove_operation(context.folder, operation)
    return result


def _report_again(context: Context, target: HistoryEvent) -> None:
    """Tell the undo log what the steps have left, if the tree is at ``target`` again."""
    with report_saved(context) as note_contents:
        root = context.catalog.checkpoint(target.checkpoint).root
        if scan_tree(context).root == root:
            note_contents(root)


def _begin(
    context: Context, kind: Literal["undo", "redo"], steps: Sequence[StepInfo], state: int | None = None
) -> Operation:
    return new_operation(
        context, kind, state=state, steps=[step.id for step in steps], acted=max(step.acted for step in steps)
    )


@contextmanager
def _leave_record(context: Context, operation: Operation) -> Generator[None]:
    """Leave the record while the steps are being reversed, and until the history knows; not if that is refused."""
    write_operation(context.folder, operation)
    try:
        yield
    except (RefusedError, NotFoundError, IntegrityError):
        remove_operation(context.folder, operation)
        raise


def _checkpoint_before(context: Context, operation: Operation) -> CheckpointId:
    """The checkpoint of the state before: after a kill, an intermediate state may have been saved since."""
    saved = kept_checkpoint(context, _begun_from(context, operation))
    if saved is not None:
        return saved.id
    head = context.catalog.cursor(context.workspace.id).head
    assert head is not None
    return head


def _result(context: Context, service: UndoService, operation: Operation, reached: CheckpointId) -> RestoreResult:
    steps = operation.steps
    written, deleted, letters, _ = (undo_effect if operation.kind == "undo" else redo_effect)(service, steps)
    # All that was left as it is, also where several processes had their part in it.
    left = list(dict.fromkeys(NotCaptured(one.path, one.account) for step in steps for one in service.conflicts(step)))
    alone = {one.path for one in left}

    def is_so(path: bytes, *, there: bool) -> bool:
        # A skipped path elsewhere may have been on the way to this one, or from it.
        return path not in alone and (not alone or context.tree.is_there(path, directories=True) is there)

    return RestoreResult(
        checkpoint=reached,
        rescue=_checkpoint_before(context, operation),
        written=[path for path in written if is_so(path, there=True)],
        deleted=[path for path in deleted if is_so(path, there=False)],
        skipped=left,
        dry_run=False,
        undo_command=REDO_COMMAND if operation.kind == "undo" else undo_command_of(service, steps),
        steps=steps,
        refused=sorted(step.id for step in find_steps(service, steps) if step.refused),
        letters=letters,
    )


def undo_command_of(service: UndoService, steps: Sequence[int]) -> str:
    """The command that undoes steps which were just redone together: exactly these."""
    chosen = sorted(find_steps(service, steps), key=lambda step: step.acted)
    if len(chosen) == 1 or set(steps) == set(service.connected(chosen[-1].id)):
        return UNDO_COMMAND  # they are the newest change
    run = chosen[0].run
    of_run = {step.id for step in service.steps() if step.run == run and step.paths}
    if run and of_run == set(steps) and run not in service.forgotten():
        return f"{UNDO_COMMAND} --run {run}"
    return UNDO_COMMAND + step_options(step.id for step in chosen)


def _begun_from(context: Context, operation: Operation) -> HistoryEvent:
    """The state that the tree was in before."""
    assert operation.position is not None, "steps are reversed from a state that was saved"
    return context.catalog.event(operation.position)


def _state_before(context: Context, at: int | None, steps: Sequence[StepInfo]) -> int | None:
    """The newest state, from ``at`` back, that is from before any of the steps began."""
    begun, began = min(step.begun for step in steps), min(step.started_at for step in steps) // 1000
    while at is not None:
        state = context.catalog.event(at)
        # Earlier versions recorded no number.
        if state.at <= began if state.undo_seq is None else state.undo_seq < begun:
            break
        at = state.previous
    return at


def _with_restore_hint(
    context: Context, error: RefusedError, operation: Operation, steps: Sequence[StepInfo]
) -> RefusedError:
    # The state before the steps, not the last one: edits after the steps may have been saved in between.
    before = _state_before(context, operation.position, steps)
    hint = error.hint or ""
    if before is not None:
        saved = context.catalog.event(before).checkpoint[:12]
        between = "; " if hint else ""
        hint += f"{between}`holdfast restore {saved}` returns to the checkpoint before, with --patch line by line"
    return RefusedError(error.message, hint=hint or None, code=error.code, data=error.data)
