"""Merges that are only planned, and changes that wait for a person's answer."""

from __future__ import annotations

from typing import Any

from litestar.params import JSONBody
from msgspec import UNSET

from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut
from holdfast.api.rest._request_types import AnswerReapply, ExportName, InReapply, Limit, Merge, TakeReapply
from holdfast.api.rest.routes.checkpoints import require_reachable
from holdfast.engine.merging import stacked_plan
from holdfast.engine.merging.reapply.resolver import foresee, ladder_of
from holdfast.model.answers import faces
from holdfast.model.clock import isoformat
from holdfast.model.json_encoder import encode


@endpoint("POST", "/api/merge", rights="read", changes=False)
def merge(call: Call, data: JSONBody[Merge]) -> faces.Merged:
    """Preview the merge of a line of work into production."""
    production, row = require_reachable(call, data.production_checkpoint)
    promoted, _ = require_reachable(call, data.promote_checkpoint)
    since = None if data.fork_checkpoint is None else [require_reachable(call, data.fork_checkpoint)[0].id]
    context = call.store.exports.context(row)
    plan = stacked_plan.plan(context, promoted.id, production.id, since=since)
    lists = ("writes", "deletes", "uncaptured", "overlapping_files")
    overlapping = [
        encode(faces.Overlap, one, foreseen=foresee(context, plan, one, ladder_of(context))) for one in plan.overlapping
    ]
    return cut(encode(faces.Merged, plan, overlapping_files=overlapping, totals={}), *lists)


# Changes that wait to be applied anew, for agents that ask for them: what both production and a fork have changed.


@endpoint("GET", "/api/exports/{name:str}/reapplies", rights="write")
def list_reapplies(call: Call, name: ExportName, limit: Limit = 100) -> faces.ReapplyList:
    """The changes that wait for an agent, oldest first."""
    found = call.workspace(name).waiting_reapplies(limit=limit)
    return {
        "reapplies": [
            {"id": one["id"], "path": one["path"], "held": one["held"], "deadline": isoformat(one["deadline"])}
            for one in found
        ]
    }


@endpoint("POST", "/api/exports/{name:str}/reapplies/take", rights="write")
def take_reapply(
    call: Call,
    name: ExportName,
    data: JSONBody[TakeReapply],  # noqa: ARG001 - there is nothing in it
) -> faces.TakenReapply:
    """Take the change that waits longest, for `merge.lease`."""
    found = call.workspace(name).next_reapply()
    if found is None:
        return {"change": None}
    times = {field: isoformat(found[field]) for field in ("held_until", "deadline")}
    return {"change": {**found, **times}}


@endpoint("POST", "/api/exports/{name:str}/reapplies/{reapply:str}/answer", rights="write")
def answer_reapply(
    call: Call, name: ExportName, reapply: InReapply, data: JSONBody[AnswerReapply]
) -> faces.AnsweredReapply:
    """Answer a taken change, for the next promotion or merge of the same fork."""
    chosen = {
        "content": data.content,
        "content_base64": data.content_base64,
        "delete": data.delete,
        "decline": data.decline,
    }
    given: dict[str, Any] = {field: value for field, value in chosen.items() if value is not UNSET}
    workspace = call.workspace(name)
    status: Any = workspace.answer_reapply(reapply, data.token, {"version": data.version, "said": data.said, **given})
    return {"id": reapply, "status": status}
