"""Removing the checkpoints that a policy does not keep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.history.ballast import freeing
from holdfast.engine.history.mount_pins import release_dead
from holdfast.engine.history.retention import Policy, Thinning, decide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context, Shared
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.config import Settings


def thin_out(context: Context) -> None:
    """Remove what the rule of the settings does not keep; nothing while the workspace's own file is not obeyed."""
    if context.misconfigured is None:
        release_dead(context)
        remove_each(context, decided(context, thinning(context.settings))[0])


def thinning(settings: Settings) -> Thinning:
    """The rule that applies by itself, as the settings have it."""
    rule = settings.retention
    return Thinning(rule.keep_all, rule.per_ten_minutes, rule.hourly, rule.daily, rule.rescue)


def decided(
    context: Context, policy: Policy | Thinning
) -> tuple[list[Checkpoint], list[tuple[Checkpoint, Sequence[str]]]]:
    """The checkpoints of the workspace that ``policy`` removes, and those that stay, with the reasons. Removes none."""
    protections = context.catalog.protections()
    protected = {checkpoint: str(reasons[0]) for checkpoint, reasons in protections.items() if reasons}
    checkpoints = context.catalog.checkpoints(context.workspace.id)
    removed: list[Checkpoint] = []
    kept: list[tuple[Checkpoint, Sequence[str]]] = []
    for decision in decide(checkpoints, policy, context.clock.now(), protected):
        if decision.keep:
            kept.append((decision.checkpoint, decision.reasons))
        else:
            removed.append(decision.checkpoint)
    return removed, kept


def remove_each(context: Shared, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Remove ``checkpoints``, each in a transaction of its own; those that were still there."""
    removed: list[Checkpoint] = []
    for checkpoint in checkpoints:
        removed += freeing(context, partial(context.store.catalog.forget, (checkpoint.id,)))
    return removed
