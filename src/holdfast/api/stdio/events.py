"""What is told without being asked (docs/stdio.md), and what the host tells as that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.api.objects import MAX_LISTED, Barrier, Conflict, Object, Step, as_object, cut
from holdfast.api.stdio import messages
from holdfast.engine import encoding_undo, hosting
from holdfast.model.paths import display

if TYPE_CHECKING:
    from holdfast.engine.encoding import Json
    from holdfast.engine.hosting import Event, Hosted
    from holdfast.undo.service import TicketInfo


class TerminalOutput(Object, frozen=True, kw_only=True):
    """A command wrote something: text, or bytes where it is not UTF-8; the other one is null."""

    request_id: str
    directory: int
    step_id: int
    stream: Literal["stdout", "stderr"]
    data: str | None
    data_base64: str | None


class AgentOutput(TerminalOutput, frozen=True, kw_only=True):
    """The agent that works on a prompt wrote something."""


class StepStarted(Object, frozen=True, kw_only=True):
    """A command's turn has come; what it changes belongs to this step."""

    request_id: str
    directory: int
    step_id: int


class StepCompleted(Object, frozen=True, kw_only=True):
    """A command has ended."""

    request_id: str
    directory: int
    step_id: int
    exit_code: int | None
    """Null if nobody knows it, as what ran the command was lost."""
    affected_paths: list[str]
    affected_count: int
    """How many there are; of those at most 1,000 are listed."""
    cancelled: bool
    denied: bool
    output_open: bool
    step: Step | None
    """As ``undo.history`` lists it; null if it changed nothing."""


class Warned(Object, frozen=True, kw_only=True):
    """What a person should know of."""

    directory: int | None
    step_id: int | None
    code: str
    message: str


class Error(Object, frozen=True, kw_only=True):
    """A session has failed; the next command begins another."""

    directory: int
    code: str
    message: str
    hint: str | None


class SafeguardTriggered(Object, frozen=True, kw_only=True):
    """An operation waits for a person's answer, and its step with it."""

    directory: int
    safeguard_id: str
    step_id: int
    danger: Literal["delete", "overwrite", "rename_over", "limit"]
    path: str
    message: str
    delete_count: int
    """How many paths the step has deleted so far."""
    sample_paths: list[str]
    command: list[str]
    asked_at: str
    denied_at: str


class ExternalModification(Barrier, frozen=True, kw_only=True):
    """Somebody else has changed the tree."""

    directory: int


class Recovery(Object, frozen=True, kw_only=True):
    """What was left open by a keeper that was killed has been taken back."""

    directory: int
    steps: list[int]
    paths: int
    conflicts: list[Conflict]


class UndoVersionMismatch(Object, frozen=True, kw_only=True):
    """The undo log is of another version: no command runs, and nothing is undone, before ``undo.discard``."""

    directory: int
    message: str
    hint: str | None


EVENTS: dict[str, type[Object]] = {
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
}
_NAMES = {kind: name for name, kind in EVENTS.items()}


def line(event: Object) -> bytes:
    """The line that tells of an event."""
    return messages.event(_NAMES[type(event)], event)


def told(hosted: Hosted, value: Event) -> Object:
    """What the host tells of a working directory, as an event."""
    directory = hosted.index
    match value:
        case hosting.Held():
            return SafeguardTriggered(
                **waiting(directory, value.ticket),
                directory=directory,
                delete_count=value.deleted,
                sample_paths=[display(path) for path in value.sample],
                command=[] if value.step is None else [display(word) for word in value.step.command],
            )
        case hosting.Edited():
            (barrier,) = encoding_undo.barriers([value.barrier])["barriers"]
            barrier["paths"] = barrier["paths"][:MAX_LISTED]
            return ExternalModification(directory=directory, **barrier)
        case hosting.RolledBack():
            done = encoding_undo.rolled_back(value.report)
            conflicts = done["conflicts"][:MAX_LISTED]
            return as_object({**done, "conflicts": conflicts, "directory": directory}, Recovery)
        case hosting.Mismatched():
            return UndoVersionMismatch(directory=directory, message=value.error.message, hint=value.error.hint)
        case hosting.Warned():
            return Warned(directory=directory, step_id=value.step, code=value.code, message=value.message)


def step(value: Json, most: int) -> Step:
    """A step with its changes, of which at most so many are listed."""
    return as_object(cut(value, "changes", most=most), Step)


def waiting(directory: int, ticket: TicketInfo) -> Json:
    """What waits for an answer, with what the answer has to name."""
    said = encoding_undo.ticket(ticket)
    # (The time makes it that of one ticket of one keeper: the next keeper counts from 1 again.)
    step = said.pop("step")
    del said["id"]
    return {**said, "step_id": step, "safeguard_id": f"{directory}-{ticket.id}-{ticket.asked_at}"}
