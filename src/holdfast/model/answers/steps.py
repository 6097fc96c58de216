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
    """The former path."""


def is_protected(step: Any) -> bool:
    """Whether a step can be undone whole."""
    return not step.unprotected


class Step(TypedDict):
    """A step."""

    id: int
    kind: StepKind
    state: StepState
    """``partly``: some paths were left alone."""
    command: list[Path]
    directory: Path
    """Where it ran, absolute."""
    run: str
    parent: int | None
    """The explicit step around it."""
    started_at: NanoTime
    ended_at: NanoTime | None
    paths: int
    bytes: Annotated[int, "copied"]
    """Copied for undo."""
    protected: Annotated[bool, is_protected]
    """It can be undone completely."""
    unprotected_reason: Annotated[str, "unprotected"]
    exit_code: int | None
    """128 and the number of a signal; null if open, unknown or without a command."""
    barrier_after: bool
    """Another process changed files before the next step."""


class Steps(TypedDict):
    """The steps."""

    steps: list[Step]
    """Oldest first."""


class BegunStep(TypedDict):
    """A begun step."""

    id: int


class DiscardedSteps(TypedDict):
    """With ``--discard``."""

    discarded: int | None
    """Null if unknown."""


class Conflict(TypedDict):
    """A path that was left as it is."""

    path: Path
    reason: str
    kept: Path | None
    """The step's version."""


class StepWithChanges(Step):
    """A step with its changes."""

    changes: list[PathChange]
    """By path; a file that a rename replaced is also ``deleted``, one made where a rename left is ``added``."""
    conflicts: list[Conflict]
    """Of the last undo or redo of the step."""


class RolledBack(TypedDict):
    """A step that was taken back."""

    steps: list[int]
    paths: int
    """Reversed operations."""
    conflicts: list[Conflict]
    """If there are any, the exit code is 4."""


class Barrier(TypedDict):
    """An edit by another process."""

    id: int
    at: NanoTime
    after: int | None
    """The step before it."""
    paths: list[Path]
    """An empty one means anything."""
    who: str
    """The process, if known."""
    blocks: bool
    """False: it is only noted."""


class Barriers(TypedDict):
    """The barriers."""

    barriers: list[Barrier]
    """Oldest first."""


class Ticket(TypedDict):
    """A held operation."""

    id: int
    step: int
    danger: Danger
    path: Path
    message: str
    asked_at: NanoTime
    denied_at: NanoTime
    """Without an answer."""


class AnsweredTicket(Ticket):
    """An answered ticket."""

    conflicts: list[Conflict]


class UnansweredTicket(Ticket):
    """An unanswered ticket."""

    seconds: Annotated[Seconds, "unanswered"]
    """How long the program waited."""


class Tickets(TypedDict):
    """The tickets."""

    held: list[Ticket]
    """Oldest first."""


def held_isolation(result: Any) -> Any:
    """The isolation of a run; None without any."""
    return None if result.isolation.level == "none" else result.isolation._asdict()


def run_undo_command(result: Any) -> str | None:
    """The command that undoes a run; None if no step of it is left to undo."""
    return f"holdfast undo --run {result.run}{' --force' if result.forgotten else ''}" if result.standing else None


class Ran(TypedDict):
    """A run."""

    run: str
    exit_code: int
    before: str
    after: str
    steps: list[Step]
    """Those that changed something."""
    isolation: Annotated[dict[str, Any] | None, held_isolation]
    """Fields as in docs/reference/configuration.md#isolation."""
    forgotten_steps: Annotated[int, "forgotten"]
    """Beyond the limits of the undo log."""
    unanswered: list[UnansweredTicket]
    undo_command: Annotated[str | None, run_undo_command]
    """Null if nothing is left to undo."""
