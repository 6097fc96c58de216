"""Snapshots of an export by snapshot providers, which lie beside its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.rest._request_context import cut
from holdfast.model.answers import commands as answers
from holdfast.model.errors import NotFoundError
from holdfast.model.json_encoder import encode, encode_all

if TYPE_CHECKING:
    from holdfast.api.rest import _request_types as request_types
    from holdfast.api.rest import _response_types as response_types
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.forks.snapshots import Snapshots


def _of(call: RequestCall) -> Snapshots:
    return call.store.exports.open(call.export()).snapshots


def list_snapshots(call: RequestCall) -> response_types.SnapshotList:
    """The snapshots of an export that snapshot providers have taken, oldest first."""
    return cut({"snapshots": encode_all(answers.Snapshot, _of(call).list())}, "snapshots")


def take_snapshot(call: RequestCall) -> answers.TakenSnapshot:
    """Have a snapshot provider capture the tree's present state, beside the history of checkpoints."""
    body: request_types.NewSnapshot = call.body
    done = _of(call).take(body.label, provider=body.provider, with_ignored=body.with_ignored)
    return encode(answers.TakenSnapshot, done.snapshot, notes=done.notes, passed_over=done.passed_over)


def get_snapshot(call: RequestCall) -> answers.Snapshot:
    """One snapshot, by its id, the beginning of that, or its label."""
    return encode(answers.Snapshot, _of(call).show(call.params["snapshot"]))


def discard_snapshot(call: RequestCall) -> answers.DiscardedSnapshot:
    """Remove a snapshot, for good. Refused while it is shown. What was made from it stays."""
    try:
        return {"discarded": _of(call).discard(call.params["snapshot"])}
    except NotFoundError as error:
        if not call.again or error.code != "no_snapshot":
            raise
        return {"discarded": call.params["snapshot"]}


def mount_snapshot(call: RequestCall) -> answers.SnapshotView:
    """Show a snapshot in a directory of this machine that is made for it."""
    return encode(answers.SnapshotView, path=_of(call).mount(call.params["snapshot"]))


def unmount_snapshot(call: RequestCall) -> answers.UnmountedSnapshot:
    """Remove all directories that show a snapshot."""
    return encode(answers.UnmountedSnapshot, unmounted=_of(call).unmount(call.params["snapshot"]))
