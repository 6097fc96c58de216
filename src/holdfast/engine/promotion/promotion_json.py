"""Promotions as JSON objects: the documented ``--json`` fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.model.clock import isoformat

if TYPE_CHECKING:
    from holdfast.engine.encoding.workspace_json import Json
    from holdfast.engine.promotion.manager import Promotion, PromotionSweep
    from holdfast.engine.promotion.spec import PromotionAnswer, PromotionFacts


def answer(found: PromotionAnswer) -> Json:
    """What would become of a promotion."""
    return {
        "result": found.result,
        "changesets": found.changesets,
        "changes": msgspec.to_builtins(found.changes),
        "overlapping_files": msgspec.to_builtins(found.overlapping_files),
        "uncaptured": found.uncaptured,
    }


def files(facts: PromotionFacts) -> list[Json]:
    """What became of each file that both sides have changed, and what each rung of the ladder did about it."""
    return msgspec.json.decode(facts.record)["files"] if facts.record else []


def promotion(found: Promotion) -> Json:
    """One promotion; the fields of its result are there whatever that is, and empty where they do not apply."""
    said, facts, row = found.answer, found.facts, found.row
    return {
        "id": row.id,
        **answer(said),
        "changesets": facts.changesets,
        "changes": msgspec.to_builtins(facts.changes),
        "uncaptured": facts.uncaptured,
        "files": files(facts),
        "production": found.path,
        "phase": row.phase,
        "theirs": row.theirs,
        "checkpoint": said.checkpoint,
        "previous": said.previous,
        "provider": facts.provider,
        "provider_reason": facts.provider_reason,
        "atomic": said.atomic,
        "hindrance": facts.hindrance,
        "undo_command": said.undo_command,
        "failed_step": said.failed_step,
        "command": said.command,
        "exit_code": said.exit_code,
        "output": said.output,
        "code": said.code,
        "message": said.message,
        "recovery": said.recovery,
        "replans": facts.replans,
        "late": facts.late,
        "used_by": msgspec.to_builtins(facts.used_by),
        "kept": facts.kept,
        "restart": msgspec.to_builtins(facts.restart),
        "created_at": isoformat(row.created_at),
        "updated_at": isoformat(row.updated_at),
    }


def swept(found: PromotionSweep) -> Json:
    """What a sweep did."""
    return {name: list(value) for name, value in found._asdict().items()}
