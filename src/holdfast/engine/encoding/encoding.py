"""Results as JSON objects: the documented ``--json`` fields, the same wherever a result leaves the process.

Paths are text by `holdfast.model.paths.display` (``parse_display`` turns them back), times are UTC in ISO 8601 with
microseconds, sizes are bytes, ids are text. Every field is always there; what does not apply is null, empty or 0.
"""

from __future__ import annotations

from holdfast.model.clock import isoformat
from holdfast.model.paths import display
from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from holdfast.engine.results import objects
    from holdfast.engine.results.results import (
        CheckpointResult,
        Details,
        Forgotten,
        ForkResult,
        Log,
        RestoreResult,
        Status,
    )
    from holdfast.engine.upkeep.doctor import Finding
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change, Counts, NotCaptured
    from holdfast.model.errors import HoldfastError
    from holdfast.store.collect import Collected
    from holdfast.store.usage import Stats
    from holdfast.store.verify import Verified

Json: TypeAlias = "dict[str, Any]"
"""One JSON object; one that a face answers as well has a type of its own in `holdfast.engine.results.objects`."""


def error(failure: HoldfastError) -> Json:
    """Of every failure: ``error`` {``code``, ``message``, ``hint``}."""
    return {"error": {"code": failure.code, "message": failure.message, "hint": failure.hint}}


def counts(value: Counts) -> objects.Counts:
    """``added``, ``modified``, ``deleted``."""
    return {"added": value.added, "modified": value.modified, "deleted": value.deleted}


def not_captured(items: Sequence[NotCaptured]) -> list[objects.NotCaptured]:
    """Each ``path`` with its ``reason``."""
    return [{"path": display(item.path), "reason": item.reason} for item in items]


def record(value: Checkpoint) -> objects.Checkpoint:
    """A checkpoint as `log`, `show` and `forget` list it."""
    return {
        "id": value.id,
        "workspace": value.workspace,
        "parent": value.parent,
        "label": value.label,
        "kind": value.kind,
        "created_at": isoformat(value.created_at),
        "changes": counts(value.changes),
        "message": value.provenance.message,
        "author": value.provenance.author,
        "command": value.provenance.command,
        "total_files": value.total_files,
        "total_bytes": value.total_bytes,
        "not_captured": value.not_captured,
    }


def checkpoint(result: CheckpointResult) -> objects.MadeCheckpoint:
    """What `checkpoint` did."""
    made = result.checkpoint
    return {
        "id": made.id,
        "parent": made.parent,
        "label": made.label,
        "kind": made.kind,
        "created": result.created,
        "labelled": result.labelled,
        "created_at": isoformat(made.created_at),
        "changes": counts(made.changes),
        "total_files": made.total_files,
        "not_captured": not_captured(result.not_captured),
        "new_blobs": made.new_blobs,
        "stored_bytes": made.stored_bytes,
        "elapsed_ms": round(result.elapsed_ms, 3),
    }


def status(result: Status) -> objects.Status:
    """How the tree differs from the last checkpoint; ``modified`` holds type changes as well."""
    return {
        "workspace": display(result.workspace),
        "last_checkpoint": None if result.last_checkpoint is None else result.last_checkpoint.id,
        "clean": result.clean,
        **_paths(result.changes),
        "not_captured": not_captured(result.not_captured),
        "watching": result.watching,
        "unfinished_restore": result.unfinished_restore,
        "watch_failure": result.watch_failure,
    }


def status_and_ignored(result: Status, ignored: Sequence[bytes]) -> Json:
    """The same, with what the ignore rules leave out."""
    return {**status(result), "ignored": [display(path) for path in ignored]}


def log(result: Log) -> Json:
    """The history, newest first, and where the tree stands in it."""
    return {
        "head": result.head,
        "checkpoints": [record(item) for item in result.checkpoints],
        "events": [
            {
                "at": isoformat(event.at),
                "operation": event.operation,
                "checkpoint": event.checkpoint,
                "steps": list(event.steps),
                "run": event.run,
            }
            for event in result.events
        ],
    }


def details(result: Details) -> Json:
    """All that is kept about one checkpoint: its record, the changed paths, and what was not captured."""
    made = result.checkpoint
    return {
        **record(made),
        "new_blobs": made.new_blobs,
        "stored_bytes": made.stored_bytes,
        "paths": _paths(result.changes),
        "not_captured": not_captured(result.not_captured),
    }


def restored(result: RestoreResult) -> objects.Restored:
    """What `restore`, `undo` or `redo` did, or would do."""
    return {
        "checkpoint": result.checkpoint,
        "rescue": result.rescue,
        "written": [display(path) for path in result.written],
        "deleted": [display(path) for path in result.deleted],
        "skipped": not_captured(result.skipped),
        "dry_run": result.dry_run,
        "undo_command": result.undo_command,
        "steps": list(result.steps),
        "together": [list(group) for group in result.together],
    }


def forked(result: ForkResult) -> objects.Forked:
    """What `fork` made."""
    return {
        "workspace": result.workspace,
        "path": display(result.path),
        "checkpoint": result.checkpoint,
        "source": result.source,
        "written": result.written,
        "mounted": result.mounted,
    }


def forgotten(result: Forgotten) -> Json:
    """What `forget` removed, or would remove, and why the rest stays."""
    return {
        "removed": [
            {**record(item), "composed_into": list(result.composed_into.get(item.id, ()))} for item in result.removed
        ],
        "kept": [{"id": item.id, "label": item.label, "reasons": list(reasons)} for item, reasons in result.kept],
        "dry_run": result.dry_run,
    }


def collected(result: Collected) -> Json:
    """What `gc` freed, or would free."""
    return {
        "blobs_deleted": result.blobs_deleted,
        "bytes_freed": result.bytes_freed,
        "packs_deleted": result.packs_deleted,
        "packs_rewritten": result.packs_rewritten,
        "dry_run": result.dry_run,
    }


def verified(result: Verified) -> Json:
    """What `verify` looked at and found."""
    return {
        "ok": result.ok,
        "checkpoints": result.checkpoints,
        "blobs": result.blobs,
        "problems": [
            {"kind": problem.kind, "object": problem.object, "message": problem.message} for problem in result.problems
        ],
    }


def doctor(found: Sequence[Finding]) -> Json:
    """``ok``, and what was found, each with ``area``, ``verdict``, ``message`` and ``help``."""
    return {
        "ok": all(finding.verdict != "wrong" for finding in found),
        "findings": [finding._asdict() | {"help": finding.help or None} for finding in found],
    }


def stats(result: Stats) -> Json:
    """What takes the space."""
    values = result._asdict()
    values["largest"] = [{"path": display(path), "bytes": size} for path, size in result.largest]
    return values


def _paths(changes: Sequence[Change]) -> objects.Paths:
    """The paths of ``changes`` by what happened to them."""
    out: objects.Paths = {"added": [], "modified": [], "deleted": []}
    for change in changes:
        key = "added" if change.before is None else "deleted" if change.after is None else "modified"
        out[key].append(display(change.path))
    return out
