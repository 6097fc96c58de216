"""Requests about checkpoints: taking them, listing them, looking into them, deleting them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from litestar.params import JSONBody

from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import MOST_SHOWN, RawAnswer, cut, decode_cursor, page, path_of
from holdfast.api.rest._request_types import (
    Below,
    Cursor,
    DiffAfter,
    DiffBefore,
    ExportName,
    FilePath,
    InCheckpoint,
    Limit,
    NewCheckpoint,
    NewProjectCheckpoint,
    ProjectName,
    WithContent,
)
from holdfast.engine.diffs.patch_text import to_json
from holdfast.model.answers import faces
from holdfast.model.answers.workspace import Diff, Paths
from holdfast.model.errors import NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId, format_hash
from holdfast.model.json_encoder import encode
from holdfast.model.paths import display, under

if TYPE_CHECKING:
    from holdfast.api.rest._request_context import RequestCall
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


@endpoint("POST", "/api/exports/{name:str}/checkpoint", rights="write")
def create_checkpoint(call: Call, name: ExportName, data: JSONBody[NewCheckpoint]) -> faces.Taken:
    """Save the tree. ``created`` is false if nothing has changed."""
    return _take(call, call.export(name), data)


@endpoint("POST", "/api/projects/{project:str}/checkpoints", rights="write")
def create_project_checkpoint(call: Call, project: ProjectName, data: JSONBody[NewProjectCheckpoint]) -> faces.Taken:
    """Save one of a project's exports."""
    rows = _exports_of(call, project)
    chosen = [row for row in rows if data.export in (None, row.name)]
    if not chosen:
        raise NotFoundError(f"the project has no export {data.export}", code="no_export")
    if len(chosen) > 1:
        raise UsageError(f"the project {project} has {len(chosen)} exports", hint="name one: `export`", code="several")
    return _take(call, chosen[0], data)


def _take(call: RequestCall, row: ExportRow, data: NewCheckpoint) -> faces.Taken:
    workspace = call.store.exports.open(row)
    refuse_misconfigured(workspace.misconfigured)
    result = workspace.checkpoint(
        data.label,
        message=data.message,
        author=data.author or call.principal.token.label or None,
        full_hash=data.full_hash,
        progress=call.progress(row.name, "checkpoint"),
    )
    call.server.saved(call.tenant, row.name, result)
    return taken_object(result)


def save_export(call: RequestCall, row: ExportRow) -> CheckpointId:
    """The checkpoint of an export's present state; unsaved changes are saved first, as an automatic checkpoint."""
    workspace = call.store.exports.open(row)
    refuse_misconfigured(workspace.misconfigured)
    result = workspace.checkpoint(kind="auto")
    call.server.saved(call.tenant, row.name, result)
    return result.checkpoint.id


def refuse_misconfigured(wrong: ConfigError | None) -> None:
    """Raise the error in an export's own configuration file, for operations that save by it."""
    if wrong is not None:
        raise wrong


def taken_object(result: CheckpointResult) -> faces.Taken:
    """The result of taking a checkpoint."""
    return encode(faces.Taken, result, snapshot_id=None, not_captured=result.not_captured[:MOST_SHOWN], stats=result)


# -- listing -----------------------------------------------------------------------------------------------------


def checkpoint_object(checkpoint: Checkpoint, export: str) -> faces.Checkpoint:
    """A checkpoint as it is answered."""
    return encode(faces.Checkpoint, checkpoint, export=export)


@endpoint("GET", "/api/exports/{name:str}/checkpoints", rights="read")
def list_checkpoints(call: Call, name: ExportName, limit: Limit = 100, cursor: Cursor = "") -> faces.CheckpointList:
    """Its checkpoints, newest first."""
    row, before = call.export(name), _before(call, cursor)
    found = call.store.opener.store().catalog.checkpoints(row.workspace, limit=limit + 1, before=before)
    part, following = page(found, limit, lambda checkpoint: checkpoint.id)
    return {"checkpoints": [checkpoint_object(one, row.name) for one in part], "next_cursor": following}


@endpoint("GET", "/api/projects/{project:str}/checkpoints", rights="read")
def list_project_checkpoints(
    call: Call, project: ProjectName, limit: Limit = 100, cursor: Cursor = ""
) -> faces.CheckpointList:
    """The checkpoints of all its exports, newest first."""
    rows = {row.workspace: row.name for row in _exports_of(call, project)}
    catalog = call.store.opener.store().catalog
    found = catalog.checkpoints_of(list(rows), limit=limit + 1, before=_before(call, cursor))
    part, following = page(found, limit, lambda checkpoint: checkpoint.id)
    return {"checkpoints": [checkpoint_object(one, rows[one.workspace]) for one in part], "next_cursor": following}


def _exports_of(call: RequestCall, project: str) -> list[ExportRow]:
    found = call.store.exports.rows.list(project=project, names=call.principal.token.exports) if project else []
    if not found:
        raise NotFoundError(f"there is no project {project}", hint="exports name their project", code="no_project")
    return found


def _before(call: RequestCall, cursor: str) -> CheckpointId | None:
    after = decode_cursor(cursor)
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
    """A checkpoint by its id, if it is of an export that the token includes. A missing checkpoint and another tenant's
    raise the same `NotFoundError` (I10).
    """
    found, row = call.store.exports.of_checkpoint(CheckpointId(name))
    if not call.principal.may_see(row.name):
        raise NotFoundError(f"there is no checkpoint {name}", code="no_checkpoint")
    return found, row


def _opened(call: RequestCall, name: str) -> tuple[Checkpoint, ExportRow, Workspace]:
    found, row = require_reachable(call, name)
    return found, row, call.store.exports.open(row)


@endpoint("GET", "/api/checkpoints/{id:str}", rights="read")
def get_checkpoint(call: Call, checkpoint: InCheckpoint) -> faces.CheckpointDetails:
    """One checkpoint with its changes."""
    found, row, workspace = _opened(call, checkpoint)
    details = workspace.show(found.id)
    paths = cut(encode(Paths, details), "added", "modified", "deleted")
    missed = len(details.not_captured)
    return encode(
        faces.CheckpointDetails,
        found,
        export=row.name,
        paths={name: paths[name] for name in ("added", "modified", "deleted")},
        not_captured_paths=details.not_captured[:MOST_SHOWN],
        totals={**paths["totals"], "not_captured_paths": missed},
    )


@endpoint("DELETE", "/api/checkpoints/{id:str}", rights="admin")
def delete_checkpoint(call: Call, checkpoint: InCheckpoint) -> faces.Deleted:
    """Forget it. Refused while a workspace, fork, session or mount depends on it."""
    try:
        found, row, workspace = _opened(call, checkpoint)
    except NotFoundError as error:
        if call.again and error.code == "no_checkpoint":
            return {"deleted": checkpoint}
        raise
    workspace.forget([found.id])
    call.happened(row.name, "forgotten", checkpoint=found.id)
    return {"deleted": found.id}


@endpoint("GET", "/api/checkpoints/{id:str}/files", rights="read")
def list_files(
    call: Call, checkpoint: InCheckpoint, path: Below = "", limit: Limit = 100, cursor: Cursor = ""
) -> faces.FileList:
    """Its files, by path."""
    from holdfast.store.manifests import manifest

    found, _ = require_reachable(call, checkpoint)
    prefix, after = path_of(path).rstrip(b"/"), path_of(decode_cursor(cursor))
    pages = call.store.opener.store().pages
    entries = manifest.iterate(pages, found.root, prefix, after=after)
    part = list(islice(entries, limit + 1))
    shown_part, following = page(part, limit, lambda item: display(item[0]))
    return {
        "files": [encode(faces.File, entry, path=one) for one, entry in shown_part],
        "next_cursor": following,
    }


@endpoint("GET", "/api/checkpoints/{id:str}/file", rights="read", media_type="application/octet-stream")
def get_file(call: Call, checkpoint: InCheckpoint, path: FilePath) -> RawAnswer:
    """The verified content of a file, or target of a symbolic link."""
    from holdfast.store.manifests import manifest

    found, row = require_reachable(call, checkpoint)
    wanted = path_of(path)
    entry = manifest.get(call.store.opener.store().pages, found.root, wanted)
    if entry is None:
        raise NotFoundError(f"{display(wanted)} is no file in {found.id[:12]}", code="no_such_path")
    pieces = call.store.exports.open(row).cat(found.id, wanted)
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": "attachment",
        "etag": f'"{format_hash(entry.hash)}"',
        "x-holdfast-mode": faces.file_mode(entry),
    }
    return RawAnswer(pieces, entry.size, headers)


@endpoint("GET", "/api/checkpoints/{a:str}/diff/{b:str}", rights="read")
def diff_checkpoints(
    call: Call, before: DiffBefore, after: DiffAfter, path: Below = "", content: WithContent = True
) -> Diff:
    """How `b` differs from `a`, with the text of differing files."""
    base, _, workspace = _opened(call, before)
    target, _ = require_reachable(call, after)
    below = path_of(path).rstrip(b"/")
    found = workspace.diff(base.id, target.id)
    if below:
        found = found._replace(
            changes=[change for change in found.changes if under(change.path, below)],
            renamed=[one for one in found.renamed if under(one.path, below) or under(one.before_path, below)],
        )
    sides = [entry for one in (*found.changes, *found.renamed) for entry in (one.before, one.after) if entry]
    files = len(found.changes) + len(found.renamed)
    if files > MOST_DIFFERENT or (content and sum(entry.size for entry in sides) > MOST_DIFFERENT_BYTES):
        raise RefusedError(
            f"too much differs to be shown at once: {files} files",
            hint="`path` shows a part; `content=false` which files differ, if they are at most "
            f"{MOST_DIFFERENT}; GET …/files lists both sides",
            code="too_much",
        )
    return workspace.diff_json(found) if content else to_json(found, None)
