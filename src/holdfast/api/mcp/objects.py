"""The engine's JSON objects, with their long lists cut: what `results` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.mcp.text import cut
from holdfast.engine import encoding, encoding_undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.checkpoint import CheckpointResult
    from holdfast.engine.encoding import Json
    from holdfast.engine.results import RestoreResult
    from holdfast.undo.service import PathChange, StepInfo


def step_object(value: StepInfo, changes: Sequence[PathChange] | None = None) -> Json:
    """A step; without ``changes`` only their number."""
    if changes is None:
        return {**encoding_undo.step(value), "changes": [], "totals": {"changes": value.paths}}
    return cut(encoding_undo.step_with_changes(value, changes), "changes")


def restored_object(result: RestoreResult) -> Json:
    """What a restore, an undo or a redo did, or would do."""
    return cut(encoding.restored(result), "written", "deleted", "skipped", "steps")


def checkpoint_object(result: CheckpointResult) -> Json:
    """A checkpoint that was taken."""
    return cut(encoding.checkpoint(result), "not_captured")
