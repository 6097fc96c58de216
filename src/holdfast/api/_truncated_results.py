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
    """A new checkpoint, or with ``created`` false the one that already holds this state."""

    totals: Totals


class Status(workspace.Status):
    """How the tree differs from its last checkpoint."""

    totals: Totals


class Restored(workspace.Restored):
    """The result of a restore, an undo or a redo, or its preview."""

    totals: Totals


class Reverted(workspace.ChangedTree):
    """`Restored` for clients without a command line: the command that reverses it is left out."""

    steps: list[int]
    together: list[list[int]]
    totals: Totals


class Step(steps.StepWithChanges):
    """A step with its changes, at most as many as the request allows."""

    totals: Totals


def cut(value: Mapping[str, Any], *names: str, most: int) -> Any:
    """``value`` with at most ``most`` items in each of the lists ``names``, and ``totals``: one of the objects here."""
    lists = {name: value[name] for name in names}
    return {
        **value,
        **{name: items[:most] for name, items in lists.items()},
        "totals": {name: len(items) for name, items in lists.items()},
    }
