"""Events in a working directory that no request caused, and the thread that observes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.engine.running.keeper_watch import KeeperWatch
from holdfast.supervisor.keeper.stderr_log import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.model.errors import HoldfastError
    from holdfast.supervisor.control.remote_service import RemoteUndoService
    from holdfast.undo.service import BarrierInfo, StepInfo, TicketInfo, UndoReport

_EVERY = ("timestamp", "level", "component", "message")
"""The fields of every log line."""
_TOO_MANY = ("debug", "trace")
"""Levels with a line for each call: they would push out events that count, where a client reads slowly."""
_SAMPLE = 20


class OperationHeld(NamedTuple):
    """A safeguard holds an operation until a person answers."""

    ticket: TicketInfo
    step: StepInfo | None
    sample: Sequence[bytes]
    """Some of the paths that the step has changed so far."""
    deleted: int
    """How many it has deleted so far."""


class ForeignEdit(NamedTuple):
    """Another process has changed the tree."""

    barrier: BarrierInfo


class StepsRolledBack(NamedTuple):
    """An open step of a killed keeper was rolled back, when the undo log was opened."""

    report: UndoReport


class VersionMismatch(NamedTuple):
    """The undo log is of another version: it is set aside before anything is recorded, where that can be."""

    error: HoldfastError


class HostWarning(NamedTuple):
    """A warning for a person."""

    code: str
    message: str
    step: int | None = None


class KeeperLogged(NamedTuple):
    """A log record of the keeper (docs/reference/logs.md)."""

    record: Mapping[str, Any]
    """The line: ``timestamp``, ``level``, ``component``, ``message``, and what else there is."""


HostEvent = OperationHeld | ForeignEdit | StepsRolledBack | VersionMismatch | HostWarning | KeeperLogged


class Monitor:
    """Sees what the keeper holds and notes, on a thread."""

    def __init__(self, undo_log: bytes, notify: Callable[[HostEvent], object], keeper: RemoteUndoService) -> None:
        """Observe from now on, until `stop`, without barriers that ``keeper`` has noted already; ``notify`` gets
        events.
        """
        self._notify = notify
        self._noted = max((barrier.id for barrier in keeper.barriers()), default=0)
        self._log = LogReader(undo_log)
        self._watch = KeeperWatch(undo_log, self._look, each=self._tell_log)

    def stop(self) -> None:
        """Look no longer."""
        self._watch.finish()
        self._tell_log()
        self._log.close()

    def _tell_log(self) -> None:
        for line in self._log.lines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # messages of Python itself
            if isinstance(record, dict):
                found = cast("dict[str, Any]", record)
                if found.get("level") not in _TOO_MANY and all(isinstance(found.get(name), str) for name in _EVERY):
                    self._notify(KeeperLogged(found))

    def _look(self, keeper: RemoteUndoService, begun: Sequence[TicketInfo], _over: object) -> None:
        for ticket in begun:
            step = next((step for step in keeper.steps() if step.id == ticket.step), None)
            changes = () if step is None else keeper.changes(step.id)
            deleted = sum(change.change == "deleted" for change in changes)
            self._notify(OperationHeld(ticket, step, [change.path for change in changes[:_SAMPLE]], deleted))
        for barrier in keeper.barriers():
            if barrier.id > self._noted:
                self._noted = barrier.id
                self._notify(ForeignEdit(barrier))
