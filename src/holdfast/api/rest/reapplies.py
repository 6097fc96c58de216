"""Changes that wait to be applied anew, for agents that ask for them: what both production and a fork have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from holdfast.model.clock import isoformat

if TYPE_CHECKING:
    from holdfast.api.rest import answers, requests
    from holdfast.api.rest.calls import Call


def list_reapplies(call: Call) -> answers.ReapplyList:
    """The changes that wait to be applied anew, of merges and promotions to this export, the oldest first."""
    query: requests.ReappliesQuery = call.query
    found = call.door.exports.open(call.export()).waiting_reapplies(limit=query.limit)
    return {
        "reapplies": [
            {"id": one["id"], "path": one["path"], "held": one["held"], "deadline": isoformat(one["deadline"])}
            for one in found
        ]
    }


def take_reapply(call: Call) -> answers.TakenReapply:
    """Take the change that waits longest: it is the caller's for `merge.lease`, and then somebody else's."""
    found = call.door.exports.open(call.export()).next_reapply()
    if found is None:
        return {"change": None}
    times = {name: isoformat(found[name]) for name in ("held_until", "deadline")}
    return {"change": {**found, **times}}


def answer_reapply(call: Call) -> answers.AnsweredReapply:
    """Answer a change that was taken. Nothing is written: the next promotion or merge of the same fork uses it."""
    body: requests.AnswerReapply = call.body
    name = call.params["reapply"]
    chosen = {
        "content": body.content,
        "content_base64": body.content_base64,
        "delete": body.delete,
        "decline": body.decline,
    }
    given: dict[str, Any] = {field: value for field, value in chosen.items() if value is not UNSET}
    workspace = call.door.exports.open(call.export())
    status: Any = workspace.answer_reapply(name, body.token, {"version": body.version, "said": body.said, **given})
    return {"id": name, "status": status}
