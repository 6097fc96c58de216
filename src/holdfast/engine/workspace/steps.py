"""The part of a workspace's public face that shows, groups and answers what its undo log holds."""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.engine.opening.current_run import forbid_inside_run
from holdfast.engine.workspace.opened import OpenedWorkspace
from holdfast.model.errors import NotFoundError
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.undo.service import (
        BarrierInfo,
        ConflictInfo,
        PathChange,
        StepInfo,
        TicketInfo,
        UndoReport,
        UndoService,
    )


class RecordedSteps(OpenedWorkspace):
    """See the module."""

    def steps(self) -> Sequence[StepInfo]:
        """The steps in the undo log, oldest first."""
        from holdfast.engine.opening.undo_log import steps

        return steps(self._context)

    def step(self, step: int) -> tuple[StepInfo, Sequence[PathChange]]:
        """One step, and what it did to which path. Raises `NotFoundError`."""
        from holdfast.engine.opening.undo_log import changes

        return changes(self._context, step)

    def conflicts(self, step: int) -> Sequence[ConflictInfo]:
        """What was left as it is when a finished step was last undone, redone or rolled back: where others have changed
        it since, say, and where what belongs there is kept. Raises `NotFoundError`.
        """
        from holdfast.engine.opening.undo_log import conflicts

        return conflicts(self._context, step)

    def discard_steps(self) -> int | None:
        """Forget all finished steps, and undo logs of other versions; how many steps, if that can be told."""
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.opening.undo_log import discard

        return discard(self._context)

    def discard_other_version(self) -> bool:
        """Forget undo logs of other versions that were set aside, and nothing else; False if there are none."""
        forbid_inside_run(self._context, "forgetting")
        from holdfast.engine.opening.undo_log import discard_other_version

        return discard_other_version(self._context)

    def begin_step(self, label: str = "") -> int:
        """Open an explicit step: what supervised processes change from now on belongs to it. Its id."""
        with self._undo_log() as log:
            return log.begin(label)

    def commit_step(self, step: int | None = None) -> StepInfo:
        """Close an explicit step (None: the one that is open)."""
        with self._undo_log() as log:
            return log.commit(self._explicit(log, step))

    def rollback_step(self, step: int | None = None) -> UndoReport:
        """Close an explicit step (None: the one that is open), and take back what it did."""
        with self._undo_log() as log:
            return log.rollback(self._explicit(log, step))

    def barriers(self) -> Sequence[BarrierInfo]:
        """The edits by others that the undo log knows of, oldest first."""
        from holdfast.engine.opening.undo_log import barriers

        return barriers(self._context)

    def held(self) -> Sequence[TicketInfo]:
        """The operations that safeguards hold until a person has decided."""
        from holdfast.engine.opening.undo_log import reached

        with reached(self._context) as log:
            return [] if log is None else log.held()

    def answer(self, ticket: int, *, allow: bool) -> TicketInfo:
        """Let a held operation happen, or deny it: its step is then rolled back. Raises `NotFoundError`."""
        with self._undo_log() as log:
            return log.answer(ticket, allow=allow)

    @contextmanager
    def _undo_log(self) -> Generator[UndoService]:
        from holdfast.engine.opening.undo_log import reached, required

        with reached(self._context) as log:
            yield required(log)

    def _explicit(self, log: UndoService, step: int | None) -> int:
        """The number of an explicit step: the given one, or the one that is open; within a run, its own."""
        from holdfast.engine.opening.current_run import current_run

        if step is not None:
            return step
        run = current_run(self._context)
        found = [each for each in log.steps() if each.kind == "explicit" and each.state == "open"]
        if run is not None:
            found = [each for each in found if each.run == run]
        if not found:
            raise NotFoundError("no step is open", hint="holdfast step begin opens one", code="no_open_step")
        # (Of several, a person means the own one before those of runs.)
        return min(found, key=lambda each: bool(each.run)).id
