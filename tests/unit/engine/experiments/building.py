"""Attempts and outcomes, made of what a test is about."""

from __future__ import annotations

from holdfast.engine.experiments.attempts import Attempt, Outcome, Phase
from holdfast.model.ids import CheckpointId
from holdfast.model.session_types import CommandResult, SessionId


def outcome(
    number: int,
    code: int | None = 0,
    *,
    ms: int = 10,
    stdout: str = "",
    stderr: str = "",
    truncated: bool = False,
    phase: Phase | None = None,
    score: float | None = None,
    after: str | None = None,
) -> Outcome:
    """One that ended with ``code``, or with None never ran."""
    result = None if code is None else CommandResult(exit_code=code, stdout=stdout, stderr=stderr, truncated=truncated)
    return Outcome(
        attempt=Attempt(number, f"n{number}", f"command {number}"),
        phase=phase or ("done" if code == 0 else "failed"),
        fork=SessionId(f"fork-{number}"),
        root=b"/nowhere",
        result=result,
        duration_ms=ms,
        before=CheckpointId("0" * 24),
        after=None if after is None else CheckpointId(after),
        score=score,
    )
