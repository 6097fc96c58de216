"""Merges that are only planned. All that REST knows of how lines of work are merged is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.rest.calls import cut
from holdfast.api.rest.checkpoints import context_of, reached
from holdfast.engine.merging import stacked
from holdfast.engine.merging.reapply.building import ladder_of
from holdfast.engine.merging.reapply.foreseeing import foresee

if TYPE_CHECKING:
    from holdfast.api.rest import answers, requests
    from holdfast.api.rest.calls import Call


def dry_run(call: Call) -> answers.Merged:
    """What would become of production if a line of work were merged into it. Changes nothing."""
    body: requests.Merge = call.body
    production, row = reached(call, body.production_checkpoint)
    promoted, _ = reached(call, body.promote_checkpoint)
    since = None if body.fork_checkpoint is None else [reached(call, body.fork_checkpoint)[0].id]
    context = context_of(call, row)
    plan = stacked.plan(context, promoted.id, production.id, since=since)
    lists = ("writes", "deletes", "uncaptured", "overlapping_files")
    found = cut({"overlapping_files": [], **stacked.to_json(plan)}, *lists)
    for one, overlap in zip(found["overlapping_files"], plan.overlapping, strict=False):
        one["foreseen"] = foresee(context, plan, overlap, ladder_of(context)).to_json()
    return found
