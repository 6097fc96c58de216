"""Reversals that were cut short, by a kill or by a system that failed: found and brought to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.files.linux.file_handle import Identity, identity
from holdfast.model.errors import FormatError
from holdfast.undo.completion.step_sealer import preimage_numbers
from holdfast.undo.foreign_edits.detection import foreign_objects
from holdfast.undo.journal.records import (
    Alias,
    Begin,
    Content,
    End,
    Failed,
    ForeignEdit,
    Meta,
    Move,
    Mutation,
    ObjectKey,
    Remove,
    ReversalBegin,
    ReversalConflict,
    ReversalPosition,
    Signature,
    StepId,
    Unprotected,
)
from holdfast.undo.journal.segments import read_journal
from holdfast.undo.recovery._resumed_edits import InterruptedReversal, changed_since_interruption
from holdfast.undo.reversal.access_grants import revoke_access
from holdfast.undo.reversal.durable_reversal import ResumePoint, ReversalResult, carry_out, reopen_step
from holdfast.undo.reversal.reversal_context import Conflict, is_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.undo.journal.records import AnyRecord
    from holdfast.undo.log import UndoLog


class StepRecords(msgspec.Struct):
    """The journal's records of one step, alone or within one reversal."""

    begin: Begin
    records: list[Mutation] = msgspec.field(default_factory=list["Mutation"])
    end: End | None = None
    bare: Unprotected | None = None
    aliases: list[tuple[Identity, Identity]] = msgspec.field(default_factory=list[tuple["Identity", "Identity"]])


class SortedJournal(msgspec.Struct):
    """The contents of a journal."""

    parts: dict[int, dict[StepId, StepRecords]] = msgspec.field(default_factory=dict[int, dict["StepId", StepRecords]])
    """Of each step, by the sequence number of the reversal that it belongs to; 0: of none."""
    reversals: list[ReversalBegin] = msgspec.field(default_factory=list[ReversalBegin])
    positions: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """How far each reversal is."""
    since: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """The sequence number at which each came there first."""
    left: dict[int, dict[ObjectKey, Signature]] = msgspec.field(
        default_factory=dict[int, dict["ObjectKey", "Signature"]]
    )
    """The results of each reversal for the objects that it has changed."""
    conflicts: dict[int, list[Conflict]] = msgspec.field(default_factory=dict[int, list[Conflict]])
    """The conflicts of each reversal."""
    refused: dict[int, dict[int, str]] = msgspec.field(default_factory=dict[int, dict[int, str]])
    """See `ResumePoint.refused`."""


def sort_records(records: Iterable[AnyRecord]) -> SortedJournal:
    """Sort the records of a journal."""
    story = SortedJournal()
    within: dict[StepId, int] = {}
    for record in records:
        match record:
            case ReversalBegin():
                story.reversals.append(record)
                within |= dict.fromkeys(record.steps, record.seq)
            case ReversalPosition():
                if story.positions.get(record.reverse) != record.position:
                    story.since[record.reverse] = record.seq
                story.positions[record.reverse] = record.position
                story.left.setdefault(record.reverse, {}).update({one.key: one for one in record.left})
            case ReversalConflict():
                conflict = Conflict(record.step, record.path, record.reason, record.failed if record.aside else None)
                story.conflicts.setdefault(within.get(record.step, 0), []).append(conflict)
                if is_refusal(record.reason):
                    story.refused.setdefault(within.get(record.step, 0), {})[record.failed] = record.reason
            case Begin():
                story.parts.setdefault(within.get(record.step, 0), {})[record.step] = StepRecords(record)
            case ForeignEdit():
                pass
            case _:
                part = story.parts.get(within.get(record.step, 0), {}).get(record.step)
                if part is None:
                    raise FormatError(f"the journal speaks of step {record.step} before it begins")
                match record:
                    case End():
                        part.end = record
                    case Failed():
                        part.records = [kept for kept in part.records if kept.seq != record.failed]
                    case Alias():
                        part.aliases.append((record.old, record.new))
                    case Unprotected():
                        part.bare = record
                    case _:
                        part.records.append(record)
    return story


def finish_failed(log: UndoLog) -> tuple[ReversalResult, ...]:
    """Finish an undo or a redo of this keeper that failed because of an error of the system; returns the results.

    Raises `StorageError`.
    """
    if not log.interrupted:
        return ()
    log.interrupted = False
    try:
        return finish_interrupted(log, sort_records(read_journal(log.directory).records))
    except BaseException:
        log.interrupted = True
        raise


def finish_interrupted(log: UndoLog, story: SortedJournal) -> tuple[ReversalResult, ...]:
    """Finish all interrupted reversals; returns their results."""
    _retract_last(log, story)
    done = (_finish(log, note, story) for note in story.reversals)
    return tuple(one for one in done if one is not None)


def unfinished_steps(log: UndoLog, story: SortedJournal) -> tuple[StepId, ...]:
    """The steps whose reversal is not at its end."""
    return tuple(
        step
        for note in story.reversals
        for step in note.steps
        if not _is_finished(log, step, story.parts.get(note.seq, {}).get(step))
    )


def _finish(log: UndoLog, note: ReversalBegin, story: SortedJournal) -> ReversalResult | None:
    parts = story.parts.get(note.seq, {})
    unfinished = [step for step in note.steps if not _is_finished(log, step, parts.get(step))]
    pending = [log.read(step).leaving("undone" if note.forward else "done") for step in unfinished]
    if not pending:
        return None
    # Where one is finished, all were reversed.
    position = story.positions.get(note.seq) if len(pending) == len(note.steps) else -1
    for one in pending:
        part = parts.get(one.head.id)
        if part is None:
            reopen_step(log, one)
        else:
            log.recorder.resume(part.begin, part.records, reverses=True).aliases += part.aliases
    described = log.recorder.aliases.all(
        record.identity for one in pending for record in one.records if isinstance(record, (Meta, Content))
    )
    again = [record for part in parts.values() for record in part.records]
    with log.open_directories() as directories:
        revoke_access(directories, again, described)
    noted, since = story.left.get(note.seq, {}), story.since.get(note.seq, note.seq)
    foreign = changed_since_interruption(log, InterruptedReversal(pending, position, again, noted, since, note.at))
    if note.spares:
        foreign |= foreign_objects(log, pending)
    conflicts = tuple(dict.fromkeys(story.conflicts.get(note.seq, ())))
    return carry_out(log, pending, note, ResumePoint(position, conflicts, foreign, story.refused.get(note.seq, {})))


def _is_finished(log: UndoLog, step: StepId, part: StepRecords | None) -> bool:
    if part is None or part.end is None or step not in log.heads:
        return step not in log.heads  # forgotten by now: it had been finished
    last = part.records[-1].seq if part.records else part.begin.seq
    return log.heads[step].acted >= last


def _retract_last(log: UndoLog, story: SortedJournal) -> None:
    """An object that was about to lose its name when the keeper was killed, and still has it, is at its old place."""
    parts = [part for parts in story.parts.values() for part in parts.values() if part.records]
    if not parts:
        return
    part = max(parts, key=lambda part: part.records[-1].seq)
    last = part.records[-1]
    if not isinstance(last, (Remove, Move)) or not _holds(log, last.path, last.identity):
        return
    if isinstance(last, Move) and _holds(log, last.target, last.identity):
        return  # two names of one file
    log.recorder.note(Failed(log.recorder.next_seq(), last.step, last.seq))
    for number in preimage_numbers([last]):
        log.preimages.discard(number)
    part.records.pop()


def _holds(log: UndoLog, path: bytes, object_: Identity) -> bool:
    with log.open_directories() as directories:
        try:
            place = directories.place(path)
            return identity(place.dir_fd, place.name) == object_
        except OSError:
            return False
