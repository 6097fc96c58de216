"""Answers about runs, steps, barriers and held operations."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import Danger, Edit, NanoTime, Path, Seconds, StepKind, StepState


class PathChange(TypedDict):
    """A change of one path."""

    path: Path
    change: Edit
    source: Path | None
    """Of ``renamed``: the former path."""


def is_protected(step: Any) -> bool:
    """Whether a step can be undone whole."""
    return not step.unprotected


class Step(TypedDict):
    """A step."""

    id: int
    kind: StepKind
    state: StepState
    """``partly``: some paths were left as they are."""
    command: list[Path]
    directory: Path
    """Where it ran, absolute; empty for a step without a command."""
    run: str
    """The id of the run, or empty."""
    parent: int | None
    """The explicit step that it is a part of."""
    started_at: NanoTime
    ended_at: NanoTime | None
    paths: int
    bytes: Annotated[int, "copied"]
    """How many were copied for undo."""
    protected: Annotated[bool, is_protected]
    """The step can be undone completely."""
    unprotected_reason: Annotated[str, "unprotected"]
    exit_code: int | None
    """128 and the number of a signal; null while the step is open, if unknown, without a command, and if the step was
    denied.
    """
    barrier_after: bool
    """Another process made changes between this step and the next."""


class Steps(TypedDict):
    """Steps, oldest first."""

    steps: list[Step]


class BegunStep(TypedDict):
    """A new step."""

    id: int


class DiscardedSteps(TypedDict):
    """With ``--discard``."""

    discarded: int | None
    """The number of steps; null if it is unknown."""


class Conflict(TypedDict):
    """A path that was left as it is."""

    path: Path
    reason: str
    kept: Path | None
    """Where the step's version is kept."""


class StepWithChanges(Step):
    """A step and its changes."""

    changes: list[PathChange]
    """By path. A file that a rename replaced is ``deleted`` as well; a file made where a rename left is ``added``."""
    conflicts: list[Conflict]
    """Left as they are when the step was last taken back or brought forward."""


class RolledBack(TypedDict):
    """A step that was taken back."""

    steps: list[int]
    """Ids."""
    paths: int
    """How many operations were reversed."""
    conflicts: list[Conflict]
    """If there are any, the exit code is 4."""


class Barrier(TypedDict):
    """An edit by another process."""

    id: int
    at: NanoTime
    after: int | None
    """The newest step before it."""
    paths: list[Path]
    """An empty one means anything."""
    who: str
    """The process, as far as it is known."""
    blocks: bool
    """False if it was only to be noted."""


class Barriers(TypedDict):
    """Barriers, oldest first."""

    barriers: list[Barrier]


class Ticket(TypedDict):
    """A held operation."""

    id: int
    step: int
    danger: Danger
    path: Path
    message: str
    asked_at: NanoTime
    denied_at: NanoTime
    """When it is denied without an answer."""


class AnsweredTicket(Ticket):
    """An answered operation."""

    conflicts: list[Conflict]


class UnansweredTicket(Ticket):
    """An operation without an answer in time."""

    seconds: Annotated[Seconds, "unanswered"]
    """How long the program waited."""


class Tickets(TypedDict):
    """Held operations, oldest first."""

    held: list[Ticket]


def held_isolation(result: Any) -> Any:
    """The isolation of a run; None without any."""
    return None if result.isolation.level == "none" else result.isolation._asdict()


def run_undo_command(result: Any) -> str | None:
    """The command that undoes a run; None if no step of it is left to undo."""
    return f"holdfast undo --run {result.run}{' --force' if result.forgotten else ''}" if result.standing else None


class Ran(TypedDict):
    """A run."""

    run: str
    """Its id."""
    exit_code: int
    before: str
    """A checkpoint."""
    after: str
    """A checkpoint."""
    steps: list[Step]
    """The steps that changed something."""
    isolation: Annotated[dict[str, Any] | None, held_isolation]
    """The fields are named as the settings of that section."""
    forgotten_steps: Annotated[int, "forgotten"]
    """Beyond the limits of the undo log."""
    unanswered: list[UnansweredTicket]
    """Held without an answer in time."""
    undo_command: Annotated[str | None, run_undo_command]
    """Null if nothing was changed, or all was taken back."""
