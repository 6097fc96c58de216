"""Bringing two lines of work together: where they parted, what either has done since, and the state that comes of it.

The merged state is a checkpoint of its own before anything touches the tree, so that the tree is brought there as by
any restore: undoable, and finished or taken back where it is cut short.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine import threeway
from holdfast.engine.diff import diff
from holdfast.engine.threeway import Side
from holdfast.engine.upkeep import make_room
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.entries import Change, count_changes
from holdfast.model.errors import NotFoundError, RefusedError
from holdfast.model.ids import new_checkpoint_id, new_pack_id
from holdfast.model.named import NamedTuple
from holdfast.model.paths import display
from holdfast.store import manifest
from holdfast.store.records import CheckpointCommit, pages_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.engine.results import RestoreResult
    from holdfast.engine.threeway import Plan, Prefer
    from holdfast.engine.workspace import Workspace
    from holdfast.model.ids import CheckpointId

_MOST_SAID = 4000
"""Characters of a command that a merged state tells of."""


def parted_at(context: Context, ours: CheckpointId, theirs: CheckpointId) -> CheckpointId:
    """The newest checkpoint that both come from. Raises `RefusedError` if there is none, or it was forgotten."""
    catalog = context.catalog
    here = {ours, *catalog.ancestors(ours)}
    found = next((one for one in (theirs, *catalog.ancestors(theirs)) if one in here), None)
    if found is None:
        raise RefusedError(
            "the two have no state in common, so that nobody can tell what either has changed",
            hint="a fork can be merged into what it was forked from, and into that one's other forks",
            code="unrelated",
        )
    return found


def plan_merge(
    context: Context, base: CheckpointId, ours: CheckpointId, theirs: CheckpointId, *, prefer: Prefer | None = None
) -> Plan:
    """What would become of ``ours`` by all that ``theirs`` has done since ``base``. Changes nothing.

    Raises `NotFoundError` for a checkpoint that was forgotten.
    """
    return threeway.plan(_side(context, base, ours), _side(context, base, theirs), prefer=prefer)


def _side(context: Context, base: CheckpointId, target: CheckpointId) -> Side:
    found = diff(context, base, target)
    return Side(found.changes, found.renamed)


def put_together(
    context: Context, ours: CheckpointId, changes: Sequence[Change], provenance: Provenance
) -> CheckpointId:
    """A checkpoint of the workspace with the state ``ours`` and ``changes`` to it. Moves nothing. Needs the lock.

    Durable when it returns. All content that ``changes`` name must be stored: raises `RefusedError` (code ``vanished``)
    if it was collected meanwhile.
    """
    from holdfast.store.blobs import write_pages
    from holdfast.store.changeset import encode_changeset

    store, catalog = context.store, context.catalog
    before = catalog.checkpoint(ours)
    built = manifest.update(store.pages, before.root, {change.path: change.after for change in changes})
    make_room(context, 0)
    identity = new_checkpoint_id(context.random)
    shared = catalog.known(built.new_pages, pages=True)
    pages = [(page, data, built.previous.get(page)) for page, data in built.new_pages.items() if page not in shared]
    written = write_pages(
        store.objects, pages_key(store.tenant, identity), new_pack_id(context.random), pages, store.read_bases
    )
    catalog.commit(
        CheckpointCommit(
            checkpoint=Checkpoint(
                id=identity,
                workspace=context.workspace.id,
                parent=ours,
                root=built.root,
                kind="merge",
                label="",
                created_at=context.clock.now(),
                changes=count_changes(changes),
                total_files=built.files,
                total_bytes=built.bytes,
                new_blobs=0,
                stored_bytes=written.stored_bytes,
                not_captured=0,
                provenance=provenance,
            ),
            changeset=encode_changeset(list(changes)),
            not_captured=[],
            packs=written.packs,
            blobs=written.blobs,
            relied_on=frozenset({change.after.hash for change in changes if change.after is not None} | shared),
            expected=catalog.cursor(context.workspace.id),
            event=None,
        )
    )
    return identity


def provenance(author: str, message: str, command: str = "") -> Provenance:
    """Who has merged what and why, as a record of it can hold that: a command may be long, and no text."""
    return Provenance(author, message, display(os.fsencode(command))[:_MOST_SAID])


class Merged(NamedTuple):
    """What merging did, or (``dry_run``) would do."""

    base: CheckpointId
    """The state since which changes were looked at."""
    ours: CheckpointId
    """The state before."""
    theirs: CheckpointId
    plan: Plan
    restored: RestoreResult | None
    """What happened to the tree; None if nothing did: a dry run, conflicts, or nothing to do."""

    @property
    def done(self) -> bool:
        """True unless something is in conflict."""
        return not self.plan.conflicts


def merge_into(
    workspace: Workspace,
    context: Context,
    base: CheckpointId,
    theirs: CheckpointId,
    provenance: Provenance,
    *,
    prefer: Prefer | None = None,
    dry_run: bool = False,
) -> Merged:
    """Bring what ``theirs`` has done since ``base`` into the tree of the workspace, which ``context`` is of, too.

    The tree is saved first. If anything is in conflict, nothing else happens, and the answer says what. Raises
    `RefusedError` (code ``changed_meanwhile``) if somebody changes the tree meanwhile, and as `Workspace.restore`.
    """
    ours = workspace.checkpoint(kind="auto").checkpoint.id
    plan = plan_merge(context, base, ours, theirs, prefer=prefer)
    restored = None
    if plan.changes and not plan.conflicts and not dry_run:
        with context.lock():
            merged = put_together(context, ours, plan.changes, provenance)
        restored = workspace.restore(merged, expected=ours)
    return Merged(base, ours, theirs, plan, restored)


def still_there(context: Context, checkpoint: CheckpointId, what: str) -> CheckpointId:
    """``checkpoint``, if it was not forgotten; raises `NotFoundError` that says ``what`` it was."""
    try:
        return context.catalog.checkpoint(checkpoint).id
    except NotFoundError:
        raise NotFoundError(
            f"{what} is not kept any more: retention has dropped it",
            hint="states that are to stay are branches, or session checkpoints with a message",
            code="state_gone",
        ) from None
