"""Steps, barriers and reversals as the plain values of `holdfast.undo.service`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.undo.journal.records import OURSELVES
from holdfast.undo.journal.step_footprint import objects_by_path
from holdfast.undo.service import BarrierInfo, ConflictInfo, StepInfo, UndoReport, UnfinishedStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.undo.journal.quarantine import Quarantine
    from holdfast.undo.journal.records import ForeignEdit
    from holdfast.undo.journal.step_file import StepConflict, StepHead
    from holdfast.undo.log import UndoLog
    from holdfast.undo.reversal.durable_reversal import ReversalResult
    from holdfast.undo.reversal.reversal_context import Conflict
    from holdfast.undo.safeguards.open_step import OpenStep


def all_steps(log: UndoLog) -> list[StepInfo]:
    """See `UndoService.steps`."""
    found = [(head.first, head.last, _finished(head)) for head in log.heads.values()]
    found += [(_begun(step), log.recorder.seq, _open(step)) for step in log.recorder.open_steps]
    found.sort(key=lambda each: each[0])
    barriers = [record.seq for record in _found_by_others(log)]
    shown: list[StepInfo] = []
    for at, (_, last, make) in enumerate(found):
        following = found[at + 1][0] if at + 1 < len(found) else None
        shown.append(make(any(last < seq and (following is None or seq < following) for seq in barriers)))
    return shown


def step_info(head: StepHead) -> StepInfo:
    """A finished step by itself."""
    return _finished(head)(False)


def _finished(head: StepHead) -> Callable[[bool], StepInfo]:
    return lambda barrier_after: StepInfo(
        id=head.id,
        kind=head.kind,
        state="partly" if head.conflicts else head.state,
        command=head.command,
        directory=head.directory,
        run=head.run,
        parent=head.parent,
        started_at=head.started_at,
        ended_at=head.ended_at,
        acted=head.acted,
        begun=head.begun or head.first,
        ended=max(head.last, head.looked_at),
        paths=head.paths,
        copied=head.copied,
        unprotected=head.protected,
        exit_code=head.exit_code,
        barrier_after=barrier_after,
        refused=("undo" if head.state == "undone" else "redo") if head.refused else "",
    )


def open_step_info(step: OpenStep) -> StepInfo:
    """A step by itself, as it was before it ended."""
    return _open(step)(False)


def _begun(step: OpenStep) -> int:
    """As `StepHead.first` will be."""
    return step.records[0].seq if step.records else step.begin.seq


def _open(step: OpenStep) -> Callable[[bool], StepInfo]:
    begin = step.begin
    return lambda barrier_after: StepInfo(
        id=begin.step,
        kind=begin.kind,
        state="open",
        command=begin.command,
        directory=begin.directory,
        run=begin.run,
        parent=begin.parent,
        started_at=begin.at,
        ended_at=None,
        acted=step.records[-1].seq if step.records else begin.seq,
        begun=begin.seq,
        paths=len(objects_by_path(step.records)),
        copied=step.copied,
        unprotected=step.unprotected_reason,
        exit_code=None,
        barrier_after=barrier_after,
    )


def going_on(log: UndoLog) -> list[UnfinishedStep]:
    """See `UndoService.going_on`. The gate is held."""
    found = [
        UnfinishedStep(
            step=step.id, run=step.begin.run, begun=step.begin.seq, paths=tuple(objects_by_path(step.records))
        )
        for step in log.recorder.open_steps
        if step.records and not step.reverses
    ]
    waiting = ((log.heads[step], files) for step, files in log.unsettled.items() if step in log.heads)
    found += [
        UnfinishedStep(step=head.id, run=head.run, begun=head.begun or head.first, paths=tuple(files))
        for head, files in waiting
        if head.state == "done"
    ]
    return found


def barrier_infos(log: UndoLog) -> list[BarrierInfo]:
    """See `UndoService.barriers`."""
    return [_barrier(log, record) for record in _found_by_others(log)]


def _found_by_others(log: UndoLog) -> list[ForeignEdit]:
    return [record for record in log.barriers.records if record.who != OURSELVES]


def _barrier(log: UndoLog, record: ForeignEdit) -> BarrierInfo:
    before = [(head.last, head.id) for head in log.heads.values() if head.last < record.seq]
    before += [(step.begin.seq, step.id) for step in log.recorder.open_steps if step.begin.seq < record.seq]
    return BarrierInfo(
        id=record.seq,
        at=record.at,
        after=max(before)[1] if before else None,
        paths=record.paths,
        who=record.who,
        blocks=record.blocks,
    )


def undo_report(aside: Quarantine, done: Iterable[ReversalResult]) -> UndoReport:
    """The combined report of several reversals."""
    done = list(done)
    return UndoReport(
        steps=tuple(step for one in done for step in one.steps),
        paths=sum(one.paths for one in done),
        conflicts=tuple(conflict_info(aside, conflict) for one in done for conflict in one.conflicts),
    )


def conflict_info(aside: Quarantine, conflict: Conflict | StepConflict) -> ConflictInfo:
    """A conflict of a reversal, or one recorded in a finished step."""
    return ConflictInfo(
        path=conflict.path,
        reason=conflict.reason,
        kept=None if conflict.aside is None else aside.path(conflict.aside),
    )
