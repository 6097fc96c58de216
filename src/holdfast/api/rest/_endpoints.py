"""What can be asked for: the table that requests are led by, and that the OpenAPI document is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.api import _truncated_results as truncated_results
from holdfast.api.rest import _request_types as request_types
from holdfast.api.rest import _response_types as response_types
from holdfast.api.rest.routes import checkpoints, exports, merges, promotions, sessions, snapshots, tree_changes
from holdfast.model.answers import commands
from holdfast.model.answers import sessions as session_answers
from holdfast.model.answers import workspace as answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.rest._request_context import RequestCall
    from holdfast.store.catalog.token_rows import Rights


class Endpoint(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    rights: Rights | None
    """What the token has to have; None: no token is needed."""
    handler: Callable[[RequestCall], Any] | None
    """None: the server itself answers."""
    answer: Any
    """The type of the answer; `bytes`, or `str` for text that is no JSON."""
    body: type[request_types.Body] = request_types.NoBody
    query: type[request_types.Body] = request_types.NoQuery
    name: str = ""
    summary: str = ""

    @property
    def operation(self) -> str:
        """Its name, as the OpenAPI document has it."""
        return self.name or ("" if self.handler is None else self.handler.__name__)

    @property
    def meaning(self) -> str:
        """What it does."""
        text = self.summary or ("" if self.handler is None else self.handler.__doc__ or "")
        return " ".join(text.split())

    @property
    def changes(self) -> bool:
        """Whether it may change anything; then an ``Idempotency-Key`` counts."""
        return self.method != "GET" and self.handler is not merges.dry_run

    @property
    def promotes(self) -> bool:
        """Whether it takes as long as a build, and waits for others of its kind alone."""
        return self.handler is promotions.promote

    @property
    def executes(self) -> bool:
        """Whether it takes as long as a command, beside others that change the export."""
        return self.handler is sessions.execute_command


_E = "/api/exports/{name}"
_S = f"{_E}/sessions"
_V = f"{_E}/snapshots"
_C = "/api/checkpoints/{id}"
_P = "/api/projects/{project}/checkpoints"

EVENTS = Endpoint(
    "GET",
    f"{_E}/events",
    "read",
    None,
    str,
    name="listen",
    summary="What happens to the export, as server-sent events.",
)
HEALTH = Endpoint(
    "GET", "/api/health", None, None, response_types.Health, name="health", summary="That the server lives."
)
READY = Endpoint(
    "GET",
    "/api/ready",
    None,
    None,
    response_types.Health,
    name="ready",
    summary="Whether it can do its work; 503 if not.",
)
METRICS = Endpoint(
    "GET", "/metrics", "read", None, str, name="metrics", summary="Counts of what the server does, for Prometheus."
)
OPENAPI = Endpoint("GET", "/api/openapi.json", None, None, dict[str, Any], name="openapi", summary="This document.")
DOCS = Endpoint("GET", "/api/docs", None, None, str, name="docs", summary="The same for people.")

ENDPOINTS = (
    Endpoint(
        "GET", "/api/exports", "read", exports.list_exports, response_types.ExportList, query=request_types.ExportsPage
    ),
    Endpoint("POST", "/api/exports", "admin", exports.create_export, response_types.Export, request_types.NewExport),
    Endpoint("GET", _E, "read", exports.get_export, response_types.ExportDetails),
    Endpoint("PUT", _E, "admin", exports.configure_export, response_types.ExportDetails, request_types.ExportChange),
    Endpoint("DELETE", _E, "admin", exports.delete_export, response_types.Deleted),
    Endpoint("GET", f"{_E}/status", "read", exports.get_status, truncated_results.Status),
    EVENTS,
    Endpoint(
        "GET",
        f"{_E}/checkpoints",
        "read",
        checkpoints.list_checkpoints,
        response_types.CheckpointList,
        query=request_types.Page,
    ),
    Endpoint(
        "POST",
        f"{_E}/checkpoint",
        "write",
        checkpoints.create_checkpoint,
        response_types.Taken,
        request_types.NewCheckpoint,
    ),
    Endpoint("POST", f"{_E}/restore", "write", tree_changes.restore, truncated_results.Restored, request_types.Restore),
    Endpoint("POST", f"{_E}/recover", "write", tree_changes.recover, truncated_results.Restored, request_types.Recover),
    Endpoint("POST", f"{_E}/undo", "write", tree_changes.undo, truncated_results.Restored, request_types.Steps),
    Endpoint("POST", f"{_E}/redo", "write", tree_changes.redo, truncated_results.Restored, request_types.Steps),
    Endpoint("POST", f"{_E}/fork", "admin", tree_changes.fork, response_types.Forked, request_types.Fork),
    Endpoint(
        "POST", f"{_E}/write-files", "write", tree_changes.write_files, response_types.Written, request_types.WriteFiles
    ),
    Endpoint("POST", f"{_E}/promote", "admin", promotions.promote, response_types.Promoted, request_types.Promote),
    Endpoint(
        "GET",
        f"{_E}/promotions",
        "read",
        promotions.list_promotions,
        response_types.PromotionList,
        query=request_types.Page,
    ),
    Endpoint("GET", f"{_E}/promotions/{{promotion}}", "read", promotions.get_promotion, response_types.Promoted),
    Endpoint(
        "GET",
        f"{_E}/reapplies",
        "write",
        merges.list_reapplies,
        response_types.ReapplyList,
        query=request_types.ReappliesQuery,
    ),
    Endpoint(
        "POST",
        f"{_E}/reapplies/take",
        "write",
        merges.take_reapply,
        response_types.TakenReapply,
        request_types.TakeReapply,
    ),
    Endpoint(
        "POST",
        f"{_E}/reapplies/{{reapply}}/answer",
        "write",
        merges.answer_reapply,
        response_types.AnsweredReapply,
        request_types.AnswerReapply,
    ),
    Endpoint("GET", _S, "read", sessions.list_sessions, response_types.SessionList, query=request_types.Page),
    Endpoint("POST", _S, "write", sessions.start_session, session_answers.Started, request_types.NewSession),
    Endpoint(
        "GET",
        f"{_S}/{{session}}",
        "read",
        sessions.get_session,
        response_types.Session,
        query=request_types.SessionQuery,
    ),
    Endpoint(
        "POST",
        f"{_S}/{{session}}/exec",
        "admin",
        sessions.execute_command,
        session_answers.Executed,
        request_types.SessionCommand,
    ),
    Endpoint(
        "POST",
        f"{_S}/{{session}}/checkpoint",
        "write",
        sessions.save_session,
        session_answers.SessionCheckpoint,
        request_types.SessionSave,
    ),
    Endpoint(
        "POST",
        f"{_S}/{{session}}/undo",
        "write",
        sessions.undo_in_session,
        truncated_results.Restored,
        request_types.Steps,
    ),
    Endpoint(
        "POST",
        f"{_S}/{{session}}/redo",
        "write",
        sessions.redo_in_session,
        truncated_results.Restored,
        request_types.Steps,
    ),
    Endpoint("GET", _V, "read", snapshots.list_snapshots, response_types.SnapshotList),
    Endpoint("POST", _V, "admin", snapshots.take_snapshot, commands.TakenSnapshot, request_types.NewSnapshot),
    Endpoint("GET", f"{_V}/{{snapshot}}", "read", snapshots.get_snapshot, commands.Snapshot),
    Endpoint("DELETE", f"{_V}/{{snapshot}}", "admin", snapshots.discard_snapshot, commands.DiscardedSnapshot),
    Endpoint(
        "POST",
        f"{_V}/{{snapshot}}/mount",
        "admin",
        snapshots.mount_snapshot,
        commands.SnapshotView,
        request_types.SnapshotViews,
    ),
    Endpoint(
        "POST",
        f"{_V}/{{snapshot}}/unmount",
        "admin",
        snapshots.unmount_snapshot,
        commands.UnmountedSnapshot,
        request_types.SnapshotViews,
    ),
    Endpoint("GET", _C, "read", checkpoints.get_checkpoint, response_types.CheckpointDetails),
    Endpoint("DELETE", _C, "admin", checkpoints.delete_checkpoint, response_types.Deleted),
    Endpoint(
        "GET", f"{_C}/files", "read", checkpoints.list_files, response_types.FileList, query=request_types.FilesPage
    ),
    Endpoint("GET", f"{_C}/file", "read", checkpoints.get_file, bytes, query=request_types.FileQuery),
    Endpoint(
        "GET",
        "/api/checkpoints/{a}/diff/{b}",
        "read",
        checkpoints.diff_checkpoints,
        answers.Diff,
        query=request_types.DiffQuery,
    ),
    Endpoint("POST", "/api/merge", "read", merges.dry_run, response_types.Merged, request_types.Merge, name="merge"),
    Endpoint(
        "GET", _P, "read", checkpoints.list_project_checkpoints, response_types.CheckpointList, query=request_types.Page
    ),
    Endpoint(
        "POST",
        _P,
        "write",
        checkpoints.create_project_checkpoint,
        response_types.Taken,
        request_types.NewProjectCheckpoint,
    ),
    HEALTH,
    READY,
    METRICS,
    OPENAPI,
    DOCS,
)
