"""Requests that change an export's tree, or write one out as another export: each of them can be undone (I6)."""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Any

from litestar.params import JSONBody

from holdfast.api import _truncated_results as truncated_results
from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut, host_path, path_of
from holdfast.api.rest._request_types import ExportName, FileWrite, Fork, Recover, Restore, Steps, WriteFiles
from holdfast.api.rest.routes.checkpoints import refuse_misconfigured, require_reachable, save_export
from holdfast.api.rest.routes.exports import export_object
from holdfast.engine.history.revisions import resolve_name_for_restore
from holdfast.engine.merging.write_plan import PlannedWrite, carry_out
from holdfast.engine.opening.opener import WORKSPACE_FILE
from holdfast.engine.workspace.workspace import Workspace
from holdfast.model.answers import faces
from holdfast.model.answers.workspace import Restored
from holdfast.model.checkpoint import Provenance
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import Hash
from holdfast.model.json_encoder import encode
from holdfast.model.paths import check_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.rest._request_context import RequestCall
    from holdfast.model.command_results import ForkResult, RestoreResult
    from holdfast.model.ids import CheckpointId
    from holdfast.store.catalog.export_rows import ExportRow

_RESTORED = ("written", "deleted", "skipped")


@endpoint("POST", "/api/exports/{name:str}/restore", rights="write")
def restore(call: Call, name: ExportName, data: JSONBody[Restore]) -> truncated_results.Restored:
    """Restore the tree, or some of its paths, to a checkpoint."""
    row = call.export(name)
    context = call.store.exports.context(row)
    workspace = Workspace(call.store.opener, context)
    progress = call.progress(row.name, "restore")
    target = _resolve_visible(call, data.checkpoint, lambda name: resolve_name_for_restore(context, name))
    expected = None if data.expected is None else require_reachable(call, data.expected)[0].id
    if call.again and (cut_short := workspace.unfinished()) is not None and cut_short.target == target:
        return _notify(call, name, "restored", workspace.restore_continue(progress=progress))
    paths = [check_path(path_of(path)) for path in data.paths]
    if call.again:
        expected = None  # the first attempt has checked it already
    done = workspace.restore(target, paths, dry_run=data.dry_run, expected=expected, progress=progress)
    return _notify(call, name, "restored", done)


@endpoint("POST", "/api/exports/{name:str}/recover", rights="write")
def recover(call: Call, name: ExportName, data: JSONBody[Recover]) -> truncated_results.Restored:
    """Finish or reverse an interrupted restore."""
    workspace, progress = call.workspace(name), call.progress(name, "restore")
    if data.action == "continue":
        return _notify(call, name, "restored", workspace.restore_continue(progress=progress))
    return _notify(call, name, "restored", workspace.restore_abort(progress=progress))


@endpoint("POST", "/api/exports/{name:str}/undo", rights="write")
def undo(call: Call, name: ExportName, data: JSONBody[Steps]) -> truncated_results.Restored:
    """Undo the newest changes. Unsaved ones are the newest."""
    return _reversed(call, name, data, Workspace.undo, ("undo", "undone"))


@endpoint("POST", "/api/exports/{name:str}/redo", rights="write")
def redo(call: Call, name: ExportName, data: JSONBody[Steps]) -> truncated_results.Restored:
    """Bring back the newest undone changes."""
    return _reversed(call, name, data, Workspace.redo, ("redo", "redone"))


def _reversed(
    call: RequestCall, name: str, data: Steps, reverse: Callable[..., RestoreResult], words: tuple[str, str]
) -> truncated_results.Restored:
    workspace = call.workspace(name)
    refuse_again(call)
    operation, event = words
    progress = call.progress(name, operation)
    done = reverse(workspace, data.count, force=data.force, dry_run=data.dry_run, progress=progress)
    return _notify(call, name, event, done)


def refuse_again(call: RequestCall) -> None:
    """Refuse to repeat a request whose effect depends on the present tree, if its first attempt may have been done."""
    if call.again:
        raise RefusedError(
            "the first attempt at this was cut short, and it may have been done",
            hint="GET …/checkpoints and …/status show where the tree stands; then send it with another key",
            code="interrupted",
        )


@endpoint("POST", "/api/exports/{name:str}/fork", rights="admin")
def fork(call: Call, name: ExportName, data: JSONBody[Fork]) -> faces.Forked:
    """Write a checkpoint, by default of the present state, out as an export of its own."""
    call.principal.require_all_exports()
    row, exports = call.export(name), call.store.exports
    if data.checkpoint is None:
        target = save_export(call, row)
    else:
        target = _resolve_visible(call, data.checkpoint, exports.open(row).resolve)
    try:
        made, done = exports.fork(
            row,
            target,
            data.name,
            None if data.path is None else host_path(data.path),
            roots=call.principal.token.roots,
            project=data.project,
            auto=data.auto_checkpoint,
            progress=call.progress(row.name, "fork"),
        )
    except HoldfastError:
        finished = exports.finished_fork(row, target, data.name) if call.again else None
        if finished is None:
            raise
        made, done = exports.get(data.name), finished
    call.server.caretaker.reread_exports()
    call.happened(row.name, "forked", fork=made.name, checkpoint=done.source)
    return _forked(call, made, done)


def _forked(call: RequestCall, made: ExportRow, done: ForkResult) -> faces.Forked:
    return encode(faces.Forked, done, export=export_object(call, made))


@endpoint("POST", "/api/exports/{name:str}/write-files", rights="write")
def write_files(call: Call, name: ExportName, data: JSONBody[WriteFiles]) -> faces.Written:
    """Write and delete files as one change: each atomically, and only if it is as it was saved."""
    row = call.export(name)
    if call.principal.token.exports and data.source is None and any(write.blob_hash for write in data.writes):
        raise UsageError(
            "a token that is for some exports alone has to say where content is that it gives by its hash",
            hint="`source` is a checkpoint that has all of it",
        )
    source = None if data.source is None else require_reachable(call, data.source)[0].id
    context = call.store.exports.context(row)
    writes, deletes = [_write(write) for write in data.writes], [path_of(path) for path in data.deletes]
    if WORKSPACE_FILE not in (*deletes, *(write.path for write in writes)):
        refuse_misconfigured(context.misconfigured)  # A write that repairs the file is allowed.
    workspace = Workspace(call.store.opener, context)
    cut_short = workspace.unfinished() if call.again else None
    # Writing files leads to such a checkpoint, so the interrupted attempt was this request's.
    if cut_short is not None and context.catalog.checkpoint(cut_short.target).kind == "merge":
        workspace.restore_continue(progress=call.progress(row.name, "write-files"))
    done = carry_out(
        context,
        writes,
        deletes,
        Provenance(data.author or call.principal.token.label, data.message),
        source=source,
        progress=call.progress(row.name, "write-files"),
    )
    written = () if done.restored is None else done.restored.written
    deleted = () if done.restored is None else done.restored.deleted
    call.happened(row.name, "written", checkpoint=done.state, written=len(written), deleted=len(deleted))
    return encode(faces.Written, done, written=len(written), deleted=len(deleted), checkpoint=done.state)


def _write(write: FileWrite) -> PlannedWrite:
    ways = [way for way in (write.blob_hash, write.content, write.content_base64) if way is not None]
    if len(ways) != 1:
        raise UsageError(f"{write.path}: one of blob_hash, content and content_base64 is needed, and one alone")
    if write.blob_hash is not None:
        content: bytes | Hash = Hash(bytes.fromhex(write.blob_hash.removeprefix("blake3:")))
    elif write.content is not None:
        content = write.content.encode()
    else:
        try:
            content = base64.b64decode(ways[0], validate=True)
        except binascii.Error as error:
            raise UsageError(f"{write.path}: content_base64 is not base64") from error
    link = write.mode == "120000"
    return PlannedWrite(
        path=path_of(write.path),
        content=content,
        stored=write.blob_hash is not None,
        permissions=0o777 if link else int(write.mode, 8),
        link=link,
    )


def _resolve_visible(call: RequestCall, name: str, resolve: Callable[[str], CheckpointId]) -> CheckpointId:
    """The id of a checkpoint that is named as on the command line, if it may be seen."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise NotFoundError("there is no checkpoint of that name", code="no_checkpoint") from None
    return require_reachable(call, resolve(name))[0].id


def _notify(call: RequestCall, name: str, event: str, done: RestoreResult) -> Any:
    if not done.dry_run:
        call.happened(name, event, checkpoint=done.checkpoint, written=len(done.written), deleted=len(done.deleted))
    return cut(encode(Restored, done), *_RESTORED)
