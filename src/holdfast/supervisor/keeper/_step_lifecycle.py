"""The beginning and end of steps: a group's first change, and its last process or a pause; for a line at a shell's
prompt, the line.

A person's explicit step includes all changes until it is closed; an explicit step of a run's process includes the run's
changes.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError
from holdfast.model.log import Log, note_step
from holdfast.supervisor.process_tree.members import StepGroup, ticks_now
from holdfast.undo.service import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.supervisor.process_tree.members import Run
    from holdfast.undo.journal.records import StepId
    from holdfast.undo.local_service.undo_service import LocalUndoService
    from holdfast.undo.recorder.recorder import Recorder
    from holdfast.undo.service import StepInfo

_log = Log(__name__)

QUIET_SECONDS = 5.0
"""After a pause of this length, what the agent writes itself is a new step."""
QUIET_CHILD_SECONDS = 30.0
"""The same for a child of the agent that lives on."""


class StepLifecycle:
    """The open steps of all groups. For the serving thread."""

    def __init__(
        self, service: LocalUndoService, recorder: Recorder, do: Callable[[Callable[[], object]], None]
    ) -> None:
        """``do`` queues a job for another thread, which keeps the order."""
        self._do = do
        self._service = service
        self._recorder = recorder
        self._open: dict[StepId, StepGroup] = {}
        self._denied: dict[StepId, float] = {}
        self._expected: set[StepId] = set()
        """Steps that last until they are settled."""
        self._groups: dict[StepId, StepGroup] = {}
        """The group of each step, until `is_alive` is called."""

    def step_of(self, group: StepGroup) -> StepId:
        """The step for the group's present changes. Opens one if there is none.

        Raises `PermissionError` if the group may change nothing any more, `StorageError`.
        """
        explicit = self._service.explicit_step(group.run.id)
        if group.explicit and group.explicit != explicit:
            if self._recorder.is_denied(group.explicit):
                self._bar(group)
            group.explicit = 0
        if group.barred:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        if explicit is not None:
            group.explicit = explicit
            return explicit
        if group.ambient:
            return self._service.ambient_step()
        if not group.step:
            group.step = self._service.open(
                "command", run=group.run.id, command=group.command, directory=group.directory
            )
            self._open[group.step] = self._groups[group.step] = group
        return group.step

    def held_step(self, step: StepId) -> StepId:
        """The step in which a person was asked about a call, and in which the call happens or fails; 0 if the step has
        ended since the permission. Raises `PermissionError` if it has ended without one: the call must not happen in
        another step.
        """
        if any(opened.id == step for opened in self._recorder.open_steps) or self._recorder.is_denied(step):
            return step
        if self._service.was_refused(step):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return 0

    def expect(self, run: Run, command: tuple[bytes, ...]) -> StepId:
        """Open the step of the command that the agent is about to start. Raises `RefusedError`, `StorageError`."""
        if run.awaited is not None or any(self._open[step].run is run for step in self._expected):
            raise RefusedError(f"a command of the run {run.id} has not ended yet", code="busy")
        group = StepGroup(run, 0)
        group.command, group.directory = command, run.agents.directory
        self._service.begin_command(run.id)
        group.step = self._service.open("command", run=run.id, command=command, directory=group.directory)
        note_step(group.step)
        self._open[group.step] = self._groups[group.step] = group
        self._expected.add(group.step)
        run.awaited, run.awaited_since = group, ticks_now()
        return group.step

    def run_expecting(self, step: StepId) -> Run | None:
        """The run of a step that was expected, while that is open."""
        return self._open[step].run if step in self._expected else None

    def settle(self, step: StepId, exit_code: int | None) -> Callable[[], StepOutcome]:
        """Close an expected step; returns the remaining work, for another thread.

        Raises `NotFoundError` if it is not open.
        """
        group = self._open.get(step)
        if group is None or step not in self._expected:
            raise NotFoundError(f"step {step} is not open, or no command that was expected")
        if group.run.awaited is group:
            group.run.awaited = None
        if group.exit_code is None:
            group.exit_code = exit_code
        denied = self._recorder.is_denied(step) or self._recorder.is_held(step)
        finish = self._closing(group)

        def settle() -> StepOutcome:
            info = finish() if finish is not None else None
            if info is None:  # it was reversed already, or has no changes
                info = next((info for info in self._service.steps() if info.id == step), None)
            return StepOutcome(info=info, denied=denied)

        return settle

    def prepare_line(self, run: Run) -> None:
        """The run's shell is about to begin a line: its earlier changes are not part of that."""
        self.end_line(run, None)  # in case that was not reported
        self.close(run.agents)

    def split_line(self, run: Run) -> None:
        """A process of the run is about to open an explicit step: the line's later changes are another step. Raises
        `RefusedError` while a person is asked about the line's present step.
        """
        if run.line is not None and run.line.step:
            if self._recorder.is_held(run.line.step):
                raise RefusedError(
                    f"step {run.line.step}, that of the line, waits for a person",
                    hint="`holdfast safeguard list` shows the operation",
                )
            self._close(run.line)

    def end_line(self, run: Run, exit_code: int | None) -> None:
        """The line has ended. If a background process of it waits for a person, its step continues until its end."""
        line, run.line = run.line, None
        self._recorder.on_steps_changed()
        if line is not None and line.step and not (line.live and self._recorder.is_held(line.step)):
            line.exit_code = exit_code
            self._close(line)
            line.exit_code = None  # it is not the exit code of background processes' steps

    def is_alive(self, step: StepId) -> Callable[[], bool]:
        """A function that tells whether any process of an ending step still exists; request it once."""
        group = self._groups.pop(step, None)
        return lambda: group is not None and group.live > 0

    def is_of(self, group: StepGroup, step: StepId) -> bool:
        """Whether what the group would change now belongs to the step."""
        if step == self._service.explicit_step(group.run.id):
            return True
        return step < 0 if group.ambient else step == group.step

    def close(self, group: StepGroup) -> None:
        """The group makes no more changes for now.

        The step's results are examined before any other call is served, which may change them. Writing them takes
        longer, and no call waits for that.
        """
        if group.step and group.step not in self._expected and group is not group.run.line:
            self._close(group)

    def close_run(self, run: Run) -> None:
        """Close all steps of a run, including its own explicit one."""
        run.awaited = run.line = None
        for group in [group for group in self._open.values() if group.run is run]:
            self._close(group)
        self.close_explicit(run)

    def close_explicit(self, run: Run) -> None:
        """Close the explicit step that the ``run`` has opened itself."""
        self._close_each(self._service.explicit_steps(run.id))

    def close_last(self) -> None:
        """Close the steps that belong to no run. If they stayed open, they would count as a killed keeper's, and be
        rolled back.
        """
        self._close_each(self._service.explicit_steps(None))
        self._finish(0, self._service.begin_close_ambient)

    def _close_each(self, steps: Sequence[StepId]) -> None:
        for step in steps:
            self._finish(step, partial(self._service.begin_close, step))

    def _close(self, group: StepGroup) -> None:
        self._finish(group.step, lambda: self._closing(group))

    def _finish(self, step: StepId, closing: Callable[[], Callable[[], StepInfo | None] | None]) -> None:
        try:
            if (finish := closing()) is not None:
                self._do(finish)
        except HoldfastError as error:
            # It stays in the journal: the next process that opens the log finishes it.
            _log.warning("step %d could not be finished: %s", step, error, step_id=step)

    def _closing(self, group: StepGroup) -> Callable[[], StepInfo | None] | None:
        step, group.step = group.step, 0
        if self._recorder.is_denied(step) or self._recorder.is_held(step):
            self._bar(group)
        del self._open[step]
        self._expected.discard(step)
        self._denied.pop(step, None)
        return self._service.begin_close(step, group.exit_code)

    @staticmethod
    def _bar(group: StepGroup) -> None:
        """Let the group change nothing while a process of it lives: a denied or unanswered operation must not continue
        in another step. A group whose steps are separated by pauses alone may continue after a pause.
        """
        group.barred = not group.lives_on

    def close_quiet(self, now: float) -> None:
        """Close steps after a pause; call it a few times a second, with the time on the monotonic clock."""
        for step, group in list(self._open.items()):
            try:
                found = self._recorder.step(step)
            except KeyError:
                # It was denied, and all its attempts fail until it ends.
                last = self._denied.setdefault(step, now)
            else:
                last = now if found.busy or found.held else found.last_active
            if now - last >= (QUIET_SECONDS if group.lives_on else QUIET_CHILD_SECONDS):
                self.close(group)
