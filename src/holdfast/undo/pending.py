"""Reversals that were cut short, by a kill or by a system that failed: found and brought to their end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.model.errors import FormatError
from holdfast.undo.access import close_again
from holdfast.undo.carrying import Undone, Unfinished, begin_again, carry_out, in_order
from holdfast.undo.journal import read_journal
from holdfast.undo.records import Alias, Bare, Begin, Conflicted, Content, End, Failed, Meta, Outside, Reverse, Reversed
from holdfast.undo.reversal import Conflict
from holdfast.undo.strangers import changed, theirs
from holdfast.undo.traces import reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.files.handle import Identity
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import AnyRecord, Mutation, StepId
    from holdfast.undo.sealed import Sealed


@dataclass
class Part:
    """What the journal says of one step, by itself or within one reversal."""

    begin: Begin
    records: list[Mutation] = field(default_factory=list["Mutation"])
    end: End | None = None
    bare: Bare | None = None
    aliases: list[tuple[Identity, Identity]] = field(default_factory=list[tuple["Identity", "Identity"]])


@dataclass
class Story:
    """What a journal tells."""

    parts: dict[int, dict[StepId, Part]] = field(default_factory=dict[int, dict["StepId", Part]])
    """Of each step, by the sequence number of the reversal that it belongs to; 0: of none."""
    reversals: list[Reverse] = field(default_factory=list[Reverse])
    positions: dict[int, int] = field(default_factory=dict[int, int])
    """How far each reversal is."""
    conflicts: dict[int, list[Conflict]] = field(default_factory=dict[int, list[Conflict]])
    """Those that each has met."""


def tell(records: Iterable[AnyRecord]) -> Story:
    """Sort the records of a journal."""
    story = Story()
    within: dict[StepId, int] = {}
    for record in records:
        match record:
            case Reverse():
                story.reversals.append(record)
                within |= dict.fromkeys(record.steps, record.seq)
            case Reversed():
                story.positions[record.reverse] = record.position
            case Conflicted():
                conflict = Conflict(record.step, record.path, record.reason, record.failed if record.aside else None)
                story.conflicts.setdefault(within.get(record.step, 0), []).append(conflict)
            case Begin():
                story.parts.setdefault(within.get(record.step, 0), {})[record.step] = Part(record)
            case Outside():
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
                    case Bare():
                        part.bare = record
                    case _:
                        part.records.append(record)
    return story


def go_on(log: UndoLog) -> tuple[Undone, ...]:
    """Finish what an undo or a redo of this keeper could not, as the system had failed; returns what that was.

    Raises `StorageError`.
    """
    if not log.interrupted:
        return ()
    log.interrupted = False
    try:
        return finish(log, tell(read_journal(log.directory).records))
    except BaseException:
        log.interrupted = True
        raise


def finish(log: UndoLog, story: Story) -> tuple[Undone, ...]:
    """Bring all reversals to their end; returns those that were not."""
    done = (_finish(log, note, story) for note in story.reversals)
    return tuple(one for one in done if one is not None)


def unfinished(log: UndoLog, story: Story) -> tuple[StepId, ...]:
    """The steps whose reversal is not at its end."""
    return tuple(
        step
        for note in story.reversals
        for step in note.steps
        if not _is_finished(log, step, story.parts.get(note.seq, {}).get(step))
    )


def _finish(log: UndoLog, note: Reverse, story: Story) -> Undone | None:
    parts = story.parts.get(note.seq, {})
    pending = [log.read(step) for step in note.steps if not _is_finished(log, step, parts.get(step))]
    if not pending:
        return None
    # Where one is finished, all were reversed.
    position = story.positions.get(note.seq) if len(pending) == len(note.steps) else -1
    strangers = _changed_meanwhile(log, pending, position)
    if note.spares:
        strangers |= theirs(log, pending)
    for one in pending:
        part = parts.get(one.head.id)
        if part is None:
            begin_again(log, one)
        else:
            log.recorder.resume(part.begin, part.records, reverses=True).aliases += part.aliases
    described = log.recorder.aliases.all(
        record.identity for one in pending for record in one.records if isinstance(record, Meta | Content)
    )
    with log.looking() as directories:
        close_again(directories, [record for part in parts.values() for record in part.records], described)
    conflicts = tuple(dict.fromkeys(story.conflicts.get(note.seq, ())))
    return carry_out(log, pending, note, Unfinished(position, conflicts, strangers))


def _is_finished(log: UndoLog, step: StepId, part: Part | None) -> bool:
    if part is None or part.end is None or step not in log.heads:
        return step not in log.heads  # forgotten by now: it had been finished
    last = part.records[-1].seq if part.records else part.begin.seq
    return log.heads[step].acted >= last


def _changed_meanwhile(log: UndoLog, pending: Sequence[Sealed], position: int | None) -> frozenset[Identity]:
    """The objects that no reversed record speaks of, and that are not as the steps left them."""
    if position == -1:
        return frozenset()
    reversed_ = in_order(pending)[position:] if position is not None else []
    touched = reach(reversed_).objects
    found = (object_ for _, object_ in changed(log, pending) if object_ is not None and object_ not in touched)
    return frozenset(found)
