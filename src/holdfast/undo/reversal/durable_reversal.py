"""Carrying out the reversal of finished steps so that it survives being killed, and being stopped by the system."""

from __future__ import annotations

import stat
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import IntegrityError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.undo.completion.late_writes import filter_writable
from holdfast.undo.completion.step_sealer import ConcurrentSteps, StepEnd, find_remains, preimage_numbers, seal_step
from holdfast.undo.foreign_edits.detection import edited_by_other_name, left_by_steps
from holdfast.undo.journal.records import Content, Made, Meta, PutBack, ReversalBegin, ReversalPosition, Touch
from holdfast.undo.journal.step_file import StepConflict
from holdfast.undo.journal.step_footprint import kept_preimages, objects_by_path
from holdfast.undo.reversal._record_reversal import Reversal
from holdfast.undo.reversal.reversal_context import LOST, MOVED, NO_FOREIGN_EDIT, Conflict, ReversalTools, is_refusal
from holdfast.undo.tree.signatures import NOT_OURS, is_as_left, is_unknown, is_untouched, signature, unknown_signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.completion.step_sealer import StepRemains
    from holdfast.undo.journal.records import Mutation, Signature, StepId
    from holdfast.undo.journal.step_file import SealedStep, State, StepHead
    from holdfast.undo.log import UndoLog

_log = Log(__name__)


class ReversalResult(NamedTuple):
    """The result of an undo or a redo."""

    steps: tuple[StepId, ...]
    paths: int
    """How many operations were reversed."""
    conflicts: tuple[Conflict, ...]
    """The skipped changes; not empty only after a forced reversal, or in a recovery."""


class ResumePoint(NamedTuple):
    """Where a reversal that was cut short goes on."""

    position: int | None
    """Of all records of its steps; None: from the start, -1: all are reversed."""
    conflicts: tuple[Conflict, ...] = ()
    """The conflicts until then."""
    foreign: frozenset[Identity] = frozenset()
    """Objects that others have changed since: they stay as they are, and no step left them so."""
    refused: Mapping[int, str] = MappingProxyType({})
    """The sequence numbers of the records that the system had refused to reverse, and why."""


_FROM_THE_START = ResumePoint(None)


def reverse(
    log: UndoLog, sealed: Sequence[SealedStep], *, forward: bool = False, foreign: frozenset[Identity] | None = None
) -> ReversalResult:
    """Reverse finished steps without asking whether they may be; what conflicts is left and reported.

    ``sealed`` is what brings the steps out of the state that they are to leave (`SealedStep.leaving`).

    ``foreign`` is given by a recovery: what others have changed since, which is left as it is. Raises as
    `carry_out` does.
    """
    ids = tuple(one.head.id for one in sealed)
    log.mark()
    note = ReversalBegin(log.recorder.next_seq(), ids, forward, log.clock.now() * 1000, foreign is not None)
    log.recorder.note(note)
    try:
        for one in sealed:
            reopen_step(log, one)
    except StorageError as error:
        raise _interrupted_error(log, sealed, error) from error
    return carry_out(log, sealed, note, ResumePoint(None, foreign=foreign or frozenset()))


def reopen_step(log: UndoLog, one: SealedStep) -> None:
    """Open a finished step, to record in it what brings it to where it is now."""
    head = one.head
    log.recorder.begin(
        head.id,
        head.kind,
        run=head.run,
        command=head.command,
        directory=head.directory,
        parent=head.parent,
        reverses=True,
    )


def carry_out(
    log: UndoLog, sealed: Sequence[SealedStep], note: ReversalBegin, unfinished: ResumePoint = _FROM_THE_START
) -> ReversalResult:
    """Reverse the records of the steps, which are open in the recorder again; then finish them.

    Raises `StorageError` where the system fails in the middle: the log then remembers to go on with it
    (`holdfast.undo.recovery.interrupted_reversals`).
    """
    try:
        return _carry_out(log, sealed, note, unfinished)
    except (OSError, StorageError) as error:
        raise _interrupted_error(log, sealed, error) from error


def _interrupted_error(log: UndoLog, sealed: Sequence[SealedStep], error: OSError | StorageError) -> StorageError:
    begun = {step.id for step in log.recorder.open_steps}
    for one in sealed:
        if one.head.id in begun:
            log.recorder.drop(one.head.id)
    log.interrupted = True
    is_ours = isinstance(error, StorageError)
    cause, hint = (error.message, error.hint) if is_ours else (str(error), room_hint(error))
    return StorageError(
        f"stopped in the middle: {cause}", hint=hint or "the next undo or redo goes on where it stopped"
    )


def _carry_out(
    log: UndoLog, sealed: Sequence[SealedStep], note: ReversalBegin, unfinished: ResumePoint
) -> ReversalResult:
    records = ordered_records(sealed)

    def before(position: int, left: tuple[Signature, ...]) -> None:
        log.recorder.note(ReversalPosition(log.recorder.next_seq(), note.seq, position, left))

    log.directories.close()
    tools = ReversalTools(log.recorder, log.preimages, log.quarantine, log.directories)
    dated = {} if note.forward else _restored_mtimes(log, sealed)
    sealed, named_again = _note_renamed_edits(log, sealed)
    again = _give_back(log, ordered_records(sealed)[: _until(unfinished)], sealed)
    waiting, lost = _take_waiting(log, sealed)
    of_steps = left_by_steps(log, sealed, unfinished.foreign)
    reversal = Reversal(
        tools,
        unfinished.foreign,
        unfinished.conflicts,
        dated,
        _unseen_objects(sealed),
        forward=note.forward,
        again=again,
    )
    reversal.run(records, unfinished.position, before, unfinished.refused)
    conflicts = [*reversal.conflicts, *lost]
    state = "done" if note.forward else "undone"
    foreign = _find_foreign_edits(log, sealed, state, conflicts, unfinished.foreign - of_steps, named_again)
    recorded = {one.head.id: tuple(log.recorder.step(one.head.id).records) for one in sealed}
    concurrent = ConcurrentSteps(recorded)
    # In the order of their actions: of two steps' results at a path, the later counts.
    for one in sorted(sealed, key=lambda one: recorded[one.head.id][-1].seq if recorded[one.head.id] else 0):
        head, stored = one.head, log.read(one.head.id)
        refused = _refused_records(one, reversal.refused, conflicts)
        opened = log.recorder.end(head.id, head.exit_code)
        left = find_remains(log, opened, foreign=foreign.paths, concurrent=concurrent)
        told = {found.path for found in conflicts if found.step == head.id}
        stays = _unreversed_paths(log, head, left, told)
        held = _held_paths(log, head, [*refused, *waiting[head.id]])
        if note.spares:
            known = told | objects_by_path(one.records).keys()
            conflicts += [Conflict(head.id, path, MOVED) for path in stays if path not in known]
        troubles = [StepConflict(found.path, found.reason, found.aside) for found in conflicts if found.step == head.id]
        # Paths that this reversal has changed have its results.
        paths = held | dict(left.paths) | {path: was for path, was in held.items() if was != NOT_OURS} | stays
        if is_again := stored.head.state == state:
            # Records reversed before have that reversal's results, or others' changes.
            paths = dict(stored.head.left) | paths
            left = left._replace(others=tuple(dict.fromkeys((*stored.head.others, *left.others))))
            troubles = [*(met for met in stored.head.conflicts if not is_refusal(met.reason)), *troubles]
        if older := stored.records if is_again else waiting[head.id]:
            last = opened.records[-1].seq if opened.records else opened.begin.seq
            opened.records[:0] = older
            opened.span = last, last
        untouched = {path for path, was in held.items() if was != NOT_OURS}
        seal_step(
            log,
            opened,
            StepEnd(state, head.ended_at, head.exit_code, troubles, note.spares or (is_again and head.rolled_back)),
            before=msgspec.structs.replace(
                head,
                state=stored.head.state,
                crossed=tuple(one for one in head.crossed if one[1] not in untouched),
            ),
            left=left._replace(paths=tuple(paths.items())),
            spared=foreign.spared,
            refused=refused,
        )
        # A preimage that could not be restored is not among them: it is in quarantine.
        needed = preimage_numbers([*opened.records, *refused])
        given_back = {record.number for record in opened.records if isinstance(record, PutBack)}
        for number in preimage_numbers(one.records) - needed - given_back:
            log.preimages.discard(number)
        waited = {record.seq for record in stored.head.refused} - {met.aside for met in troubles}
        for met in stored.head.conflicts:
            if met.aside in waited and is_refusal(met.reason):
                log.quarantine.forget(met.aside)
    log.restart()
    steps, what = tuple(one.head.id for one in sealed), "redo" if note.forward else "rollback"
    _log.info("%s executed", what, steps=steps, operations=reversal.paths, conflicts=len(conflicts))
    return ReversalResult(steps, reversal.paths, tuple(conflicts))


def _until(unfinished: ResumePoint) -> int | None:
    """How many of the records are left to reverse; None: all."""
    return None if unfinished.position is None else unfinished.position + 1


def _give_back(log: UndoLog, records: Iterable[Mutation], sealed: Iterable[SealedStep]) -> dict[int, bool]:
    """Move preimages from quarantine back to their places, for refused records that will be reversed now. Returns their
    sequence numbers, and whether each was there.
    """
    refused = {record.seq for one in sealed for record in log.heads[one.head.id].refused}
    return {record.seq: _is_given_back(log, record) for record in records if record.seq in refused}


def _is_given_back(log: UndoLog, record: Mutation) -> bool:
    """Whether what lies aside for the record, if anything does, is where it was kept again."""
    if all(record.seq != met.aside for met in log.heads[record.step].conflicts):
        return True
    return all(log.quarantine.give_back(record.seq, keeping) for keeping, _ in kept_preimages([record]))


def _take_waiting(log: UndoLog, sealed: Iterable[SealedStep]) -> tuple[dict[StepId, list[Mutation]], list[Conflict]]:
    """The records of each step that wait in the state to which it returns, with their preimages moved back from
    quarantine; and a conflict for each missing one.
    """
    waiting: dict[StepId, list[Mutation]] = {}
    lost: list[Conflict] = []
    for one in sealed:
        stored = log.heads[one.head.id]
        mine = waiting.setdefault(stored.id, [])
        for record in stored.refused if stored.state == one.head.state else ():
            if _is_given_back(log, record):
                mine.append(record)
            elif not isinstance(record, Made):
                lost.append(Conflict(stored.id, record.path, LOST))
    return waiting, lost


def _refused_records(one: SealedStep, refused: Set[int], conflicts: Iterable[Conflict]) -> list[Mutation]:
    """The step's records that wait because the system refused them: none if it refused only the times of another user's
    directories.
    """
    if not any(met.step == one.head.id and is_refusal(met.reason) for met in conflicts):
        return []
    return [
        record
        for record in one.records
        if record.seq in refused or (isinstance(record, Made) and record.make in refused)
    ]


def _held_paths(log: UndoLog, head: StepHead, records: Sequence[Mutation]) -> dict[bytes, Signature | None]:
    """The objects that the system refused to change: results of the step, or others'.

    The ctime alone proves nothing: chattr(1), which protects and releases an object, changes it.
    """
    known = dict(head.left)
    held: dict[bytes, Signature | None] = {}
    for path in objects_by_path(records):
        if path in known:
            was, now = known[path], signature(log.directories, path)
            held[path] = now if is_untouched(log.directories, path, was) else NOT_OURS
    return held


def _unreversed_paths(
    log: UndoLog, head: StepHead, left: StepRemains, told: Set[bytes]
) -> dict[bytes, Signature | None]:
    """Earlier results of the step that were not reversed, since another step has changed or moved them too: they still
    exist, and are no outsider's. ``told`` are the paths of conflicts.
    """
    known = dict(left.paths)
    stays: dict[bytes, Signature | None] = {}
    written: dict[bytes, Signature] = {}
    for path, was in head.left:
        if path in known or (was is None and path not in told):
            continue
        now = signature(log.directories, path)
        if is_as_left(log.directories, path, was):
            stays[path] = was
        elif was is not None and is_unknown(was) and path in told and now is not None and now.key == was.key:
            written[path] = now  # the step's processes have it open, or had until now
    if still := filter_writable(log, written):
        log.unsettled.setdefault(head.id, {}).update(still)
    return stays | written | {path: unknown_signature(now) for path, now in still.items()}


def _note_renamed_edits(log: UndoLog, sealed: Sequence[SealedStep]) -> tuple[Sequence[SealedStep], frozenset[Identity]]:
    """Others' changes by another name stay, where the steps only took a name from the object. They are theirs with or
    without that name.
    """
    found = {one.path: one.object for one in edited_by_other_name(log, sealed) if not one.is_changed}
    if not found:
        return sealed, frozenset()
    noted: list[SealedStep] = []
    for one in sealed:
        # If the step has a result of its own there, it returns when this is reversed.
        mine: set[tuple[State, bytes]] = {
            (one.head.state, path) for path, left in one.head.left if path in found and not (left and left.mode)
        }
        if not mine.issubset(one.head.crossed):
            crossed = tuple(sorted({*one.head.crossed, *mine}))
            one = note_crossed(log, one, crossed)
        noted.append(one)
    return noted, frozenset(found.values())


def note_crossed(log: UndoLog, one: SealedStep, crossed: tuple[tuple[State, bytes], ...]) -> SealedStep:
    """Note `StepHead.crossed` of what brings a step out of a state; returns it with that."""
    stored = log.read(one.head.id)
    log.write(msgspec.structs.replace(stored, head=msgspec.structs.replace(stored.head, crossed=crossed)))
    return msgspec.structs.replace(one, head=msgspec.structs.replace(one.head, crossed=crossed))


def _restored_mtimes(log: UndoLog, sealed: Sequence[SealedStep]) -> dict[StepId, dict[Identity, bool]]:
    """For each step, directories whose mtime another step, undone after this one touched them, restored already, or
    restores now by its redo's records: the older of the two values that they found was there before both. True where
    the other step had set it: then the older one may be that value.
    """
    came = {one.head.id: _first_changes(one) for one in sealed}
    since = min((seq for touched in came.values() for seq in touched.values()), default=None)
    last = max(one.head.last for one in sealed)
    given: dict[Identity, list[tuple[StepHead, bool]]] = {}
    """Which steps give it back, and whether they had set the mtime."""
    for head in log.heads.values():
        is_redone = head.id in came and head.acted != head.last
        if since is None or head.first >= last or head.acted <= since or not (is_redone or head.state == "undone"):
            continue
        with suppress(IntegrityError):  # of a damaged step nothing is known, and an mtime is no reason to stop
            records = log.read(head.id).records
            described = {record.identity for record in records if isinstance(record, Meta)}
            for object_ in {record.identity for record in records if isinstance(record, Touch)}:
                if not is_redone or object_ not in described:
                    given.setdefault(object_, []).append((head, object_ in described))
    found: dict[StepId, dict[Identity, bool]] = {}
    for one in sealed:
        after = {
            # For later steps, this one has the older mtime.
            object_: [
                is_set
                for head, is_set in given.get(object_, ())
                if head.first < seq < head.acted and head.id != one.head.id
            ]
            for object_, seq in came[one.head.id].items()
        }
        found[one.head.id] = {object_: any(known) for object_, known in after.items() if known}
    return found


def _first_changes(one: SealedStep) -> dict[Identity, int]:
    """When the step came to each directory in which it changed names, and to each object that it described."""
    return {record.identity: record.seq for record in reversed(one.records) if isinstance(record, (Touch, Meta))}


def _unseen_objects(sealed: Iterable[SealedStep]) -> Iterator[Identity]:
    """The objects of which the steps do not know how they left them: they may lie in directories that are closed."""
    for one in sealed:
        paths = [path for path, left in one.head.left if left == NOT_OURS]
        places = objects_by_path(one.records) if paths else {}
        yield from (object_ for path in paths if (object_ := places.get(path)) is not None)


class _ForeignEdits(NamedTuple):
    """Where a reversal leaves what others have changed, or brings that back: no step left it."""

    paths: frozenset[bytes]
    spared: frozenset[bytes]
    """The paths of others' objects that were only moved or described, and otherwise stay unchanged."""


def _find_foreign_edits(
    log: UndoLog,
    sealed: Sequence[SealedStep],
    state: State,
    conflicts: Iterable[Conflict],
    foreign: frozenset[Identity],
    named_again: frozenset[Identity],
) -> _ForeignEdits:
    """``named_again`` are objects that others have changed by another name, and that may only have got theirs back."""
    brought = _restored_paths(log, sealed)
    found = {each.path for each in conflicts if each.reason not in NO_FOREIGN_EDIT and each.path not in brought}
    moved: set[bytes] = set()
    for one in sealed:
        found |= {path for then, path in one.head.crossed if then == state}
        places, left = objects_by_path(one.records), dict(one.head.left)
        # An object that was only moved or described is still others'; for a directory only this can be distinguished.
        rewritten = {record.identity for record in one.records if isinstance(record, (Content, Made))}
        described = {record.identity for record in one.records if isinstance(record, Meta)}
        rewritten |= {places.get(path) for path, was in left.items() if was and stat.S_ISDIR(was.mode)} & described
        crossed = {places.get(path) for then, path in one.head.crossed if then != state} - rewritten - {None}
        now = objects_by_path(log.recorder.step(one.head.id).records) if crossed or foreign or named_again else {}
        moved |= _paths_of(log, now, crossed | named_again)
        found |= _paths_of(log, now, foreign)
    return _ForeignEdits(frozenset(found | moved), frozenset(moved - found))


def _restored_paths(log: UndoLog, sealed: Iterable[SealedStep]) -> frozenset[bytes]:
    """The paths where this reversal has put an object. A result of another step, which was denied meanwhile, then
    blocks the rest.
    """
    records = sorted(
        (record for one in sealed for record in log.recorder.step(one.head.id).records), key=lambda record: record.seq
    )
    return frozenset(path for path, object_ in objects_by_path(records).items() if object_ is not None)


def _paths_of(
    log: UndoLog, places: Mapping[bytes, Identity | None], objects: Iterable[Identity | None]
) -> frozenset[bytes]:
    stands = log.recorder.aliases.all(object_ for object_ in objects if object_ is not None)
    return frozenset(path for path, object_ in places.items() if object_ in stands)


def ordered_records(sealed: Iterable[SealedStep]) -> list[Mutation]:
    """The records of all the steps, as they were made."""
    return sorted((record for one in sealed for record in one.records), key=lambda record: record.seq)
