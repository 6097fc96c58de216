"""Runs, steps, barriers and held operations as JSON objects; see `holdfast.engine.encoding.workspace_json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.clock import isoformat
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.encoding.workspace_json import Json
    from holdfast.engine.running.run import RunResult
    from holdfast.model import json_types
    from holdfast.undo.service import BarrierInfo, ConflictInfo, PathChange, StepInfo, TicketInfo, UndoReport


def step(value: StepInfo) -> json_types.Step:
    """One step, as lists show it."""
    return {
        "id": value.id,
        "kind": value.kind,
        "state": value.state,
        "command": [display(word) for word in value.command],
        "directory": display(value.directory),
        "run": value.run,
        "parent": value.parent,
        "started_at": _time(value.started_at),
        "ended_at": None if value.ended_at is None else _time(value.ended_at),
        "paths": value.paths,
        "bytes": value.copied,
        "protected": not value.unprotected,
        "unprotected_reason": value.unprotected,
        "exit_code": value.exit_code,
        "barrier_after": value.barrier_after,
    }


def steps(values: Sequence[StepInfo]) -> Json:
    """What `steps` lists, oldest first."""
    return {"steps": [step(value) for value in values]}


def step_with_changes(
    value: StepInfo, changes: Sequence[PathChange], left: Sequence[ConflictInfo]
) -> json_types.StepWithChanges:
    """What `steps show` says. ``left`` is what was left as it is."""
    return {
        **step(value),
        "changes": [
            {
                "path": display(change.path),
                "change": change.change,
                "source": None if change.source is None else display(change.source),
            }
            for change in changes
        ],
        "conflicts": conflicts(left),
    }


def rollback_result(report: UndoReport) -> json_types.RolledBack:
    """What `step rollback` did."""
    return {
        "steps": list(report.steps),
        "paths": report.paths,
        "conflicts": conflicts(report.conflicts),
    }


def conflicts(values: Sequence[ConflictInfo]) -> list[json_types.Conflict]:
    """What was left as it is."""
    return [
        {
            "path": display(value.path),
            "reason": value.reason,
            "kept": None if value.kept is None else display(value.kept),
        }
        for value in values
    ]


def barrier(value: BarrierInfo) -> json_types.Barrier:
    """An edit that no step made."""
    return {
        "id": value.id,
        "at": _time(value.at),
        "after": value.after,
        "paths": [display(path) for path in value.paths],
        "who": value.who,
        "blocks": value.blocks,
    }


def barriers(values: Sequence[BarrierInfo]) -> Json:
    """What `barriers` lists, oldest first."""
    return {"barriers": [barrier(value) for value in values]}


def ticket(value: TicketInfo) -> json_types.Ticket:
    """An operation that waits for a person."""
    return {
        "id": value.id,
        "step": value.step,
        "danger": value.danger,
        "path": display(value.path),
        "message": value.message,
        "asked_at": _time(value.asked_at),
        "denied_at": _time(value.denied_at),
    }


def tickets(values: Sequence[TicketInfo]) -> Json:
    """What `safeguard list` lists, oldest first."""
    return {"held": [ticket(value) for value in values]}


def run_result(result: RunResult) -> Json:
    """What became of a run."""
    isolation = result.isolation
    return {
        "run": result.run,
        "exit_code": result.exit_code,
        "before": result.before,
        "after": result.after,
        "steps": [step(value) for value in result.steps],
        "isolation": None if isolation.level == "none" else isolation._asdict(),
        "forgotten_steps": result.forgotten,
        "unanswered": [{**ticket(value), "seconds": round(value.unanswered)} for value in result.unanswered],
        "undo_command": f"holdfast undo --run {result.run}{' --force' if result.forgotten else ''}"
        if result.standing
        else None,
    }


def _time(nanoseconds: int) -> str:
    return isoformat(nanoseconds // 1000)
