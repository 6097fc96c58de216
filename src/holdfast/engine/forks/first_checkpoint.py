"""Where the history of a fork begins: at a checkpoint of its own, with the content of the one that it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.checkpoint import Checkpoint
from holdfast.model.entries import Counts
from holdfast.model.ids import new_checkpoint_id
from holdfast.store.changeset import encode_changeset
from holdfast.store.records import CheckpointCommit, HistoryEvent

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import CheckpointId


def first_checkpoint(context: Context, source: Checkpoint) -> CheckpointId:
    """Commit the first checkpoint of the fork ``context``, whose content is that of ``source``; its id. Idempotent."""
    cursor = context.catalog.cursor(context.workspace.id)
    if cursor.head is not None:
        return cursor.head
    first = Checkpoint(
        id=new_checkpoint_id(context.random),
        workspace=context.workspace.id,
        parent=source.id,
        root=source.root,
        kind="fork",
        label="",
        created_at=context.clock.now(),
        changes=Counts(),
        total_files=source.total_files,
        total_bytes=source.total_bytes,
        new_blobs=0,
        stored_bytes=0,
        not_captured=0,
    )
    context.catalog.commit(
        CheckpointCommit(
            checkpoint=first,
            changeset=encode_changeset([]),
            not_captured=[],
            packs=[],
            blobs=[],
            relied_on=frozenset((source.root,)),
            expected=cursor,
            event=HistoryEvent(0, first.created_at, "fork", first.id, None, undo_seq=context.undo_seq()),
        )
    )
    return first.id
