"""Snapshots of an export by snapshot providers, in addition to its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar.params import JSONBody

from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut
from holdfast.api.rest._request_types import ExportName, InSnapshot, NewSnapshot, SnapshotViews
from holdfast.model.answers import commands as answers
from holdfast.model.answers import faces
from holdfast.model.errors import NotFoundError
from holdfast.model.json_encoder import encode, encode_all

if TYPE_CHECKING:
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.forks.snapshots import Snapshots


def _of(call: RequestCall, name: str) -> Snapshots:
    return call.workspace(name).snapshots


@endpoint("GET", "/api/exports/{name:str}/snapshots", rights="read")
def list_snapshots(call: Call, name: ExportName) -> faces.SnapshotList:
    """Its snapshots, oldest first."""
    return cut({"snapshots": encode_all(answers.Snapshot, _of(call, name).list())}, "snapshots")


@endpoint("POST", "/api/exports/{name:str}/snapshots", rights="admin")
def take_snapshot(call: Call, name: ExportName, data: JSONBody[NewSnapshot]) -> answers.TakenSnapshot:
    """Let a snapshot provider capture the tree, outside the history."""
    done = _of(call, name).take(data.label, provider=data.provider, with_ignored=data.with_ignored)
    return encode(answers.TakenSnapshot, done.snapshot, notes=done.notes, passed_over=done.passed_over)


@endpoint("GET", "/api/exports/{name:str}/snapshots/{snapshot:str}", rights="read")
def get_snapshot(call: Call, name: ExportName, snapshot: InSnapshot) -> answers.Snapshot:
    """One snapshot, by id, prefix or label."""
    return encode(answers.Snapshot, _of(call, name).show(snapshot))


@endpoint("DELETE", "/api/exports/{name:str}/snapshots/{snapshot:str}", rights="admin")
def discard_snapshot(call: Call, name: ExportName, snapshot: InSnapshot) -> answers.DiscardedSnapshot:
    """Remove it permanently. Refused while it is mounted. Copies made from it stay."""
    try:
        return {"discarded": _of(call, name).discard(snapshot)}
    except NotFoundError as error:
        if not call.again or error.code != "no_snapshot":
            raise
        return {"discarded": snapshot}


@endpoint("POST", "/api/exports/{name:str}/snapshots/{snapshot:str}/mount", rights="admin")
def mount_snapshot(
    call: Call,
    name: ExportName,
    snapshot: InSnapshot,
    data: JSONBody[SnapshotViews],  # noqa: ARG001 - there is nothing in it
) -> answers.SnapshotView:
    """Show it in a new directory."""
    return encode(answers.SnapshotView, path=_of(call, name).mount(snapshot))


@endpoint("POST", "/api/exports/{name:str}/snapshots/{snapshot:str}/unmount", rights="admin")
def unmount_snapshot(
    call: Call,
    name: ExportName,
    snapshot: InSnapshot,
    data: JSONBody[SnapshotViews],  # noqa: ARG001 - there is nothing in it
) -> answers.UnmountedSnapshot:
    """Remove all directories that show it."""
    return encode(answers.UnmountedSnapshot, unmounted=_of(call, name).unmount(snapshot))
