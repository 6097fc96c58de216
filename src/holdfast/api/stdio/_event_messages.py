"""Events, which are sent without a request (docs/reference/stdio.md), and their encoding from events of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from holdfast.api._error_details import FOR_FRONTENDS, hint
from holdfast.api._truncated_results import Step, cut
from holdfast.api.stdio import _messages as messages
from holdfast.api.stdio._result_types import MAX_LISTED, Object, Waiting
from holdfast.engine.hosting import monitor
from holdfast.model.answers import steps as answers
from holdfast.model.fast_typing import TypedDict
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import HostedDirectory
    from holdfast.model.answers.words import Danger, NanoTime, Path
    from holdfast.undo.service import ConflictInfo, PathChange, StepInfo, TicketInfo

T = TypeVar("T")


class TerminalOutput(Object, frozen=True, kw_only=True):
    """Output of a command, in whole characters."""

    request_id: str
    directory: int
    step_id: int
    stream: Literal["stdout", "stderr"]
    data: str | None
    data_base64: str | None


class AgentOutput(TerminalOutput, frozen=True, kw_only=True):
    """The same of ``agent.prompt``."""


class StepStarted(Object, frozen=True, kw_only=True):
    """A command starts."""

    request_id: str
    directory: int
    step_id: int


class StepCompleted(Object, frozen=True, kw_only=True):
    """A command has ended."""

    request_id: str
    directory: int
    step_id: int
    exit_code: int | None
    """Null if the process that ran it was lost."""
    affected_paths: list[str]
    affected_count: int
    cancelled: bool
    denied: bool
    output_open: bool
    """A process left running holds its output, which goes nowhere."""
    step: Step | None
    """As in ``undo.history``, without changes; null if there are none."""


class Warned(Object, frozen=True, kw_only=True):
    """A person should know this: ``unprotected`` (a step cannot be undone whole), ``forgotten`` (the undo log was full
    or discarded: older steps are gone), ``events_lost``.
    """

    directory: int | None
    step_id: int | None
    code: str
    message: str


class Error(Object, frozen=True, kw_only=True):
    """The processes that run commands were lost, with all that the session started. The next command starts them again;
    until then the state is ``error``.
    """

    directory: int
    code: str
    message: str
    hint: str | None


class SafeguardTriggered(TypedDict):
    """An operation waits for a person's answer, and its step with it."""

    directory: int
    safeguard_id: str
    step_id: Annotated[int, "step"]
    danger: Danger
    path: Path
    message: str
    delete_count: int
    """Deleted before."""
    sample_paths: list[Path]
    """Some changed before."""
    command: list[Path]
    asked_at: NanoTime
    denied_at: NanoTime


class ExternalModification(answers.Barrier):
    """Another process has changed the tree."""

    directory: int


class Recovery(answers.RolledBack):
    """Open steps of a killed keeper were taken back; told once, by this session or the next."""

    directory: int


class UndoVersionMismatch(Object, frozen=True, kw_only=True):
    """The undo log is of another version of Holdfast: its steps cannot be undone (``undo_version_mismatch``). If it
    cannot be set aside (docs/internals/undo.md#another-version), no command runs and nothing is undone until
    ``undo.discard``; files and checkpoints can be used.
    """

    directory: int
    message: str
    hint: str | None


class Logged(Object, frozen=True, kw_only=True):
    """A record of the keeper (docs/reference/logs.md#processes-of-their-own), of other runs too."""

    directory: int
    timestamp: str
    level: str
    component: str
    message: str
    request_id: str | None
    step_id: int | None
    fields: dict[str, Any]
    """All others."""


EVENTS: dict[str, type[object]] = {
    "event.terminal_output": TerminalOutput,
    "event.agent_output": AgentOutput,
    "event.step_started": StepStarted,
    "event.step_completed": StepCompleted,
    "event.warning": Warned,
    "event.error": Error,
    "event.safeguard_triggered": SafeguardTriggered,
    "event.external_modification": ExternalModification,
    "event.recovery": Recovery,
    "event.undo_version_mismatch": UndoVersionMismatch,
    "event.log": Logged,
}
_NAMES = {kind: name for name, kind in EVENTS.items()}


def line(event: Object) -> bytes:
    """The line that tells of an event."""
    return _line(type(event), event)


def encode_event(hosted: HostedDirectory, value: HostEvent) -> bytes:
    """An event of a working directory, encoded as a line."""
    directory = hosted.index
    match value:
        case monitor.OperationHeld():
            event = encode(
                SafeguardTriggered,
                value.ticket,
                safeguard_id=_safeguard_id(directory, value.ticket),
                directory=directory,
                delete_count=value.deleted,
                sample_paths=value.sample,
                command=() if value.step is None else value.step.command,
            )
            return _line(SafeguardTriggered, event)
        case monitor.ForeignEdit():
            paths = value.barrier.paths[:MAX_LISTED]
            return _line(
                ExternalModification, encode(ExternalModification, value.barrier, paths=paths, directory=directory)
            )
        case monitor.StepsRolledBack():
            conflicts = value.report.conflicts[:MAX_LISTED]
            return _line(Recovery, encode(Recovery, value.report, conflicts=conflicts, directory=directory))
        case monitor.VersionMismatch():
            advice = hint(value.error, FOR_FRONTENDS)
            return line(UndoVersionMismatch(directory=directory, message=value.error.message, hint=advice))
        case monitor.KeeperLogged():
            return line(_logged(directory, dict(value.record)))
        case monitor.HostWarning():
            return line(Warned(directory=directory, step_id=value.step, code=value.code, message=value.message))


def _logged(directory: int, record: dict[str, Any]) -> Logged:
    step_id = record.pop("step_id", None)
    return Logged(
        directory=directory,
        timestamp=record.pop("timestamp"),
        level=record.pop("level"),
        component=record.pop("component"),
        message=record.pop("message"),
        request_id=record.pop("request_id", None),
        step_id=step_id if isinstance(step_id, int) else None,
        fields=record,
    )


def step(value: StepInfo, changes: Sequence[PathChange], left: Sequence[ConflictInfo], most: int) -> Step:
    """A step with its conflicts ``left`` and at most ``most`` of its changes."""
    shown = encode(answers.StepWithChanges, value, changes=changes, conflicts=left[:MAX_LISTED])
    return cut(shown, "changes", most=most)


def waiting(directory: int, ticket: TicketInfo) -> Waiting:
    """A held operation, with the id that its answer must name."""
    return encode(Waiting, ticket, safeguard_id=_safeguard_id(directory, ticket))


def _safeguard_id(directory: int, ticket: TicketInfo) -> str:
    # The time makes the id unique: each keeper counts its tickets from 1.
    return f"{directory}-{ticket.id}-{ticket.asked_at}"


def _line(kind: type[T], event: T) -> bytes:
    return messages.event(_NAMES[kind], event)
