"""The port of undo (`holdfast.undo.service`) on a log in this process, and the additional work of its keeper.

The process that feeds the interceptor opens and closes steps here, asks `LocalUndoService.explicit_step` and
`LocalUndoService.ambient_step` for the step of mutations outside of commands, calls `LocalUndoService.tick` a few times
a second, and delays operations while `LocalUndoService.is_quiet`.
"""

from __future__ import annotations

import stat
from bisect import insort
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.files.protected_directories import find_protected
from holdfast.model.errors import HeldError, HoldfastError, NotFoundError, RefusedError, StorageError
from holdfast.model.paths import display
from holdfast.undo.completion.late_writes import mixed_since, settle_late_writes, written_late
from holdfast.undo.journal.log_ownership import forget_others
from holdfast.undo.journal.records import End
from holdfast.undo.local_service._content_match import brought_back, note_contents, still_brought
from holdfast.undo.local_service._step_completion import StepFinisher, roll_back
from holdfast.undo.local_service._step_dependencies import connected_steps, refuse_overlaps
from holdfast.undo.local_service._undo_redo import foresee, redo, undo
from holdfast.undo.local_service.file_writer import write_file
from holdfast.undo.log import no_step
from holdfast.undo.reports.step_changes import path_changes
from holdfast.undo.reports.step_views import (
    all_steps,
    barrier_infos,
    conflict_info,
    going_on,
    open_step_info,
    step_info,
    undo_report,
)
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.undo.service import ABANDONED, ConflictInfo, RunEnding

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from holdfast.files.linux.file_handle import Identity
    from holdfast.undo.journal.records import StepId, StepKind
    from holdfast.undo.journal.step_file import StepHead
    from holdfast.undo.log import UndoLog
    from holdfast.undo.reversal.durable_reversal import ReversalResult
    from holdfast.undo.safeguards.open_step import OpenStep
    from holdfast.undo.service import (
        BarrierInfo,
        LogLimits,
        PathChange,
        ProcessInfo,
        StepInfo,
        Thresholds,
        TicketInfo,
        UndoReport,
        UnfinishedStep,
    )

AMBIENT_QUIET = 5.0
"""Seconds without a change after which an ambient step is closed."""


class LocalUndoService:
    """See the module. Implements `UndoService`; safe for several threads.

    No method waits for a person. `close`, `commit`, `rollback` and `answer` wait for operations of the step that are in
    flight, `undo` and `redo` for all: operations are served on another thread.
    """

    def __init__(
        self,
        log: UndoLog,
        safeguards: Safeguards | None = None,
        *,
        intercepts: bool = False,
        own: Sequence[bytes] = (),
        ambient_quiet: float = AMBIENT_QUIET,
        unfinished: Sequence[StepId] = (),
    ) -> None:
        """``safeguards`` are those that ``log`` was opened with. ``intercepts``: others' mutations pass through.
        ``own`` are directories in which `write` writes nothing, like the log's. ``unfinished``: for a read-only
        service, the steps whose interrupted reversal stays unfinished.
        """
        self.unfinished = unfinished
        self._undo_log = log
        self._recorder = log.recorder
        self._safeguards = safeguards or Safeguards(log.clock)
        self._intercepts = intercepts
        self._own = (log.directory, *own)
        self._ambient_quiet = ambient_quiet
        self._ambient_id: StepId | None = None
        self._explicit: dict[str, StepId] = {}
        """The explicit steps that are open, by the run of which a process has opened it; "" for a process outside."""
        self._denied: dict[StepId, StepInfo] = {}
        """Denied steps of runs' own processes: they are shown as open, and all their mutations fail, until they are
        closed or the run opens its next one.
        """
        self._quiets = 0
        self._finisher = StepFinisher(log)

    # For the process that feeds the interceptor ---------------------------------------------------------------------

    def explicit_step(self, run: str) -> StepId | None:
        """The explicit step that is open and takes in what ``run`` changes: its own, else that of a process outside,
        which takes in everything.
        """
        # Usually none is open.
        return self._explicit.get(run, self._explicit.get("")) if self._explicit else None

    def explicit_steps(self, run: str | None) -> Sequence[StepId]:
        """The open explicit steps: the one that ``run`` itself has opened, or all of them (None)."""
        return [step for owner, step in self._explicit.items() if run is None or owner == run]

    def guard(self, thresholds: Thresholds, runs: Iterable[str] = ()) -> None:
        """Change the limits at which a person is asked, while these runs exist. Raises `StorageError`."""
        with self._recorder.gate:
            self._safeguards.thresholds = thresholds
            self._safeguards.keep(runs if thresholds.asks else ())
            self._recorder.note_guard()

    def begin_command(self, run: str) -> None:
        """A session gives its next command: for safeguards, what earlier ones have made was there before."""
        with self._recorder.gate:
            self._safeguards.begin(run)

    def run_ending(self, run: str) -> RunEnding:
        """The report for an ended run, when its steps are finished."""
        with self._recorder.gate:
            return RunEnding(
                unanswered=self._safeguards.unanswered(run), forgotten=self._undo_log.forgotten_steps.pop(run, 0)
            )

    def was_refused(self, step: StepId) -> bool:
        """Whether a step has ended while it waited for a person, or by their answer."""
        with self._recorder.gate:
            return self._safeguards.was_refused(step)

    def lapse(self, ticket: int) -> None:
        """A held operation cannot wait any longer, and fails: its step is rolled back as after a denial, and the ticket
        waits on alone (`holdfast.undo.safeguards.tickets`).
        """
        with self._recorder.gate:
            step = self._safeguards.lapse(ticket)
            take_back = self._deny(step) if step is not None else None
        if take_back is not None:
            take_back()

    @property
    def is_quiet(self) -> bool:
        """Whether mutations have to wait: a client has entered `quiet`."""
        return self._quiets > 0

    def open(
        self,
        kind: StepKind,
        *,
        run: str = "",
        command: tuple[bytes, ...] = (),
        directory: bytes = b"",
        parent: StepId | None = None,
    ) -> StepId:
        """Open a step. Raises `StorageError`."""
        with self._recorder.gate:
            self._undo_log.flush_foreign_edits()  # edits until now came before it
            step = self._undo_log.new_id(ambient=kind == "ambient")
            self._recorder.begin(step, kind, run=run, command=command, directory=directory, parent=parent)
            self._undo_log.beat()  # what the history records from now on comes after the step's beginning
            return step

    def ambient_step(self) -> StepId:
        """The step of what belongs to no command; it is closed by itself. Raises `StorageError`."""
        with self._recorder.gate:
            if self._ambient_id is None:
                self._ambient_id = self.open("ambient")
            return self._ambient_id

    def close(self, step: StepId, exit_code: int | None = None) -> StepInfo | None:
        """Close a step; a held one is rolled back. None if it changed nothing (then nothing of it remains), or was
        denied.

        Raises `NotFoundError` if it is not open. If the log cannot be written the step stays in the journal, and is
        finished later.
        """
        finish = self.begin_close(step, exit_code)
        return finish() if finish is not None else None

    def begin_close(
        self, step: StepId, exit_code: int | None = None, *, take_back: bool = False
    ) -> Callable[[], StepInfo | None] | None:
        """`close` in two parts: the part that must see the tree before another change is done at once.

        The rest (hashing preimages, writing the step, and with ``take_back`` reversing it) is returned, for another
        thread; for a large step it takes long. None if there is no more to do.
        """
        with self._recorder.gate:
            if self._recorder.lift_denial(step):
                self._leave(step)
                return partial(self._finisher.tell_exit, step, exit_code) if exit_code is not None else None
            opened = self._end(step)
            take_back = take_back or bool(opened.held)
            if opened.held and opened.begin.kind == "explicit":
                # Its run is over: processes that made changes in it must not continue in another step.
                self._recorder.deny(step)
                self._recorder.deny(step, is_back=True)
            if not opened.records:
                with suppress(StorageError):
                    self._recorder.note(End(self._recorder.next_seq(), step, exit_code, 0))
                self._undo_log.restart()
                return None
            return self._finisher.begin_finish(opened, exit_code, take_back=take_back)

    def begin_close_ambient(self) -> Callable[[], StepInfo | None] | None:
        """`begin_close` for the ambient step; None as well if none is open."""
        with self._recorder.gate:
            return None if self._ambient_id is None else self.begin_close(self._ambient_id)

    def beat(self) -> None:
        """Give a sign of life. To be called a few times a second while a step is open."""
        with self._recorder.gate:
            if self._recorder.open_steps:
                with suppress(StorageError):  # a step only seems to have ended earlier then
                    self._undo_log.beat()

    def tick(self) -> None:
        """Do periodic work: the heartbeat, tickets whose time is over, an ambient step that has become quiet.

        Call it a few times a second while a step is open or a ticket waits.
        """
        self.beat()
        with self._recorder.gate:
            expired = self._safeguards.expired()
            quiet = self._quiet_ambient()
        for ticket in expired:
            self.answer(ticket, allow=False)
        if quiet is not None:
            self.close(quiet)
        with suppress(StorageError):
            self._finisher.catch_up()
            settle_late_writes(self._undo_log, eagerly=False)

    @property
    def is_unsettled(self) -> bool:
        """Whether what some finished step left is still written to."""
        return bool(self._undo_log.unsettled or self._undo_log.unsettled_others)

    def settle(self) -> None:
        """Look once more at what steps left and was written to since, as far as that is over. Raises `StorageError`."""
        settle_late_writes(self._undo_log)

    def record_foreign_edit(
        self, paths: Iterable[bytes], who: str = "", *, blocks: bool = True, objects: Iterable[Identity] = ()
    ) -> None:
        """Another process changed ``paths`` (the root's: any path). Ignored while `is_quiet`, when changes are
        Holdfast's own.

        ``blocks`` is false with the policy ``warn``. ``objects`` are those that were written to or whose metadata
        changed, as far as known: they may have other names. Raises `StorageError`.
        """
        if not self.is_quiet:
            self._undo_log.record_foreign_edit(paths, who, blocks=blocks, objects=objects)

    # The service ------------------------------------------------------------------------------------------------

    def steps(self) -> Sequence[StepInfo]:
        """See `UndoService.steps`."""
        with suppress(StorageError):
            self._finisher.catch_up()  # an ended step is neither open nor in the log until it is finished
        with self._recorder.gate:
            found = [step for step in all_steps(self._undo_log) if step.id not in self._denied]
            for denied in self._denied.values():
                insort(found, denied, key=lambda step: step.begun)
            return found

    def changes(self, step: StepId) -> Sequence[PathChange]:
        """See `UndoService.changes`."""
        with self._recorder.gate:
            if any(opened.id == step for opened in self._recorder.open_steps):
                return path_changes(self._recorder.step(step).records)
            sealed = self._undo_log.read(step)
        is_undone = sealed.head.state == "undone"
        found = path_changes(sealed.records, backward=is_undone)
        if sealed.head.refused:  # the other changes of the step
            found += [one for one in path_changes(sealed.head.refused, backward=not is_undone) if one not in found]
        return found

    def conflicts(self, step: StepId) -> Sequence[ConflictInfo]:
        """See `UndoService.conflicts`."""
        with self._recorder.gate:
            if step not in self._undo_log.heads:
                raise no_step(step)
            return [conflict_info(self._undo_log.quarantine, met) for met in self._undo_log.heads[step].conflicts]

    def connected(self, step: StepId) -> Sequence[StepId]:
        """See `UndoService.connected`."""
        with self._recorder.gate:
            return connected_steps(self._undo_log, step)

    def check_connected(self, steps: Sequence[StepId]) -> None:
        """See `UndoService.check_connected`."""
        with self._recorder.gate:
            for step in steps:
                if step not in self._undo_log.heads:
                    raise no_step(step)
            refuse_overlaps(self._undo_log, steps)

    def written_late(self) -> Sequence[tuple[StepId, bytes]]:
        """See `UndoService.written_late`."""
        with self._recorder.gate:
            return written_late(self._undo_log)

    def mixed_since(self, at: int, seq: int | None) -> Sequence[tuple[StepId, bytes]]:
        """See `UndoService.mixed_since`."""
        with self._recorder.gate:
            return mixed_since(self._undo_log, at, seq)

    def going_on(self) -> Sequence[UnfinishedStep]:
        """See `UndoService.going_on`."""
        with self._recorder.gate:
            settle_late_writes(self._undo_log)
            return going_on(self._undo_log)

    def processes(self, run: str) -> Sequence[ProcessInfo]:
        """See `UndoService.processes`. Nothing runs under a log that has no keeper; a keeper answers this itself."""
        del run
        return ()

    def signal(self, run: str, number: int) -> int:
        """See `processes`."""
        del run, number
        return 0

    def forgotten(self) -> Sequence[str]:
        """See `UndoService.forgotten`."""
        with self._recorder.gate:
            return list(self._undo_log.forgotten.runs)

    def undo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """See `UndoService.undo`."""
        return self._reverse(undo, steps, force=force)

    def foresee(self, steps: Sequence[StepId], *, forward: bool = False, force: bool = False) -> Sequence[ConflictInfo]:
        """See `UndoService.foresee`."""
        with self._at_rest():
            found = foresee(self._undo_log, steps, forward=forward, force=force)
        return [ConflictInfo(path=path, reason=reason, kept=None) for path, reason in found]

    def redo(self, steps: Sequence[StepId], *, force: bool = False) -> UndoReport:
        """See `UndoService.redo`."""
        return self._reverse(redo, steps, force=force)

    def note_contents(self, step: StepId, contents: Sequence[tuple[bytes, bytes]]) -> None:
        """See `UndoService.note_contents`."""
        note_contents(self._undo_log, step, contents)

    def unnoted(self) -> Sequence[StepId]:
        """See `UndoService.unnoted`."""
        with self._recorder.gate:
            return [head.id for head in self._undo_log.heads.values() if head.paths and not head.noted]

    def left_files(self, step: StepId) -> Sequence[bytes]:
        """See `UndoService.left_files`."""
        with self._recorder.gate:
            if step not in self._undo_log.heads:
                raise no_step(step)
            left = self._undo_log.heads[step].left
        return sorted(path for path, found in left if found is not None and not stat.S_ISDIR(found.mode))

    def brought_back(self, paths: Sequence[tuple[bytes, bytes | None]]) -> None:
        """See `UndoService.brought_back`."""
        with self._recorder.gate:
            brought_back(self._undo_log, dict(paths))

    def still_brought(self, paths: Sequence[bytes]) -> Sequence[bytes]:
        """See `UndoService.still_brought`."""
        with self._recorder.gate:
            return still_brought(self._undo_log, paths)

    def begin(self, label: str, *, run: str = "") -> StepId:
        """See `UndoService.begin`. ``run``: the one whose own process asks for it, and to which it is limited."""
        with self._recorder.gate:
            if not self._intercepts:
                raise RefusedError(
                    "nothing is intercepted here: a step would hold nothing", hint="holdfast run -- COMMAND intercepts"
                )
            if (denied := self._explicit.get(run)) in self._denied:
                self._lift_denial(denied)  # the process that had opened it never came back
            if (found := self.explicit_step(run)) is not None:
                raise RefusedError(f"step {found} is open", hint="holdfast step commit or rollback closes it")
            command = (label.encode("utf-8", "surrogateescape"),) if label else ()
            self._explicit[run] = self.open("explicit", run=run, command=command)
            self._recorder.on_steps_changed()
            return self._explicit[run]

    def commit(self, step: StepId, *, run: str | None = None) -> StepInfo:
        """See `UndoService.commit`. ``run``: the one whose own process asks for it; None for a process outside."""
        return step_info(self._close_explicit(step, run))

    def commit_abandoned(self, step: StepId) -> bool:
        """Commit an explicit step whose client is gone; its label says so. False if it was closed. Raises as `commit`,
        except `NotFoundError`.
        """
        with self._recorder.gate:
            if step not in self._explicit.values():
                return False
            for opened in self._recorder.open_steps:
                if opened.id == step:
                    opened.begin = msgspec.structs.replace(opened.begin, command=(*opened.begin.command, ABANDONED))
        self._close_explicit(step, None)
        return True

    def rollback(self, step: StepId, *, run: str | None = None) -> UndoReport:
        """See `UndoService.rollback`. For ``run`` see `commit`."""
        head = self._close_explicit(step, run)
        with self._recorder.gate:
            done = [roll_back(self._undo_log, head.id)] if head.id in self._undo_log.heads else []
            return undo_report(self._undo_log.quarantine, done)

    def write(self, path: bytes, content: int, *, expected: bytes | None = None, run: str = "") -> StepInfo | None:
        """See `UndoService.write`; instead of waiting for a person it raises `HeldError`. No run is going on here."""
        del run
        return self.writing(path, content, expected)()

    def writing(
        self, path: bytes, content: int, expected: bytes | None, run: str = "", directory: bytes = b""
    ) -> Callable[[], StepInfo | None]:
        """`write`, to be called again after each `HeldError`. ``run`` and ``directory`` are what the step is given."""
        step: StepId | None = None

        def go_on() -> StepInfo | None:
            nonlocal step
            failed = None
            with self._recorder.gate:
                if step is None:
                    step = self.explicit_step("")
                if step is None:
                    step = self.open("api", run=run, command=(b"write", path), directory=directory)
                is_own = step != self.explicit_step("")
                try:
                    with self._undo_log.open_directories() as directories:
                        write_file(
                            self._recorder, directories, find_protected(self._own), step, path, content, expected
                        )
                except HeldError:
                    raise
                except (HoldfastError, KeyError) as error:
                    if isinstance(error, KeyError) or self._recorder.is_denied(step):
                        raise RefusedError(f"{display(path)} was not written: it was denied", code="denied") from None
                    failed = error
                finish = self.begin_close(step, take_back=failed is not None) if is_own else None
            info = finish() if finish is not None else None
            if failed is not None:
                with self._recorder.gate:
                    if info is not None and not self._undo_log.heads[step].conflicts:
                        self._undo_log.remove(step)  # it has no changes left, and nothing to redo
                raise failed
            return info if is_own else self._info_of_open_step(step)

        return go_on

    def _info_of_open_step(self, step: StepId) -> StepInfo:
        return next(info for info in self.steps() if info.id == step)

    def thresholds(self) -> Thresholds:
        """See `UndoService.thresholds`."""
        return self._safeguards.thresholds

    def limits(self) -> LogLimits:
        """See `UndoService.limits`."""
        return self._undo_log.limits

    def configure(self, limits: LogLimits) -> None:
        """See `UndoService.configure`."""
        with self._recorder.gate:
            self._undo_log.limits = limits
            self._recorder.max_step_bytes = limits.max_step_bytes
            self._undo_log.evict()

    def barriers(self) -> Sequence[BarrierInfo]:
        """See `UndoService.barriers`."""
        with self._recorder.gate:
            return barrier_infos(self._undo_log)

    def held(self) -> Sequence[TicketInfo]:
        """See `UndoService.held`."""
        with self._recorder.gate:
            return self._safeguards.held()

    def answer(self, ticket: int, *, allow: bool) -> TicketInfo:
        """See `UndoService.answer`."""
        with self._recorder.gate:
            if allow:
                info = self._safeguards.allow(ticket)
                self._recorder.note_guard()
                return info
            has_lapsed = self._safeguards.has_lapsed(ticket)
            info = self._safeguards.deny(ticket)
            if has_lapsed:
                return info
            take_back = self._deny(info.step)
        take_back()
        with self._recorder.gate:
            left = tuple(self.conflicts(info.step)) if info.step in self._undo_log.heads else ()
        return msgspec.structs.replace(info, conflicts=left)

    @contextmanager
    def quiet(self) -> Generator[None]:
        """See `UndoService.quiet`."""
        with self._recorder.gate:
            self._quiets += 1
            self._recorder.is_paused = True
            self._recorder.wait_for()
        try:
            yield
        finally:
            with self._recorder.gate:
                self._quiets -= 1
                self._recorder.is_paused = self.is_quiet
                self._recorder.note_arrangement()

    def discard(self) -> int:
        """See `UndoService.discard`. A log of another version is discarded by
        `holdfast.undo.journal.log_ownership.discard_log`.
        """
        with self._recorder.gate:
            found = list(self._undo_log.heads)
            for step in found:
                self._undo_log.forget(step)
            self._undo_log.restart()
        forget_others(self._undo_log.directory)
        return len(found)

    # The rest ---------------------------------------------------------------------------------------------------

    def _deny(self, step: StepId) -> Callable[[], None]:
        """Close a step that is held; what waits for the gate finds it closed, and is refused until `close`. The gate is
        held. Returns what takes back all that it has done, for when the gate is not.
        """
        opened = self._end(step)
        self._recorder.deny(step)
        if opened.begin.kind == "explicit" and opened.begin.run:
            self._explicit[opened.begin.run] = step
            self._recorder.on_steps_changed()
            self._denied[step] = open_step_info(opened)
        finish = self._finisher.begin_finish(opened, None, take_back=True) if opened.records else None

        def take_back() -> None:
            try:
                if finish is not None:
                    finish()
            finally:
                self._recorder.deny(step, is_back=True)

        return take_back

    def _end(self, step: StepId) -> OpenStep:
        if not any(opened.id == step for opened in self._recorder.open_steps):
            raise NotFoundError(f"step {step} is not open")
        self._recorder.wait_for(step)
        opened = self._recorder.drop(step)
        self._safeguards.forget(step)
        if opened.held:
            self._safeguards.denied(opened)
        self._leave(step)
        if opened.records:
            self._undo_log.unsealed[step] = opened
        return opened

    def _leave(self, step: StepId) -> None:
        if step in self._explicit.values():
            self._explicit = {owner: each for owner, each in self._explicit.items() if each != step}
            self._recorder.on_steps_changed()
        self._denied.pop(step, None)
        if step == self._ambient_id:
            self._ambient_id = None

    def _lift_denial(self, step: StepId) -> None:
        self._recorder.lift_denial(step)
        self._leave(step)

    def _quiet_ambient(self) -> StepId | None:
        if self._ambient_id is None:
            return None
        step = self._recorder.step(self._ambient_id)
        is_quiet = self._undo_log.clock.monotonic() - step.last_active >= self._ambient_quiet
        return step.id if is_quiet and not step.busy and not step.held else None

    def _close_explicit(self, step: StepId, run: str | None) -> StepHead:
        with self._recorder.gate:
            if step not in self._explicit.values():
                raise NotFoundError(f"step {step} is no explicit step that is open")
            if step not in self.explicit_steps(run):
                raise RefusedError(
                    f"step {step} was not begun by the run {run}, which cannot close it",
                    hint="the process that has begun it closes it; a person can do so from another terminal",
                    code="other_run",
                )
            if step in self._denied:
                self._lift_denial(step)
                raise RefusedError(f"step {step} was denied: what it had done was taken back", code="denied")
            opened = self._end(step)
            self._undo_log.unsealed[step] = opened
            finish = self._finisher.begin_finish(opened, None, take_back=bool(opened.held))
        finish()
        self._finisher.catch_up()
        if opened.held:
            raise RefusedError(f"step {step} was held, and was not allowed: it was taken back", code="denied")
        with self._recorder.gate:
            head = self._undo_log.heads[step]
            if head.run and not head.paths:
                self._undo_log.remove(step)  # as for a command: no changes, no step
            return head

    def _reverse(self, change: Callable[..., ReversalResult], steps: Sequence[StepId], *, force: bool) -> UndoReport:
        with self._at_rest():
            return undo_report(self._undo_log.quarantine, [change(self._undo_log, steps, force=force)])

    @contextmanager
    def _at_rest(self) -> Generator[None]:
        """No operation is in flight, and every step that has ended is finished. Raises `StorageError`."""
        self._finisher.catch_up()
        with self._recorder.gate:
            self._recorder.wait_for()
            self._finisher.catch_up()  # a step may have ended in between; most are finished without the gate
            yield
