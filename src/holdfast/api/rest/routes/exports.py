"""Requests about exports: which there are, and how each is kept."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest._request_context import cut, decode_cursor, host_path, page, set_value
from holdfast.model.answers.workspace import Status
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.json_encoder import encode

if TYPE_CHECKING:
    from holdfast.api.rest import _request_types as request_types
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.opening.context import Context
    from holdfast.store.catalog.export_rows import ExportRow


def export_object(call: RequestCall, row: ExportRow) -> response_types.Export:
    """An export as it is answered."""
    return encode(
        response_types.Export,
        row,
        path=call.store.exports.path_of(row),
        upkeep=call.world.condition(call.tenant, row.name),
    )


def list_exports(call: RequestCall) -> response_types.ExportList:
    """The exports that the token is for, by name."""
    query: request_types.ExportsPage = call.query
    rows = call.store.exports.rows.list(
        project=query.project or None,
        after=decode_cursor(query.cursor),
        limit=query.limit + 1,
        names=call.principal.token.exports,
    )
    part, following = page(rows, query, lambda row: row.name)
    return {"exports": [export_object(call, row) for row in part], "next_cursor": following}


def create_export(call: RequestCall) -> response_types.Export:
    """Serve a directory. It becomes a workspace if it is none; nothing is written into it."""
    body: request_types.NewExport = call.body
    call.principal.require_all_exports()
    path = None if body.path is None else host_path(body.path)
    try:
        row = call.store.exports.create(
            body.name,
            path,
            roots=call.principal.token.roots,
            project=body.project,
            auto=body.auto_checkpoint,
            mode=body.mode,
        )
    except RefusedError as error:
        if not call.again or error.code not in ("export_exists", "exists"):
            raise
        row = _made_before(call, body, error)
    call.world.look()
    return export_object(call, row)


def _made_before(call: RequestCall, body: request_types.NewExport, error: RefusedError) -> ExportRow:
    """What an attempt that was cut short has made of the same request."""
    exports = call.store.exports
    try:
        return exports.get(body.name)
    except NotFoundError:
        if error.code != "exists":
            raise error from None
    # (Its directory was made, and it was killed before there was an export.)
    return exports.create(
        body.name,
        exports.own_directory(body.name),
        project=body.project,
        auto=body.auto_checkpoint,
        mode=body.mode,
    )


def get_export(call: RequestCall) -> response_types.ExportDetails:
    """One export, how its upkeep goes, and how it is configured."""
    return _details(call, call.export())


def _details(call: RequestCall, row: ExportRow) -> response_types.ExportDetails:
    configuration = None
    # (To look where one may have been moved takes seconds; a request for its files does.)
    if os.path.isdir(call.store.exports.path_of(row)):
        with suppress(NotFoundError, RefusedError):
            configuration = _configuration(call.store.exports.context(row))
    return {**export_object(call, row), "configuration": configuration}


def _configuration(context: Context) -> response_types.Configuration:
    problem = None if context.misconfigured is None else context.misconfigured.message
    return encode(response_types.Configuration, context.settings, problem=problem)


def configure_export(call: RequestCall) -> response_types.ExportDetails:
    """Change what is given: the directory that it serves, whether it is saved by itself, its mode, its project."""
    body: request_types.ExportChange = call.body
    path = set_value(body.path)
    if path is not None:
        call.principal.require_all_exports()
    row = call.store.exports.configure(
        call.export().name,
        path=None if path is None else host_path(path),
        roots=call.principal.token.roots,
        project=set_value(body.project),
        auto=set_value(body.auto_checkpoint),
        mode=set_value(body.mode),
    )
    call.world.look()
    return _details(call, row)


def delete_export(call: RequestCall) -> response_types.Deleted:
    """Serve it no more. Its directory and all its checkpoints stay."""
    name = call.principal.check_export(call.params["name"])
    try:
        call.store.exports.remove(name)
    except NotFoundError:
        if not call.again:
            raise
    call.world.look()
    return {"deleted": name}


def get_status(call: RequestCall) -> Any:
    """How the tree differs from the checkpoint that it stands on."""
    workspace = call.store.exports.open(call.export())
    return cut(encode(Status, workspace.status()), "added", "modified", "deleted", "not_captured")
