"""Recovery after a killed keeper: open steps are rolled back, and interrupted reversals are finished (I3).

Recovery goes by the journal alone and can itself be killed at any point: the next one continues. Changes after the
keeper's last sign of life are not the steps', and stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.message_text import named_steps
from holdfast.model.paths import display
from holdfast.undo.completion.late_writes import abandon_writers
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.foreign_edits.detection import foreign_objects
from holdfast.undo.journal.records import ForeignEdit
from holdfast.undo.recovery.interrupted_reversals import StepRecords, finish_interrupted, sort_records, unfinished_steps
from holdfast.undo.reports.step_views import conflict_info
from holdfast.undo.reversal.durable_reversal import ReversalResult, reverse

if TYPE_CHECKING:
    from holdfast.undo.journal.quarantine import Quarantine
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.journal.step_file import SealedStep
    from holdfast.undo.log import UndoLog


_log = Log(__name__)

_SHOWN = 10
BEAT_SECONDS = 0.25
"""How often a keeper calls `UndoLog.beat` while a step is open."""
_SLACK = int((BEAT_SECONDS * 2) * 1e9)


def log_outstanding(left: Outstanding) -> None:
    """Log what a killed keeper had left undone, where a command that only looks leaves it so."""
    if left.rolled_back:
        _log.warning(
            "the process that recorded changes here was killed in the middle of %s: the next command "
            "that changes anything first rolls back the open step",
            named_steps(left.rolled_back),
            steps=left.rolled_back,
        )
    if left.finished:
        _log.warning(
            "an undo or redo of %s was cut short: the next command that changes anything finishes it first",
            named_steps(left.finished),
            steps=left.finished,
        )


def log_recovery(recovered: Recovered, aside: Quarantine) -> Recovered:
    """Log what a killed keeper had left undone, and what lies ``aside`` since; returns the former."""
    back = recovered.rolled_back
    if back is not None and back.steps:
        _log.warning(
            "the process that recorded changes here was killed in the middle of %s: the open step "
            "was rolled back (%d changes); `holdfast redo --step ID` brings a step forward again",
            named_steps(back.steps),
            back.paths,
            steps=back.steps,
        )
    for done in recovered.finished:
        _log.warning(
            "an undo or redo of %s that was cut short has been finished", named_steps(done.steps), steps=done.steps
        )
    conflicts = [one for done in (*recovered.finished, *filter(None, [back])) for one in done.conflicts]
    for conflict in conflicts[:_SHOWN]:
        _log.warning(
            "%s was left as it is: %s",
            display(conflict.path),
            conflict_info(aside, conflict).account,
            step_id=conflict.step,
            path=conflict.path,
        )
    if len(conflicts) > _SHOWN:
        _log.warning("and %d more paths were left as they are", len(conflicts) - _SHOWN)
    return recovered


class Recovered(NamedTuple):
    """The result of recovery."""

    rolled_back: ReversalResult | None
    """The steps that were open; None if there were none."""
    finished: tuple[ReversalResult, ...]
    """Undo and redo that had been cut short."""


def recover(log: UndoLog) -> Recovered:
    """Bring the tree and the log to a consistent state after a killed keeper, and report it.

    Idempotent; does nothing if nothing is unfinished.
    """
    was_cut_off = is_cut_off(log)
    story = sort_records(log.found_records)
    finished = finish_interrupted(log, story)
    reversed_ = {step for note in story.reversals for step in note.steps}
    opened: list[SealedStep] = []
    for part in story.parts.get(0, {}).values():
        step = part.begin.step
        if not part.records:
            continue  # it had changed nothing
        if step not in log.heads:
            _seal_as_found(log, part)
        if part.end is None and step not in reversed_:
            opened.append(log.read(step))
    rolled_back = reverse(log, opened, foreign=foreign_objects(log, opened)) if opened else None
    abandon_writers(log)
    log.found_records = []
    log.restart()
    if was_cut_off and not log.has_damage:
        _collect(log)
    return log_recovery(Recovered(rolled_back, finished), log.quarantine)


def is_cut_off(log: UndoLog) -> bool:
    """Whether the journal tells of anything but barriers: its keeper was killed, and `recover` has work."""
    return any(not isinstance(record, ForeignEdit) for record in log.found_records)


class Outstanding(NamedTuple):
    """The changes that `recover` would make in the tree."""

    rolled_back: tuple[StepId, ...]
    """The steps that are open."""
    finished: tuple[StepId, ...]
    """Steps with an interrupted undo or redo."""


def find_outstanding(log: UndoLog) -> Outstanding:
    """The unfinished work of a killed keeper for `recover`. Changes nothing."""
    story = sort_records(log.found_records)
    reversed_ = {step for note in story.reversals for step in note.steps}
    parts = story.parts.get(0, {}).values()
    opened = (part.begin.step for part in parts if part.records and part.end is None)
    return Outstanding(tuple(step for step in opened if step not in reversed_), unfinished_steps(log, story))


def _seal_as_found(log: UndoLog, part: StepRecords) -> None:
    step = log.recorder.resume(part.begin, part.records)
    step.unprotected = part.bare
    at, code = (part.end.at, part.end.exit_code) if part.end else (log.last_sign, None)
    # Without a record of its end, so that the next recovery knows that it must be rolled back.
    closed = log.recorder.drop(part.begin.step)
    closed.looked_at = log.recorder.seq
    for record in log.found_records:
        if isinstance(record, ForeignEdit) and record.finder is None:
            closed.add_edit(record)
    seal_step(log, closed, StepEnd("done", at, code), alive_until=log.last_sign + _SLACK)


def _collect(log: UndoLog) -> None:
    """Remove preimages that were being taken when the keeper was killed, and belong to no step."""
    known = {preimage.number for head in log.heads.values() for preimage in head.preimages}
    for number in list(log.preimages.numbers()):
        if number not in known:
            log.preimages.discard(number)
