"""The engine's objects as the faces answer them: a list that may grow with the tree is cut.

``totals`` then says how long each of them really is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.model.answers import steps, workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

Totals = dict[str, int]


class MadeCheckpoint(workspace.MadeCheckpoint):
    """A checkpoint that was taken, or (``created`` is false) the one that holds this state already."""

    totals: Totals


class Status(workspace.Status):
    """How the tree differs from its last checkpoint."""

    totals: Totals


class Restored(workspace.Restored):
    """What a restore, an undo or a redo did, or would do."""

    totals: Totals


class Reverted(workspace.ChangedTree):
    """The same for clients that have no command line: without the command that takes it back."""

    steps: list[int]
    together: list[list[int]]
    totals: Totals


class Step(steps.StepWithChanges):
    """One step, with what it did to at most so many paths as were asked for."""

    totals: Totals


def cut(value: Mapping[str, Any], *names: str, most: int) -> Any:
    """``value`` with at most ``most`` items in each of the lists ``names``, and ``totals``: one of the objects here."""
    lists = {name: value[name] for name in names}
    return {
        **value,
        **{name: items[:most] for name, items in lists.items()},
        "totals": {name: len(items) for name, items in lists.items()},
    }
