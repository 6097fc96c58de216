"""Steps that are not at their end, as of a server that a run has left: what they hold, by which processes, and how
those are ended.
"""

from __future__ import annotations

from contextlib import contextmanager

from holdfast.model.errors import RefusedError
from holdfast.model.paths import display, parents
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.model.entries import Change
    from holdfast.store.records import HistoryEvent
    from holdfast.undo.service import GoingOn, ProcessInfo, UndoService

_SHOWN = 3
_TOLD = 20
_COMMAND_CHARS = 80


class Held:
    """What steps hold that are going on: undo and redo by checkpoints leave it as it is."""

    def __init__(self, service: UndoService | None, *, force: bool = False) -> None:
        """With ``force`` nothing is held."""
        self._service = service
        self._steps: Sequence[GoingOn] = () if service is None or force else service.going_on()
        self.paths = frozenset(path for step in self._steps for path in step.paths)
        self.ids = frozenset(step.step for step in self._steps)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def rest(self, changes: Sequence[Change]) -> list[Change]:
        """The changes that none of the steps has to do with."""
        return [change for change in changes if change.path not in self.paths]

    def refuse_older(self, leaving: HistoryEvent) -> None:
        """Raise `RefusedError` if a step that is going on came after a state: its change is newer than what made that,
        and cannot be taken back.
        """
        seq = leaving.undo_seq
        self._refuse([] if seq is None else [step for step in self._steps if step.begun > seq])

    def refuse_edited(self, changes: Sequence[Change], since: HistoryEvent) -> None:
        """Raise `RefusedError` if others are known to have changed, since a state, what a step has to do with that is
        going on: the one cannot be taken back without the other, nor may it be passed over.
        """
        if self._service is None:
            return
        edits = [barrier for barrier in self._service.barriers() if barrier.id > (since.undo_seq or 0)]
        edited = {path for barrier in edits for path in barrier.paths}.intersection(one.path for one in changes)
        steps = [step for step in self._steps if not edited.isdisjoint(step.paths)]
        if steps:
            found = refusal(self._service, steps)
            raise RefusedError(
                f"others have changed {', '.join(map(display, sorted(edited)[:_SHOWN]))} too; {found.message}",
                hint=found.hint,
                code="barrier",
                data=found.data,
            )

    def refuse_in_place(self, changes: Sequence[Change]) -> None:
        """Raise `RefusedError` if one of the `rest` of ``changes`` would come in the place of what a step holds that is
        going on: a file where a directory has that below it, or a directory where that is a file.
        """
        rest = {change.path: change for change in self.rest(changes)}
        holders = {path: step for step in self._steps for path in step.paths}
        in_place = {above: step for path, step in holders.items() for above in parents(path) if above in rest}
        # (That a step holds a directory keeps nothing from being made in it.)
        files = {change.path for change in changes if change.path in holders and change.before is not None}
        made = [path for path, change in rest.items() if change.before is None]
        in_place |= {path: holders[above] for path in made for above in parents(path) if above in files}
        if in_place and self._service is not None:
            found = refusal(self._service, [*in_place.values()])
            shown = ", ".join(map(display, sorted(in_place)[:_SHOWN]))
            raise RefusedError(
                f"{shown}{', …' if len(in_place) > _SHOWN else ''} would come in the place of what a step holds; "
                f"{found.message}",
                hint=found.hint,
                code=found.code,
                data=found.data,
            )

    def refuse_all(self) -> None:
        """Raise `RefusedError` if any step is going on."""
        self._refuse(self._steps)

    def _refuse(self, steps: Sequence[GoingOn]) -> None:
        if steps and self._service is not None:
            raise refusal(self._service, steps)


def refusal(service: UndoService, steps: Sequence[GoingOn]) -> RefusedError:
    """The error that says which step is going on, by which processes."""
    step = max(steps, key=lambda one: one.begun)
    found = service.processes(step.run) if step.run else ()
    found = [one for one in found if one.step == step.step] or found
    paths = ", ".join(display(path) for path in step.paths[:_SHOWN]) + (", …" if len(step.paths) > _SHOWN else "")
    by = f": {named_processes(found)} may change {paths} at any time" if found else f", and has changed {paths}"
    stop = f"`holdfast undo --run {step.run} --stop` ends it, and takes back all of its run; " if found else ""
    return RefusedError(
        f"step {step.step} is still going on{by}",
        hint=f"{stop}wait until it ends (what a command writes by itself: some seconds of quiet); "
        "--force takes back what checkpoints hold of it",
        code="step_open",
        data={"step": step.step, "run": step.run, "processes": told_processes(found)},
    )


def with_processes(service: UndoService, error: RefusedError) -> RefusedError:
    """The error, with the processes that stand in the way where something is still going on, or written to."""
    if error.code not in ("step_open", "still_written") or "processes" in (error.data or {}):
        return error
    runs = sorted({step.run for step in service.going_on() if step.run})
    found = [process for run in runs for process in service.processes(run)]
    if not found:
        return error
    stop = f"`holdfast undo --run {runs[0]} --stop` ends {'it' if len(found) == 1 else 'them'}"
    return RefusedError(
        f"{error.message}: {named_processes(found)}",
        hint=f"{error.hint}; {stop}" if error.hint else stop,
        code=error.code,
        data={**(error.data or {}), "processes": told_processes(found)},
    )


@contextmanager
def naming_processes(service: UndoService | None) -> Generator[None]:
    """In this block a `RefusedError` names the processes that stand in the way, as `with_processes` does."""
    try:
        yield
    except RefusedError as error:
        raise error if service is None else with_processes(service, error) from None


def named_processes(processes: Sequence[ProcessInfo]) -> str:
    """Processes by number and command, for people."""
    shown = ", ".join(f"process {one.pid} ({_command(one)})" for one in processes[:_SHOWN])
    return shown + (f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else "")


def told_processes(processes: Sequence[ProcessInfo]) -> list[dict[str, object]]:
    """The same, for programs."""
    return [{"pid": one.pid, "command": [display(word) for word in one.command]} for one in processes[:_TOLD]]


def _command(process: ProcessInfo) -> str:
    return display(b" ".join(process.command))[:_COMMAND_CHARS] or "?"
