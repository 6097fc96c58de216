"""Removing checkpoints: by name, by a given policy, or by the automatic one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.engine.forks.unmount_to_directory import discard
from holdfast.engine.history.mount_pins import release_dead_pins
from holdfast.engine.history.retention import remove_checkpoints, select_checkpoints, thinning_rule
from holdfast.engine.opening.context import retry_with_reserve
from holdfast.engine.opening.missing_workspaces import find_moved, is_missing
from holdfast.model.command_results import Forgotten
from holdfast.model.errors import ConfigError, RefusedError
from holdfast.model.paths import display
from holdfast.store.catalog_records import last_seen_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.history.retention import Policy
    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId, WorkspaceId
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.checkpoint_removal import Protection
    from holdfast.store.catalog_records import WorkspaceRow


def forget(
    context: Context,
    named: Sequence[CheckpointId],
    *,
    policy: Policy | None = None,
    dry_run: bool = False,
) -> Forgotten:
    """Remove the ``named`` checkpoints, or (none named) those of this workspace that the policy does not keep.

    ``policy`` None is the retention of the settings; `ConfigError` while the workspace's file is ignored. A named
    checkpoint that is a live workspace's state or a live fork's origin is refused, and nothing is removed then; a
    policy keeps those. Each removal is one transaction that passes the changes on to the children; collection frees
    unused content after the grace time.
    """
    if not dry_run:
        release_dead_pins(context)
    if named:
        removed = [context.catalog.checkpoint(checkpoint) for checkpoint in dict.fromkeys(named)]
        _refuse_protected(context, removed)
        kept: list[tuple[Checkpoint, Sequence[str]]] = []
    else:
        if policy is None and context.misconfigured is not None:
            raise ConfigError(
                "nothing is forgotten, because the rules of retention are not "
                f"certain: {context.misconfigured.message}",
                hint="correct the file, say what to keep (--keep-last N, …), or name checkpoints",
            )
        removed, kept = select_checkpoints(context, policy or thinning_rule(context.settings))
    heirs = _heirs(context.catalog, removed)
    if not dry_run:
        removed = remove_checkpoints(context, removed)
    return Forgotten(removed, kept, dry_run, heirs)


def forget_gone(context: StoreContext, *, but: WorkspaceId | None = None, dry_run: bool = False) -> Forgotten:
    """Release every workspace of the home whose directory was deleted, and forget its checkpoints.

    Checkpoints that others depend on stay, as does the open workspace ``but``. A directory does not count as deleted if
    its file system may be unmounted, or if it is found under another name (see `find_moved` for the limits of that
    search).
    """
    catalog = context.store.catalog
    missing = [one for one in catalog.workspaces() if is_missing(one, context.folder_of(one))]
    moved = find_moved(missing, context.folder_of)
    going: list[Checkpoint] = []
    kept: list[tuple[Checkpoint, Sequence[str]]] = []
    gone: list[WorkspaceRow] = []
    for workspace in missing:
        if workspace.id in moved:
            reason = (
                f"its workspace was moved to {display(moved[workspace.id])}; any command in there tells Holdfast so"
            )
        elif workspace.id == but:
            reason = "its workspace is open"
        else:
            gone.append(workspace)
            continue
        kept += ((checkpoint, (reason,)) for checkpoint in catalog.checkpoints(workspace.id))
    if not dry_run:
        for workspace in gone:
            if workspace.live:
                retry_with_reserve(context, partial(catalog.let_go, workspace.id))
            discard(context, workspace)
        release_dead_pins(context)
    # Released workspaces protect no checkpoint any more, neither others' nor each other's.
    silent = {workspace.id for workspace in gone}
    protections = catalog.protections()
    for workspace in gone:
        for checkpoint in catalog.checkpoints(workspace.id):
            reasons = [one for one in protections.get(checkpoint.id, ()) if one.hard and one.workspace not in silent]
            if reasons:
                kept.append((checkpoint, [str(one) for one in reasons]))
            else:
                going.append(checkpoint)
    heirs = _heirs(catalog, going)
    return Forgotten(going if dry_run else remove_checkpoints(context, going), kept, dry_run, heirs)


def _heirs(catalog: Catalog, going: Sequence[Checkpoint]) -> dict[CheckpointId, list[CheckpointId]]:
    """For each checkpoint that is ``going``, the ones that stay and that will hold its changes among their own."""
    parents = {checkpoint.id: checkpoint.parent for checkpoint in going}
    heirs: dict[CheckpointId, list[CheckpointId]] = {checkpoint.id: [] for checkpoint in going}
    for checkpoint in going:
        for child in catalog.children(checkpoint.id):
            at = None if child in heirs else checkpoint.id
            while at is not None and at in heirs:
                heirs[at].append(child)
                at = parents[at]
    return heirs


def _refuse_protected(context: Context, named: Sequence[Checkpoint]) -> None:
    """Raise `RefusedError` if any of the ``named`` may not be forgotten: with all of those, every reason, and what to
    do about each.
    """
    protections = context.catalog.protections()
    refused = {
        checkpoint.id: hard
        for checkpoint in named
        if (hard := [reason for reason in protections.get(checkpoint.id, ()) if reason.hard])
    }
    if refused:
        raise RefusedError(
            "; ".join(
                f"{checkpoint[:12]} cannot be forgotten: it is {' and '.join(map(str, reasons))}"
                for checkpoint, reasons in refused.items()
            ),
            hint=_hint(context, [reason for reasons in refused.values() for reason in reasons]),
            code="protected",
        )


def _hint(context: Context, reasons: Sequence[Protection]) -> str:
    """How to make it possible to forget checkpoints that are protected by ``reasons``."""
    holding = {reason.workspace for reason in reasons}
    held = [one for one in context.catalog.workspaces() if one.id in holding]
    gone = {one.id: one for one in held if is_missing(one, context.folder_of(one))}
    ways: list[str] = []
    if gone:
        names = ", ".join(display(last_seen_path(workspace.path)) for workspace in gone.values())
        ways.append(f"if you have deleted {names}, `holdfast forget --gone` lets go of it")
    for reason in reasons:
        if reason.kind == "pin":
            ways.append("checkpoints in use can be forgotten after their use")
        elif reason.kind == "session":
            ways.append(
                f"`holdfast session delete {reason.by}` deletes the session if you no longer need it; "
                "or go on in it, and its own old states go in time"
            )
        elif reason.workspace in gone:
            continue
        elif reason.kind == "head":
            ways.append(f"save a change in {reason.by}, or restore another checkpoint there, so that it stands on that")
        else:
            ways.append(
                f"delete the fork {reason.by} if you need it no more; then `holdfast forget --gone` lets go of it"
            )
    return "; ".join(dict.fromkeys(ways))
