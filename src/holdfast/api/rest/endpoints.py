"""What can be asked for: the table that requests are led by, and that the OpenAPI document is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.api.rest import answers, changes, checkpoints, exports, merges, promotions, reapplies, requests
from holdfast.engine.results import objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.rest.calls import Call
    from holdfast.store.token_rows import Rights


class Endpoint(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    rights: Rights | None
    """What the token has to have; None: no token is needed."""
    handler: Callable[[Call], Any] | None
    """None: the server itself answers."""
    answer: Any
    """The type of the answer; `bytes`, or `str` for text that is no JSON."""
    body: type[requests.Body] = requests.NoBody
    query: type[requests.Body] = requests.NoQuery
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


_E = "/api/exports/{name}"
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
HEALTH = Endpoint("GET", "/api/health", None, None, answers.Health, name="health", summary="That the server lives.")
READY = Endpoint(
    "GET", "/api/ready", None, None, answers.Health, name="ready", summary="Whether it can do its work; 503 if not."
)
METRICS = Endpoint(
    "GET", "/metrics", "read", None, str, name="metrics", summary="Counts of what the server does, for Prometheus."
)
OPENAPI = Endpoint("GET", "/api/openapi.json", None, None, dict[str, Any], name="openapi", summary="This document.")
DOCS = Endpoint("GET", "/api/docs", None, None, str, name="docs", summary="The same for people.")

ENDPOINTS = (
    Endpoint("GET", "/api/exports", "read", exports.list_exports, answers.ExportList, query=requests.ExportsPage),
    Endpoint("POST", "/api/exports", "admin", exports.create_export, answers.Export, requests.NewExport),
    Endpoint("GET", _E, "read", exports.get_export, answers.ExportDetails),
    Endpoint("PUT", _E, "admin", exports.configure_export, answers.ExportDetails, requests.ExportChange),
    Endpoint("DELETE", _E, "admin", exports.delete_export, answers.Deleted),
    Endpoint("GET", f"{_E}/status", "read", exports.get_status, answers.Status),
    EVENTS,
    Endpoint(
        "GET", f"{_E}/checkpoints", "read", checkpoints.list_checkpoints, answers.CheckpointList, query=requests.Page
    ),
    Endpoint("POST", f"{_E}/checkpoint", "write", checkpoints.create_checkpoint, answers.Taken, requests.NewCheckpoint),
    Endpoint("POST", f"{_E}/restore", "write", changes.restore, answers.Restored, requests.Restore),
    Endpoint("POST", f"{_E}/recover", "write", changes.recover, answers.Restored, requests.Recover),
    Endpoint("POST", f"{_E}/undo", "write", changes.undo, answers.Restored, requests.Steps),
    Endpoint("POST", f"{_E}/redo", "write", changes.redo, answers.Restored, requests.Steps),
    Endpoint("POST", f"{_E}/fork", "admin", changes.fork, answers.Forked, requests.Fork),
    Endpoint("POST", f"{_E}/write-files", "write", changes.write_files, answers.Written, requests.WriteFiles),
    Endpoint("POST", f"{_E}/promote", "admin", promotions.promote, answers.Promoted, requests.Promote),
    Endpoint("GET", f"{_E}/promotions", "read", promotions.list_promotions, answers.PromotionList, query=requests.Page),
    Endpoint("GET", f"{_E}/promotions/{{promotion}}", "read", promotions.get_promotion, answers.Promoted),
    Endpoint(
        "GET", f"{_E}/reapplies", "write", reapplies.list_reapplies, answers.ReapplyList, query=requests.ReappliesQuery
    ),
    Endpoint(
        "POST", f"{_E}/reapplies/take", "write", reapplies.take_reapply, answers.TakenReapply, requests.TakeReapply
    ),
    Endpoint(
        "POST",
        f"{_E}/reapplies/{{reapply}}/answer",
        "write",
        reapplies.answer_reapply,
        answers.AnsweredReapply,
        requests.AnswerReapply,
    ),
    Endpoint("GET", _C, "read", checkpoints.get_checkpoint, answers.CheckpointDetails),
    Endpoint("DELETE", _C, "admin", checkpoints.delete_checkpoint, answers.Deleted),
    Endpoint("GET", f"{_C}/files", "read", checkpoints.list_files, answers.FileList, query=requests.FilesPage),
    Endpoint("GET", f"{_C}/file", "read", checkpoints.get_file, bytes, query=requests.FileQuery),
    Endpoint(
        "GET",
        "/api/checkpoints/{a}/diff/{b}",
        "read",
        checkpoints.diff_checkpoints,
        objects.Diff,
        query=requests.DiffQuery,
    ),
    Endpoint("POST", "/api/merge", "read", merges.dry_run, answers.Merged, requests.Merge, name="merge"),
    Endpoint("GET", _P, "read", checkpoints.list_project_checkpoints, answers.CheckpointList, query=requests.Page),
    Endpoint("POST", _P, "write", checkpoints.create_project_checkpoint, answers.Taken, requests.NewProjectCheckpoint),
    HEALTH,
    READY,
    METRICS,
    OPENAPI,
    DOCS,
)
