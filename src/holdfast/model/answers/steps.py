"""Answers about runs, steps, barriers and held operations."""

from __future__ import annotations

from holdfast.model.fast_typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Annotated, Any

    from holdfast.model.answers.words import Danger, Edit, NanoTime, Path, Seconds, StepKind, StepState


class PathChange(TypedDict):
    """What a step did to one path."""

    path: Path
    change: Edit
    source: Path | None


def is_protected(step: Any) -> bool:
    """Whether a step can be undone whole."""
    return not step.unprotected


class Step(TypedDict):
    """One step."""

    id: int
    kind: StepKind
    state: StepState
    command: list[Path]
    directory: Path
    run: str
    parent: int | None
    started_at: NanoTime
    ended_at: NanoTime | None
    paths: int
    bytes: Annotated[int, "copied"]
    protected: Annotated[bool, is_protected]
    unprotected_reason: Annotated[str, "unprotected"]
    exit_code: int | None
    barrier_after: bool


class Steps(TypedDict):
    """The steps, oldest first."""

    steps: list[Step]


class BegunStep(TypedDict):
    """A step that was begun."""

    id: int


class DiscardedSteps(TypedDict):
    """What was forgotten."""

    discarded: int | None
    """How many steps; null if that cannot be told."""


class Conflict(TypedDict):
    """What was left as it is."""

    path: Path
    reason: str
    kept: Path | None


class StepWithChanges(Step):
    """One step, with what it did."""

    changes: list[PathChange]
    conflicts: list[Conflict]


class RolledBack(TypedDict):
    """What was taken back."""

    steps: list[int]
    paths: int
    conflicts: list[Conflict]


class Barrier(TypedDict):
    """An edit that no step made."""

    id: int
    at: NanoTime
    after: int | None
    paths: list[Path]
    who: str
    blocks: bool


class Barriers(TypedDict):
    """The barriers, oldest first."""

    barriers: list[Barrier]


class Ticket(TypedDict):
    """An operation that waits for a person."""

    id: int
    step: int
    danger: Danger
    path: Path
    message: str
    asked_at: NanoTime
    denied_at: NanoTime


class AnsweredTicket(Ticket):
    """One that a person has answered, with what was left as it is when its step was taken back."""

    conflicts: list[Conflict]


class UnansweredTicket(Ticket):
    """One that had no answer in time."""

    seconds: Annotated[Seconds, "unanswered"]


class Tickets(TypedDict):
    """What safeguards hold, oldest first."""

    held: list[Ticket]


def held_isolation(result: Any) -> Any:
    """What held for a run; None without any."""
    return None if result.isolation.level == "none" else result.isolation._asdict()


def run_undo_command(result: Any) -> str | None:
    """What takes a run back; None if nothing of it is left."""
    return f"holdfast undo --run {result.run}{' --force' if result.forgotten else ''}" if result.standing else None


class Ran(TypedDict):
    """What became of a run."""

    run: str
    exit_code: int
    before: str
    after: str
    steps: list[Step]
    isolation: Annotated[dict[str, Any] | None, held_isolation]
    """What held, as the settings of that section are called."""
    forgotten_steps: Annotated[int, "forgotten"]
    unanswered: list[UnansweredTicket]
    undo_command: Annotated[str | None, run_undo_command]
