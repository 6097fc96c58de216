"""What a killed keeper left: open steps are rolled back, and what was being reversed is reversed to the end (I3).

Recovery goes by the journal alone and can itself be killed at any point: the next one continues. What was changed after
the keeper's last sign of life is somebody else's, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from holdfast.undo.records import Bare, Begin, End, Failed, Outside, Reverse, Reversed
from holdfast.undo.sealing import NOT_OURS, seal
from holdfast.undo.traces import reach, whereabouts
from holdfast.undo.undoing import Undone, carry_out, reverse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.files.handle import Identity
    from holdfast.undo.log import UndoLog
    from holdfast.undo.records import AnyRecord, Mutation, StepId
    from holdfast.undo.sealed import Sealed

BEAT_SECONDS = 0.25
"""How often a keeper calls `UndoLog.beat` while a step is open."""

_SLACK = int((BEAT_SECONDS * 2) * 1e9)


class Recovered(NamedTuple):
    """What recovery did."""

    rolled_back: Undone | None
    """The steps that were open; None if there were none."""
    finished: tuple[Undone, ...]
    """Undo and redo that had been cut short."""


@dataclass
class _Part:
    begin: Begin
    records: list[Mutation] = field(default_factory=list["Mutation"])
    end: End | None = None
    bare: str = ""


def recover(log: UndoLog) -> Recovered:
    """Bring the tree and the log to where no keeper was killed. Idempotent; does nothing if nothing is left."""
    parts, reversals, positions = _sort(log.found)
    finished = [_finish(log, note, parts.get(note.seq, {}), positions.get(note.seq)) for note in reversals]
    reversed_ = {step for note in reversals for step in note.steps}
    opened: list[Sealed] = []
    for part in parts.get(0, {}).values():
        step = part.begin.step
        if step not in log.heads:
            _seal_as_found(log, part)
        if part.end is None and step not in reversed_:
            opened.append(log.read(step))
    rolled_back = None
    if opened:
        rolled_back = reverse(log, opened, theirs=_theirs(log, opened))
    log.found = []
    if not log.recorder.open_steps:
        log.journal.restart()
    return Recovered(rolled_back, tuple(done for done in finished if done is not None))


def _seal_as_found(log: UndoLog, part: _Part) -> None:
    step = log.recorder.resume(part.begin, part.records)
    step.bare = part.bare
    at, code = (part.end.at, part.end.exit_code) if part.end else (log.last_beat.at, None)
    # (Without a note of its end: that is what tells the next recovery that it has to be rolled back.)
    closed = log.recorder.drop(part.begin.step)
    seal(log, closed, state="done", ended_at=at, exit_code=code, alive_until=log.last_beat.at + _SLACK)


def _sort(
    records: Iterable[AnyRecord],
) -> tuple[dict[int, dict[StepId, _Part]], list[Reverse], dict[int, int]]:
    """The records of each step, by the reversal that they belong to (0: by none); the reversals; how far each is."""
    parts: dict[int, dict[StepId, _Part]] = {}
    reversals: list[Reverse] = []
    positions: dict[int, int] = {}
    within: dict[StepId, int] = {}
    for record in records:
        match record:
            case Reverse():
                reversals.append(record)
                within |= dict.fromkeys(record.steps, record.seq)
            case Reversed():
                positions[record.reverse] = record.position
            case Begin():
                parts.setdefault(within.get(record.step, 0), {})[record.step] = _Part(record)
            case Outside():
                pass
            case _:
                part = parts[within.get(record.step, 0)][record.step]
                match record:
                    case End():
                        part.end = record
                    case Failed():
                        part.records = [kept for kept in part.records if kept.seq != record.failed]
                    case Bare():
                        part.bare = record.reason
                    case _:
                        part.records.append(record)
    return parts, reversals, positions


def _finish(log: UndoLog, note: Reverse, parts: dict[StepId, _Part], position: int | None) -> Undone | None:
    """Continue a reversal that was cut short; None if it was not."""
    pending = [log.read(step) for step in note.steps if not _is_finished(log, step, parts.get(step))]
    if not pending:
        return None
    for one in pending:
        part = parts.get(one.head.id)
        if part is None:
            head = one.head
            log.recorder.begin(head.id, head.kind, run=head.run, command=head.command, directory=head.directory)
        else:
            log.recorder.resume(part.begin, part.records)
    # Where one is finished, all were reversed.
    start = position if len(pending) == len(note.steps) else -1
    return carry_out(log, pending, note, start=start)


def _is_finished(log: UndoLog, step: StepId, part: _Part | None) -> bool:
    if part is None or part.end is None or step not in log.heads:
        return step not in log.heads  # forgotten by now: it had been finished
    last = part.records[-1].seq if part.records else part.begin.seq
    return log.heads[step].acted >= last


def _theirs(log: UndoLog, opened: list[Sealed]) -> frozenset[Identity]:
    """The objects that steps finished later, or others after the keeper was killed, have changed."""
    found: set[Identity] = set()
    for one in opened:
        for path, left in one.head.left:
            if left == NOT_OURS and (object_ := whereabouts(one.records).get(path)) is not None:
                found.add(object_)
        mine = reach(one.records)
        chosen = {each.head.id for each in opened}
        for head in log.heads.values():
            if head.id not in chosen and head.state != "undone" and head.last > one.head.first:
                found |= reach(log.read(head.id).records).objects & mine.objects
    return frozenset(found)
