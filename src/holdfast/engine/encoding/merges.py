"""Merges as JSON objects; see `holdfast.engine.encoding.encoding`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.encoding import encoding
from holdfast.engine.merging import stacked

if TYPE_CHECKING:
    from holdfast.engine.merging.merging import Merged


def merged(found: Merged) -> dict[str, Any]:
    """What ``holdfast merge --json`` prints (docs/reference/json.md)."""
    planned = stacked.to_json(found.plan)
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
        "restored": None if found.restored is None else encoding.restored(found.restored),
        "not_captured": encoding.not_captured(found.not_captured),
    }
