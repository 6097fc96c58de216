"""Results as JSON objects: the documented ``--json`` fields, the same wherever a result leaves the process.

Paths are text by `holdfast.model.paths.display` (``parse_display`` turns them back), times are UTC in ISO 8601 with
microseconds, sizes are bytes, ids are text. Every field is always there; what does not apply is null, empty or 0.
"""

from __future__ import annotations

import binascii
from codecs import getincrementaldecoder

from holdfast.model.clock import isoformat
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import format_hash
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    from holdfast.engine.diffs.file_browser import DirectoryEntry
    from holdfast.engine.merging.fork_merge import ForkMerge
    from holdfast.engine.upkeep.doctor import Finding
    from holdfast.model import json_types
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.command_results import (
        CheckpointResult,
        Details,
        Forgotten,
        ForkResult,
        Log,
        Read,
        RestoreResult,
        Status,
    )
    from holdfast.model.entries import Change, Counts, NotCaptured
    from holdfast.model.errors import HoldfastError
    from holdfast.store.catalog.usage_statistics import Stats
    from holdfast.store.collection.collector import Collected
    from holdfast.store.verification.verifier import Verified

Json: TypeAlias = "dict[str, Any]"
"""One JSON object; one that a face answers as well has a type of its own in `holdfast.model.json_types`."""


def error(failure: HoldfastError) -> Json:
    """Of every failure: ``error`` {``code``, ``message``, ``hint``}."""
    return {"error": {"code": failure.code, "message": failure.message, "hint": failure.hint}}


def counts(value: Counts) -> json_types.Counts:
    """``added``, ``modified``, ``deleted``."""
    return {"added": value.added, "modified": value.modified, "deleted": value.deleted}


def not_captured(items: Sequence[NotCaptured]) -> list[json_types.NotCaptured]:
    """Each ``path`` with its ``reason``."""
    return [{"path": display(item.path), "reason": item.reason} for item in items]


def record(value: Checkpoint) -> json_types.Checkpoint:
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


def checkpoint(result: CheckpointResult) -> json_types.MadeCheckpoint:
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


def status(result: Status) -> json_types.Status:
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


def restore_result(result: RestoreResult) -> json_types.Restored:
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


def fork_result(result: ForkResult) -> json_types.Forked:
    """What `fork` made."""
    return {
        "workspace": result.workspace,
        "path": display(result.path),
        "checkpoint": result.checkpoint,
        "source": result.source,
        "written": result.written,
        "mounted": result.mounted,
    }


def forget_result(result: Forgotten) -> Json:
    """What `forget` removed, or would remove, and why the rest stays."""
    return {
        "removed": [
            {**record(item), "composed_into": list(result.composed_into.get(item.id, ()))} for item in result.removed
        ],
        "kept": [{"id": item.id, "label": item.label, "reasons": list(reasons)} for item, reasons in result.kept],
        "dry_run": result.dry_run,
    }


def gc_result(result: Collected) -> Json:
    """What `gc` freed, or would free."""
    return {
        "blobs_deleted": result.blobs_deleted,
        "bytes_freed": result.bytes_freed,
        "packs_deleted": result.packs_deleted,
        "packs_rewritten": result.packs_rewritten,
        "dry_run": result.dry_run,
    }


def verify_result(result: Verified) -> Json:
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


def _paths(changes: Sequence[Change]) -> json_types.Paths:
    """The paths of ``changes`` by what happened to them."""
    out: json_types.Paths = {"added": [], "modified": [], "deleted": []}
    for change in changes:
        key = "added" if change.before is None else "deleted" if change.after is None else "modified"
        out[key].append(display(change.path))
    return out


# Directories and files.


def entry(value: DirectoryEntry) -> json_types.Entry:
    """What a directory holds."""
    return {
        "name": display(value.name),
        "kind": value.kind,
        "size": value.size,
        "mode": f"{value.mode:04o}",
        "mtime": isoformat(value.mtime // 1000),
        "target": None if value.target is None else display(value.target),
    }


def listing(path: bytes, items: Sequence[DirectoryEntry]) -> json_types.Listing:
    """A directory, or a part of it."""
    return {"path": display(path), "entries": [entry(each) for each in items]}


def file_part(path: bytes, value: Read) -> json_types.Part:
    """A part of a file: ``data`` is text, or ``data_base64`` bytes where it is not UTF-8; the other one is null.

    A character that the part ends in the middle of is left for the next one. ``next_offset`` is null at the end.
    """
    content, text = _as_text(value)
    end = value.offset + len(content)
    return {
        "path": display(path),
        "offset": value.offset,
        "size": value.size,
        "hash": None if value.hash is None else format_hash(value.hash),
        "data": text,
        "data_base64": None if text is not None else binascii.b2a_base64(content, newline=False).decode("ascii"),
        "next_offset": None if end >= value.size or not content else end,
    }


def _as_text(value: Read) -> tuple[bytes, str | None]:
    """So much of the content as makes whole characters, and those; or all of it, and None."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(value.content, final=value.offset + len(value.content) >= value.size)
    except UnicodeDecodeError:
        return value.content, None
    content = value.content[: len(value.content) - len(decoder.getstate()[0])]
    return (content, text) if content or not value.content else (value.content, None)


# Merges.


def merge_result(found: ForkMerge) -> dict[str, Any]:
    """What ``holdfast merge --json`` prints (docs/reference/json.md)."""
    # A log does not load how merges are planned.
    from holdfast.engine.merging import stacked_plan

    planned = stacked_plan.to_json(found.plan)
    for one, overlap in zip(planned.get("overlapping_files", ()), found.plan.overlapping, strict=False):
        if overlap.path in found.prepared.differences:
            one["production_diff"], one["fork_diff"] = found.prepared.differences[overlap.path]
        if overlap.path in found.prepared.foreseen:
            one["foreseen"] = found.prepared.foreseen[overlap.path].to_json()
    return {
        **planned,
        "dry_run": found.dry_run,
        "files": [one.to_json() for one in found.prepared.records],
        "merged": found.prepared.merged,
        "restored": None if found.restored is None else restore_result(found.restored),
        "not_captured": not_captured(found.not_captured),
    }
