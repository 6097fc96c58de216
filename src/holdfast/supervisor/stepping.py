"""When steps begin and end: with a group's first change, and with its last process or a pause.

What a person has opened as an explicit step takes in everything until it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.supervisor.processes import Group, Run
    from holdfast.undo.desk import Desk
    from holdfast.undo.recorder import Recorder
    from holdfast.undo.records import StepId

_log = Log(__name__)

QUIET_SECONDS = 5.0
"""After a pause of this length, what the agent writes itself is a new step."""
QUIET_CHILD_SECONDS = 30.0
"""The same for a child of the agent that lives on."""


class Steps:
    """The open steps of all groups. For the serving thread."""

    def __init__(self, desk: Desk, recorder: Recorder, do: Callable[[Callable[[], object]], None]) -> None:
        """``do`` has something done on another thread, in the order in which it is asked to."""
        self._do = do
        self._desk = desk
        self._recorder = recorder
        self._open: dict[StepId, Group] = {}
        self._denied: dict[StepId, float] = {}
        self._groups: dict[StepId, Group] = {}
        """Whose a step is, until `lives` is asked."""

    def of(self, group: Group) -> StepId:
        """The step that the group's changes belong to now. Opens one if there is none. Raises `StorageError`."""
        explicit = self._desk.explicit
        if explicit is not None:
            return explicit
        if group.ambient:
            return self._desk.ambient()
        if not group.step:
            group.step = self._desk.open("command", run=group.run.id, command=group.command, directory=group.directory)
            self._open[group.step] = self._groups[group.step] = group
        return group.step

    def lives(self, step: StepId) -> Callable[[], bool]:
        """Whether any process of a step that ends now is still there, whenever it is asked; asked for once."""
        group = self._groups.pop(step, None)
        return lambda: group is not None and group.live > 0

    def is_of(self, group: Group, step: StepId) -> bool:
        """Whether what the group would change now belongs to the step."""
        if step == self._desk.explicit:
            return True
        return step < 0 if group.ambient else step == group.step

    def close(self, group: Group) -> None:
        """The group changes nothing more for now.

        What its step left is looked at before anybody is served again: the next step may change it. To write it down
        takes longer, and nobody waits for that.
        """
        if not group.step:
            return
        step, group.step = group.step, 0
        code = None if group.lives_on else group.exit_code
        del self._open[step]
        self._denied.pop(step, None)
        try:
            if (finish := self._desk.closing(step, code)) is not None:
                self._do(finish)
        except HoldfastError as error:
            # It stays in the journal: whoever opens the log next finishes it.
            _log.warning("step %d could not be finished: %s", step, error)

    def close_run(self, run: Run) -> None:
        """Close all steps of a run."""
        for group in [group for group in self._open.values() if group.run is run]:
            self.close(group)

    def close_quiet(self, now: float) -> None:
        """Close what has paused; to be called a few times a second, with the time on the monotonic clock."""
        for step, group in list(self._open.items()):
            try:
                found = self._recorder.step(step)
            except KeyError:
                # It was denied, and everything it tries fails until it ends.
                last = self._denied.setdefault(step, now)
            else:
                last = now if found.busy or found.held else found.last
            if now - last >= (QUIET_SECONDS if group.lives_on else QUIET_CHILD_SECONDS):
                self.close(group)
