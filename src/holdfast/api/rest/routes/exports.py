"""Requests about exports: which there are, and how each is kept."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from litestar.params import JSONBody

from holdfast.api import _truncated_results as truncated_results
from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut, decode_cursor, host_path, page, set_value
from holdfast.api.rest._request_types import Cursor, ExportChange, ExportName, Limit, NewExport, OfProject
from holdfast.model.answers import faces
from holdfast.model.answers.workspace import Status
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.opening.context import Context
    from holdfast.store.catalog.export_rows import ExportRow


def export_object(call: RequestCall, row: ExportRow) -> faces.Export:
    """An export as it is answered."""
    return encode(
        faces.Export,
        row,
        path=call.store.exports.path_of(row),
        upkeep=call.server.caretaker.condition(call.tenant, row.name),
    )


@endpoint("GET", "/api/exports", rights="read")
def list_exports(call: Call, project: OfProject = "", limit: Limit = 100, cursor: Cursor = "") -> faces.ExportList:
    """The token's exports, by name."""
    rows = call.store.exports.rows.list(
        project=project or None,
        after=decode_cursor(cursor),
        limit=limit + 1,
        names=call.principal.token.exports,
    )
    part, following = page(rows, limit, lambda row: row.name)
    return {"exports": [export_object(call, row) for row in part], "next_cursor": following}


@endpoint("POST", "/api/exports", rights="admin")
def create_export(call: Call, data: JSONBody[NewExport]) -> faces.Export:
    """Serve a directory, which becomes a workspace if it is none. Nothing is written into it."""
    call.principal.require_all_exports()
    path = None if data.path is None else host_path(data.path)
    try:
        row = call.store.exports.create(
            data.name,
            path,
            roots=call.principal.token.roots,
            project=data.project,
            auto=data.auto_checkpoint,
            mode=data.mode,
        )
    except RefusedError as error:
        if not call.again or error.code not in ("export_exists", "exists"):
            raise
        row = _made_before(call, data, error)
    call.server.caretaker.reread_exports()
    return export_object(call, row)


def _made_before(call: RequestCall, body: NewExport, error: RefusedError) -> ExportRow:
    """The export that an interrupted attempt at the same request has made."""
    exports = call.store.exports
    try:
        return exports.get(body.name)
    except NotFoundError:
        if error.code != "exists":
            raise error from None
    # The attempt was killed after it made the directory and before it made the export.
    return exports.create(
        body.name,
        exports.own_directory(body.name),
        project=body.project,
        auto=body.auto_checkpoint,
        mode=body.mode,
    )


@endpoint("GET", "/api/exports/{name:str}", rights="read")
def get_export(call: Call, name: ExportName) -> faces.ExportDetails:
    """One export, with its upkeep and configuration."""
    return _details(call, call.export(name))


def _details(call: RequestCall, row: ExportRow) -> faces.ExportDetails:
    configuration = None
    # Finding a moved directory takes seconds; this request skips it, requests for files do it.
    if os.path.isdir(call.store.exports.path_of(row)):
        with suppress(NotFoundError, RefusedError):
            configuration = _configuration(call.store.exports.context(row))
    return {**export_object(call, row), "configuration": configuration}


def _configuration(context: Context) -> faces.Configuration:
    problem = None if context.misconfigured is None else context.misconfigured.message
    return encode(faces.Configuration, context.settings, problem=problem)


@endpoint("PUT", "/api/exports/{name:str}", rights="admin")
def configure_export(call: Call, name: ExportName, data: JSONBody[ExportChange]) -> faces.ExportDetails:
    """Change only the given properties: directory, automatic checkpoints, mode, project."""
    path = set_value(data.path)
    if path is not None:
        call.principal.require_all_exports()
    row = call.store.exports.configure(
        call.export(name).name,
        path=None if path is None else host_path(path),
        roots=call.principal.token.roots,
        project=set_value(data.project),
        auto=set_value(data.auto_checkpoint),
        mode=set_value(data.mode),
    )
    call.server.caretaker.reread_exports()
    return _details(call, row)


@endpoint("DELETE", "/api/exports/{name:str}", rights="admin")
def delete_export(call: Call, name: ExportName) -> faces.Deleted:
    """Serve it no more. Its directory and checkpoints stay."""
    call.principal.check_export(name)
    try:
        call.store.exports.remove(name)
    except NotFoundError:
        if not call.again:
            raise
    call.server.caretaker.reread_exports()
    return {"deleted": name}


@endpoint("GET", "/api/exports/{name:str}/status", rights="read")
def get_status(call: Call, name: ExportName) -> truncated_results.Status:
    """How the tree differs from its checkpoint `@`."""
    workspace = call.workspace(name)
    return cut(encode(Status, workspace.status()), "added", "modified", "deleted", "not_captured")
