"""Merges that are only planned, and changes that wait for a person's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest._request_context import cut
from holdfast.api.rest.routes.checkpoints import context_of, require_reachable
from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.reapply.resolver import foresee, ladder_of
from holdfast.model.clock import isoformat
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from holdfast.api.rest import _request_types as request_types
    from holdfast.api.rest._request_context import RequestCall


def dry_run(call: RequestCall) -> response_types.Merged:
    """What would become of production if a line of work were merged into it. Changes nothing."""
    body: request_types.Merge = call.body
    production, row = require_reachable(call, body.production_checkpoint)
    promoted, _ = require_reachable(call, body.promote_checkpoint)
    since = None if body.fork_checkpoint is None else [require_reachable(call, body.fork_checkpoint)[0].id]
    context = context_of(call, row)
    plan = stacked_plan.plan(context, promoted.id, production.id, since=since)
    lists = ("writes", "deletes", "uncaptured", "overlapping_files")
    overlapping = [
        encode(response_types.Overlap, one, foreseen=foresee(context, plan, one, ladder_of(context)))
        for one in plan.overlapping
    ]
    return cut(encode(response_types.Merged, plan, overlapping_files=overlapping, totals={}), *lists)


# Changes that wait to be applied anew, for agents that ask for them: what both production and a fork have changed.


def list_reapplies(call: RequestCall) -> response_types.ReapplyList:
    """The changes that wait to be applied anew, of merges and promotions to this export, the oldest first."""
    query: request_types.ReappliesQuery = call.query
    found = call.store.exports.open(call.export()).waiting_reapplies(limit=query.limit)
    return {
        "reapplies": [
            {"id": one["id"], "path": one["path"], "held": one["held"], "deadline": isoformat(one["deadline"])}
            for one in found
        ]
    }


def take_reapply(call: RequestCall) -> response_types.TakenReapply:
    """Take the change that waits longest: it is the caller's for `merge.lease`, and then somebody else's."""
    found = call.store.exports.open(call.export()).next_reapply()
    if found is None:
        return {"change": None}
    times = {name: isoformat(found[name]) for name in ("held_until", "deadline")}
    return {"change": {**found, **times}}


def answer_reapply(call: RequestCall) -> response_types.AnsweredReapply:
    """Answer a change that was taken. Nothing is written: the next promotion or merge of the same fork uses it."""
    body: request_types.AnswerReapply = call.body
    name = call.params["reapply"]
    chosen = {
        "content": body.content,
        "content_base64": body.content_base64,
        "delete": body.delete,
        "decline": body.decline,
    }
    given: dict[str, Any] = {field: value for field, value in chosen.items() if value is not UNSET}
    workspace = call.store.exports.open(call.export())
    status: Any = workspace.answer_reapply(name, body.token, {"version": body.version, "said": body.said, **given})
    return {"id": name, "status": status}
