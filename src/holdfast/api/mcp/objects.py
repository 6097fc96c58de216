"""The engine's objects as the tools answer them, with their long lists cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.api.objects import MadeCheckpoint, Restored, Step, cut
from holdfast.engine.encoding import encoding
from holdfast.engine.encoding import undo as encoding_undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.results.results import CheckpointResult, RestoreResult
    from holdfast.undo.service import ConflictInfo, PathChange, StepInfo

SHOWN: Final = 200
"""Items of a list that grows with the tree and has no pages."""


def step_object(
    value: StepInfo, changes: Sequence[PathChange] | None = None, left: Sequence[ConflictInfo] = ()
) -> Step:
    """A step, with what was ``left`` as it is; without ``changes`` only their number."""
    shown = encoding_undo.step_with_changes(value, changes or (), left[:SHOWN])
    if changes is None:
        return {**shown, "totals": {"changes": value.paths}}
    return cut(shown, "changes", most=SHOWN)


def restored_object(result: RestoreResult) -> Restored:
    """What a restore, an undo or a redo did, or would do."""
    return cut(encoding.restored(result), "written", "deleted", "skipped", "steps", most=SHOWN)


def checkpoint_object(result: CheckpointResult) -> MadeCheckpoint:
    """A checkpoint that was taken."""
    return cut(encoding.checkpoint(result), "not_captured", most=SHOWN)
