"""The end of a step: its results are examined, preimages are hashed, it is written, and reversed if it was denied.

Without enough disk space the rest stays in the journal until there is some. No step is undone or redone before all
ended ones are finished: an unfinished one's results would count as an outsider's edit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.model.errors import IntegrityError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.undo.completion.step_sealer import (
    StepEnd,
    StepRemains,
    exclude_foreign_edits,
    find_remains,
    preimage_numbers,
    seal_step,
)
from holdfast.undo.completion.unchanged_objects import drop_transient, drop_unchanged
from holdfast.undo.foreign_edits.detection import foreign_objects
from holdfast.undo.journal.records import End, Link, Made, Make, Move, Remove, Replaced
from holdfast.undo.recovery.interrupted_reversals import finish_failed
from holdfast.undo.reports.step_views import step_info
from holdfast.undo.reversal.durable_reversal import ReversalResult, reverse

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import Keeping, Mutation, StepId
    from holdfast.undo.journal.step_file import SealedStep, StepHead
    from holdfast.undo.log import UndoLog
    from holdfast.undo.safeguards.open_step import OpenStep
    from holdfast.undo.service import StepInfo

_LOG = Log(__name__)


class StepFinisher:
    """Finishes the steps of one log that have ended. Safe for several threads; the gate is the recorder's."""

    def __init__(self, log: UndoLog) -> None:
        self._log = log
        self._exits: dict[StepId, int | None] = {}
        """Exit codes of denied steps that ended before all their changes were rolled back."""
        self._late: dict[StepId, Callable[[], StepHead | None]] = {}
        """The remaining work of steps that have ended."""

    def begin_finish(
        self, opened: OpenStep, exit_code: int | None, *, take_back: bool = False
    ) -> Callable[[], StepInfo | None]:
        """Examine the results of a step that has ended; the gate is held, so that no mutation comes between. Returns
        the remaining work, which needs no gate.
        """
        ended_at = self._log.clock.now() * 1000
        is_step = False
        left: StepRemains | None = None
        needless: frozenset[int] = frozenset()
        """The numbers of preimages."""

        def prepare() -> None:
            nonlocal is_step, left, needless
            self._log.beat()
            self._log.recorder.note(End(self._log.recorder.next_seq(), opened.id, exit_code, ended_at))
            is_step = drop_unchanged(self._log, opened) or bool(opened.transient) or opened.begin.kind == "explicit"
            needless |= drop_transient(self._log, opened)  # after a failure this repeats without harm
            opened.looked_at = self._log.recorder.seq
            self._log.beat()  # what the history records from now on comes after the step's end
            left = find_remains(self._log, opened)

        def finish() -> StepHead | None:
            nonlocal left
            with self._log.recorder.gate:
                if left is None:
                    prepare()
            head = None
            if is_step and left is not None:
                self._log.flush_foreign_edits()  # edits up to the examination may be reported only now
                left = exclude_foreign_edits(self._log, opened, left)
                head = seal_step(self._log, opened, StepEnd("done", ended_at, exit_code), left=left)
                for number in needless:  # not before: after a kill until then, all its records finish the step
                    self._log.preimages.discard(number)
            with self._log.recorder.gate:
                self._late.pop(opened.id, None)
                self._log.unsealed.pop(opened.id, None)
                if is_step:
                    if take_back:
                        roll_back(self._log, opened.id)
                        head = self._log.heads[opened.id]
                        if opened.id in self._exits:
                            self.tell_exit(opened.id, self._exits.pop(opened.id))
                    else:
                        _LOG.info("step committed", step_id=opened.id, kind=opened.begin.kind, exit_code=exit_code)
                    self._log.evict()
                self._log.restart()
            return head

        def rest() -> StepInfo | None:
            try:
                # An undo that came first has finished it already.
                head = finish() if opened.id in self._late else self._log.heads.get(opened.id)
            except StorageError as error:
                _LOG.warning("step %d cannot be finished yet: %s", opened.id, error.message, step_id=opened.id)
                return None
            return step_info(head) if head is not None else None

        self._late[opened.id] = finish
        with suppress(StorageError):  # `finish` meets it again
            prepare()
        return rest

    def catch_up(self) -> None:
        """Finish the steps that have ended and are not finished. Raises `StorageError` if there is no room yet.

        For the thread that calls what `begin_finish` returns.
        """
        for finish in list(self._late.values()):
            finish()

    def tell_exit(self, step: StepId, exit_code: int | None) -> None:
        """A step that was denied, and so is finished already, has come to its end."""
        with self._log.recorder.gate:
            if step in self._log.unsealed:
                self._exits[step] = exit_code
            elif step in self._log.heads:
                sealed = self._log.read(step)
                head = msgspec.structs.replace(sealed.head, exit_code=exit_code)
                self._log.write(msgspec.structs.replace(sealed, head=head))


def roll_back(log: UndoLog, step: StepId) -> ReversalResult:
    """Roll one step back, leaving what others have changed since."""
    finish_failed(log)
    sealed = [log.read(step)]
    result = reverse(log, sealed, foreign=foreign_objects(log, sealed))
    _drop_what_it_made(log, sealed[0])
    return result


def _drop_what_it_made(log: UndoLog, rolled_back: SealedStep) -> None:
    """Remove objects from another step that this step made and the other one removed or replaced meanwhile: after the
    rollback they never existed. Undo of the other step must not restore them in the place of earlier objects, so they
    are put into quarantine. After a kill, or without room for that, the other step stays unchanged.
    """
    made = {record.identity for record in rolled_back.records if isinstance(record, Made)}
    linked = {(record.path, record.identity) for record in rolled_back.records if isinstance(record, Link)}
    beside = [head for head in log.heads.values() if head.state == "done" and head.last > rolled_back.head.first]
    for head in beside if made or linked else ():
        try:
            _drop_removals(log, log.read(head.id), made, linked, rolled_back.head.id)
        except (IntegrityError, StorageError, OSError) as error:
            _LOG.warning(
                "undo of step %d may bring back changes that were rolled back: %s", head.id, error, step_id=head.id
            )


def _drop_removals(
    log: UndoLog, sealed: SealedStep, made: Set[Identity], linked: Set[tuple[bytes, Identity]], maker: StepId
) -> None:
    """Remove two kinds of records from a finished step: its removals of ``linked`` names of objects with other names,
    and of ``made`` objects that it did not touch otherwise.
    """
    used = {record.identity for record in sealed.records if not isinstance(record, (Make, Remove))}
    records: list[Mutation] = []
    for record in sealed.records:
        match record:
            case Remove():
                path, lost, rest = record.path, record, None
            case Move(replaced=Replaced() as lost, exchanged=False):
                path, rest = record.target, msgspec.structs.replace(record, replaced=None)
            case _:
                records.append(record)
                continue
        is_made = lost.identity in made and lost.identity not in used
        if not is_made and not ((path, lost.identity) in linked and _has_others(log, lost.keeping)):
            records.append(record)
            continue
        if rest is not None:
            records.append(rest)
        number = log.take_moment()
        # Its preimage is needed until the step is written without it.
        if is_made and log.quarantine.keep(number, lost.type, lost.keeping, lost.metadata, is_needed=True):
            _LOG.warning(
                "%s was made by step %d, which is rolled back, and removed by step %d: it lies in %s",
                display(path),
                maker,
                sealed.head.id,
                display(log.quarantine.path(number)),
                step_id=maker,
            )
    if tuple(records) == sealed.records:
        return
    needed = preimage_numbers(records)
    kept = tuple(preimage for preimage in sealed.head.preimages if preimage.number in needed)
    head = msgspec.structs.replace(sealed.head, preimages=kept)
    log.write(msgspec.structs.replace(sealed, head=head, records=tuple(records)))
    for number in preimage_numbers(sealed.records) - needed:
        log.preimages.discard(number)


def _has_others(log: UndoLog, keeping: Keeping) -> bool:
    """Whether the object has another name besides the log's."""
    there = log.preimages.metadata_of(keeping.number) if keeping.number else None
    return there is None or there.st_nlink > 1
