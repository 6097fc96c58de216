"""Promotions to an export: each runs in a process of its own, and the catalog holds its state."""

from __future__ import annotations

import base64
import os
import secrets
from typing import TYPE_CHECKING, Any, Final

from litestar.params import JSONBody
from msgspec import UNSET

from holdfast.api.rest._endpoint import Call, endpoint
from holdfast.api.rest._request_context import cut, decode_cursor, page
from holdfast.api.rest._request_types import Cursor, ExportName, FileDecision, InPromotion, Limit, Promote
from holdfast.api.rest.routes.checkpoints import refuse_misconfigured, require_reachable, save_export
from holdfast.engine.promotion import manager, spec
from holdfast.engine.running.isolation import absolute_paths
from holdfast.files.tree import ROOT_GONE
from holdfast.model.answers import faces
from holdfast.model.answers.merges import Promoted
from holdfast.model.errors import HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.model.ids import CheckpointId, hash_bytes
from holdfast.model.json_encoder import encode, encode_all
from holdfast.model.paths import display, under
from holdfast.store.catalog.promotion_rows import PromotionRows

if TYPE_CHECKING:
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.engine.opening.context import Context
    from holdfast.store.catalog.export_rows import ExportRow
    from holdfast.store.catalog.promotion_rows import PromotionRow

STEPS: Final = ("plan", "copy", "setup", "build", "check", "swap", "restart", "finish")
_TAKEN_BACK: Final = frozenset(("interrupted", "cut_short"))
_MOST_ATTEMPTS: Final = 1000


@endpoint("POST", "/api/exports/{name:str}/promote", rights="admin", apart="promote")
def promote(call: Call, name: ExportName, data: JSONBody[Promote]) -> faces.Promoted:
    """Bring `promote_checkpoint`, or the present state of the export `fork`, to this export."""
    row = call.export(name)
    context = call.store.exports.context(row)
    if (data.promote_checkpoint is None) == (data.fork is None):
        raise UsageError("one of promote_checkpoint and fork is needed, and one alone", code="invalid")
    if "\0" in data.message + data.author:
        raise UsageError("message and author hold no NUL", code="invalid")
    decided = [_decided(one) for one in data.resolutions]
    promotion, found = _attempt(call, row)
    if found is not None and found.phase == "ended":
        return _shown(found)
    if found is not None:
        words, decided = [b"--resume", promotion.encode()], []
    else:
        if not os.path.isdir(context.workspace.path):
            raise NotFoundError(
                f"the workspace's directory {display(context.workspace.path)} is gone",
                hint="restore a checkpoint to bring it back",
                code=ROOT_GONE,
            )
        refuse_misconfigured(context.misconfigured)
        theirs = _promoted_checkpoint(call, row, data)
        words = [
            b"--id=" + promotion.encode(),
            b"--production=" + str(_production(context)).encode(),
            b"--author=" + (data.author or call.principal.token.label).encode(),
            b"--message=" + (data.message or f"promoted {data.fork or theirs[:12]}").encode(),
            theirs.encode(),
        ]

    settings = _environment_for(call, row, context)

    def tell(step: str) -> None:
        done = STEPS.index(step) if step in STEPS else 0
        call.happened(
            row.name,
            "progress",
            operation="promote",
            phase=step,
            done=done,
            total=len(STEPS),
            request_id=call.request_id,
            promotion=promotion,
        )

    refused = call.server.outside.promote(words, settings, tell, decided)
    if refused is not None:
        raise refused
    ended = _rows(call).get(promotion)
    if ended.phase != "ended":
        raise HoldfastError(f"the promotion {promotion} was cut short", code="promotion_stopped")
    call.happened(
        row.name, "promotion", promotion=promotion, result=ended.result, checkpoint=_shown(ended)["checkpoint"]
    )
    return _shown(ended)


def _decided(given: FileDecision) -> spec.DecidedFile:
    """The decision about one file."""
    chosen = [given.keep, given.take, given.delete, given.content is not UNSET, given.content_base64 is not UNSET]
    if sum(chosen) != 1:
        raise UsageError(
            "one of keep, take, content, content_base64 and delete is needed for each file, and one alone",
            code="invalid",
        )
    content = None
    if given.content is not UNSET:
        content = given.content.encode()
    elif given.content_base64 is not UNSET:
        try:
            content = base64.b64decode(given.content_base64, validate=True)
        except ValueError:
            raise UsageError("content_base64 cannot be read", code="invalid") from None
    prefer = "ours" if given.keep else "theirs" if given.take else None
    return spec.DecidedFile(given.path, prefer, content, given.version)


def _production(context: Context) -> manager.ProductionRef:
    """Production, as seen for this request: the process that promotes accepts no other state of it."""
    found = context.workspace
    if os.path.ismount(found.path):  # The row may hold the path of the directory under a mount.
        about = os.lstat(found.path)
        return manager.ProductionRef(found.id, (about.st_dev, about.st_ino))
    return manager.ProductionRef(found.id, (found.device, found.inode))


@endpoint("GET", "/api/exports/{name:str}/promotions", rights="read")
def list_promotions(call: Call, name: ExportName, limit: Limit = 100, cursor: Cursor = "") -> faces.PromotionList:
    """Its promotions, newest first."""
    found = _rows(call).list(call.export(name).workspace)[::-1]
    after = decode_cursor(cursor)
    if after:
        at = next((number for number, one in enumerate(found) if one.id == after), None)
        if at is None:
            raise UsageError(
                "the list cannot be gone on with", hint="begin anew, without a cursor", code="stale_cursor"
            )
        found = found[at + 1 :]
    part, following = page(found, limit, lambda one: one.id)
    shown = encode_all(faces.PromotionSummary, map(manager.promotion_from_row, part))
    return {"promotions": shown, "next_cursor": following}


@endpoint("GET", "/api/exports/{name:str}/promotions/{promotion:str}", rights="read")
def get_promotion(call: Call, name: ExportName, promotion: InPromotion) -> faces.Promoted:
    """One promotion, its progress and its end."""
    row = call.export(name)
    found = _rows(call).get(promotion)
    if found.workspace != row.workspace:
        raise NotFoundError(f"no promotion {promotion}", code="no_promotion")
    return _shown(found)


def _rows(call: RequestCall) -> PromotionRows:
    return PromotionRows(call.store.opener.store().catalog)


def _shown(row: PromotionRow) -> Any:
    return cut(
        encode(Promoted, manager.promotion_from_row(row)),
        "overlapping_files",
        "uncaptured",
        "files",
        "late",
    )


def _attempt(call: RequestCall, row: ExportRow) -> tuple[str, PromotionRow | None]:
    """The id of the requested promotion; with its row, if this request continues one that was cut short. A promotion
    that was reversed since starts again, under another id.
    """
    if call.key is None:
        return secrets.token_hex(8), None
    rows = _rows(call)
    for number in range(_MOST_ATTEMPTS):
        name = hash_bytes(f"{call.key}/{number}".encode()).hex()[:16]
        found = rows.by_prefix(name)
        if not found:
            return name, None
        answer = spec.decode_facts(found[0].facts).answer
        taken_back = answer is not None and answer.code in _TAKEN_BACK
        if call.again and found[0].workspace == row.workspace and not taken_back:
            return name, found[0]
    raise RefusedError("this Idempotency-Key was used too often", code="too_much")


def _promoted_checkpoint(call: RequestCall, row: ExportRow, data: Promote) -> CheckpointId:
    """The checkpoint to promote."""
    if data.promote_checkpoint is not None:
        return require_reachable(call, data.promote_checkpoint)[0].id
    assert data.fork is not None
    side = call.store.exports.get(call.principal.check_export(data.fork))
    if side.workspace == row.workspace:
        raise UsageError(f"{row.name} cannot be promoted to itself", hint="name a fork of it")
    return save_export(call, side)


def _environment_for(call: RequestCall, row: ExportRow, context: Context) -> dict[str, str]:
    """The environment of the promotion's process, which hides what this token cannot reach from its commands (I10)."""
    token = call.principal.token
    others = call.store.exports.hidden_from(row, token.exports)
    coming = call.store.exports.future_roots(row, token.exports)
    runs = context.settings.promote
    is_kept_apart = bool(others or call.store.exports.roots_of_others(row, token.roots))
    found = call.server.outside.isolation
    is_none = runs.isolation == "none" or (runs.isolation == "auto" and found.level == "none")
    if is_none and is_kept_apart and (runs.setup or runs.build or runs.start or runs.health):
        raise RefusedError(
            "the commands of this promotion would reach other exports: "
            f"{'promote.isolation is none' if runs.isolation == 'none' else found.reason}",
            hint="set promote.isolation to namespace in the home's config.toml, or use the command line"
            if runs.isolation == "none"
            else found.help or None,
            code="not_isolated",
        )
    if any(b"\n" in path for path in (*others, *coming)):
        raise RefusedError("the name of a directory of another export cannot be hidden", code="not_isolated")
    open_ = absolute_paths(context.settings.isolation.writable)
    # Paths that the settings make writable stay visible, also inside a hidden directory.
    more = [
        *(path for path in coming if not any(under(one, path) for one in open_)),
        call.store.exports.made_at,
        *others,
    ]
    return {
        "HOLDFAST_STORE_TENANT": call.tenant,
        "HOLDFAST_ISOLATION_HIDDEN": "\n".join([*context.settings.isolation.hidden, *map(os.fsdecode, more)]),
        # The process must not find out anew that no isolation works, and then run its commands without any.
        **({"HOLDFAST_PROMOTE_ISOLATION": "namespace"} if is_kept_apart and not is_none else {}),
    }
