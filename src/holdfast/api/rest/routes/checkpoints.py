"""Requests about checkpoints: taking them, listing them, looking into them, deleting them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest._request_context import MOST_SHOWN, RawAnswer, cut, decode_cursor, page, path_of
from holdfast.engine.diffs.patch_text import to_json
from holdfast.model.answers.workspace import Paths
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId, format_hash
from holdfast.model.json_encoder import encode
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from holdfast.api.rest import _request_types as request_types
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.opening.context import Context
    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import CheckpointResult
    from holdfast.model.errors import ConfigError
    from holdfast.store.catalog.export_rows import ExportRow

MOST_DIFFERENT = 10_000
"""Files whose text a diff shows."""
MOST_DIFFERENT_BYTES = 64 << 20
"""How large they may be together, before and after."""


# -- taking ------------------------------------------------------------------------------------------------------


def create_checkpoint(call: RequestCall) -> response_types.Taken:
    """Save the tree's present state. If nothing has changed there is no new checkpoint, and ``created`` is false."""
    return _take(call, call.export())


def create_project_checkpoint(call: RequestCall) -> response_types.Taken:
    """Save the present state of one of a project's exports."""
    body: request_types.NewProjectCheckpoint = call.body
    rows = _exports_of(call, call.params["project"])
    chosen = [row for row in rows if body.export in (None, row.name)]
    if not chosen:
        raise NotFoundError(f"the project has no export {body.export}", code="no_export")
    if len(chosen) > 1:
        raise UsageError(
            f"the project {call.params['project']} has {len(chosen)} exports", hint="name one: `export`", code="several"
        )
    return _take(call, chosen[0])


def _take(call: RequestCall, row: ExportRow) -> response_types.Taken:
    body: request_types.NewCheckpoint = call.body
    workspace = call.store.exports.open(row)
    refuse_misconfigured(workspace.misconfigured)
    result = workspace.checkpoint(
        body.label,
        message=body.message,
        author=body.author or call.principal.token.label or None,
        full_hash=body.full_hash,
        progress=call.progress(row.name, "checkpoint"),
    )
    call.world.saved(call.tenant, row.name, result)
    return taken_object(result)


def save_export(call: RequestCall, row: ExportRow) -> CheckpointId:
    """The checkpoint of an export's present state: what is unsaved is saved, as by itself."""
    workspace = call.store.exports.open(row)
    refuse_misconfigured(workspace.misconfigured)
    result = workspace.checkpoint(kind="auto")
    call.world.saved(call.tenant, row.name, result)
    return result.checkpoint.id


def refuse_misconfigured(wrong: ConfigError | None) -> None:
    """Raise what is wrong with an export's own file, for what saves by it."""
    if wrong is not None:
        raise wrong


def taken_object(result: CheckpointResult) -> response_types.Taken:
    """What taking a checkpoint came to."""
    return encode(
        response_types.Taken, result, snapshot_id=None, not_captured=result.not_captured[:MOST_SHOWN], stats=result
    )


# -- listing -----------------------------------------------------------------------------------------------------


def checkpoint_object(checkpoint: Checkpoint, export: str) -> response_types.Checkpoint:
    """A checkpoint as it is answered."""
    return encode(response_types.Checkpoint, checkpoint, export=export)


def list_checkpoints(call: RequestCall) -> response_types.CheckpointList:
    """The checkpoints of an export, newest first."""
    row, query = call.export(), call.query
    before = _before(call, query)
    found = call.store.opener.store().catalog.checkpoints(row.workspace, limit=query.limit + 1, before=before)
    part, following = page(found, query, lambda checkpoint: checkpoint.id)
    return {"checkpoints": [checkpoint_object(one, row.name) for one in part], "next_cursor": following}


def list_project_checkpoints(call: RequestCall) -> response_types.CheckpointList:
    """The checkpoints of all exports of a project, newest first."""
    query = call.query
    rows = {row.workspace: row.name for row in _exports_of(call, call.params["project"])}
    catalog = call.store.opener.store().catalog
    before = _before(call, query)
    found = catalog.checkpoints_of(list(rows), limit=query.limit + 1, before=before)
    part, following = page(found, query, lambda checkpoint: checkpoint.id)
    return {"checkpoints": [checkpoint_object(one, rows[one.workspace]) for one in part], "next_cursor": following}


def _exports_of(call: RequestCall, project: str) -> list[ExportRow]:
    found = call.store.exports.rows.list(project=project, names=call.principal.token.exports) if project else []
    if not found:
        raise NotFoundError(f"there is no project {project}", hint="exports name their project", code="no_project")
    return found


def _before(call: RequestCall, query: request_types.Page) -> CheckpointId | None:
    after = decode_cursor(query.cursor)
    if not after:
        return None
    try:
        return require_reachable(call, after)[0].id
    except NotFoundError:
        raise UsageError(
            "the list cannot be gone on with: the checkpoint that it was left at was deleted",
            hint="begin anew, without a cursor",
            code="stale_cursor",
        ) from None


# -- one ---------------------------------------------------------------------------------------------------------


def require_reachable(call: RequestCall, name: str) -> tuple[Checkpoint, ExportRow]:
    """A checkpoint by its id, if it is of an export that the token is for; raises `NotFoundError`, in the same words,
    for what is not there and for what is another tenant's (I10).
    """
    found, row = call.store.exports.of_checkpoint(CheckpointId(name))
    if not call.principal.may_see(row.name):
        raise NotFoundError(f"there is no checkpoint {name}", code="no_checkpoint")
    return found, row


def _opened(call: RequestCall, name: str) -> tuple[Checkpoint, ExportRow, Workspace]:
    found, row = require_reachable(call, name)
    return found, row, call.store.exports.open(row)


def get_checkpoint(call: RequestCall) -> response_types.CheckpointDetails:
    """One checkpoint, and what it changed."""
    found, row, workspace = _opened(call, call.params["id"])
    details = workspace.show(found.id)
    paths = cut(encode(Paths, details), "added", "modified", "deleted")
    missed = len(details.not_captured)
    return encode(
        response_types.CheckpointDetails,
        found,
        export=row.name,
        paths={name: paths[name] for name in ("added", "modified", "deleted")},
        not_captured_paths=details.not_captured[:MOST_SHOWN],
        totals={**paths["totals"], "not_captured_paths": missed},
    )


def delete_checkpoint(call: RequestCall) -> response_types.Deleted:
    """Forget a checkpoint. Refused for one that something stands on."""
    name = call.params["id"]
    try:
        found, row, workspace = _opened(call, name)
    except NotFoundError as error:
        if call.again and error.code == "no_checkpoint":
            return {"deleted": name}
        raise
    workspace.forget([found.id])
    call.happened(row.name, "forgotten", checkpoint=found.id)
    return {"deleted": found.id}


def list_files(call: RequestCall) -> response_types.FileList:
    """The files of a checkpoint, by path."""
    from holdfast.store.manifests import manifest

    query: request_types.FilesPage = call.query
    found, _ = require_reachable(call, call.params["id"])
    prefix, after = path_of(query.path).rstrip(b"/"), path_of(decode_cursor(query.cursor))
    pages = call.store.opener.store().pages
    entries = manifest.iterate(pages, found.root, prefix, after=after)
    part = list(islice(entries, query.limit + 1))
    shown_part, following = page(part, query, lambda item: display(item[0]))
    return {
        "files": [encode(response_types.File, entry, path=path) for path, entry in shown_part],
        "next_cursor": following,
    }


def get_file(call: RequestCall) -> RawAnswer:
    """The content of a file in a checkpoint (of a symbolic link: its target), verified."""
    from holdfast.store.manifests import manifest

    query: request_types.FileQuery = call.query
    found, row = require_reachable(call, call.params["id"])
    path = path_of(query.path)
    entry = manifest.get(call.store.opener.store().pages, found.root, path)
    if entry is None:
        raise NotFoundError(f"{display(path)} is no file in {found.id[:12]}", code="no_such_path")
    pieces = call.store.exports.open(row).cat(found.id, path)
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": "attachment",
        "etag": f'"{format_hash(entry.hash)}"',
        "x-holdfast-mode": response_types.file_mode(entry),
    }
    return RawAnswer(pieces, entry.size, headers)


def diff_checkpoints(call: RequestCall) -> Any:
    """How the second checkpoint differs from the first, with the text of each file that differs."""
    query: request_types.DiffQuery = call.query
    base, _, workspace = _opened(call, call.params["a"])
    target, _ = require_reachable(call, call.params["b"])
    path = path_of(query.path).rstrip(b"/")
    found = workspace.diff(base.id, target.id)
    if path:
        found = found._replace(
            changes=[change for change in found.changes if under(change.path, path)],
            renamed=[one for one in found.renamed if under(one.path, path) or under(one.before_path, path)],
        )
    sides = [entry for one in (*found.changes, *found.renamed) for entry in (one.before, one.after) if entry]
    files = len(found.changes) + len(found.renamed)
    if files > MOST_DIFFERENT or (query.content and sum(entry.size for entry in sides) > MOST_DIFFERENT_BYTES):
        raise RefusedError(
            f"too much differs to be shown at once: {files} files",
            hint="`path` shows a part; `content=false` which files differ, if they are at most "
            f"{MOST_DIFFERENT}; GET …/files lists both sides",
            code="too_much",
        )
    return workspace.diff_json(found) if query.content else to_json(found, None)


def context_of(call: RequestCall, row: ExportRow) -> Context:
    """What the use-cases of the engine work with."""
    return call.store.exports.context(row)
