"""A checkpoint written out into an empty directory: the tree of a fork, and the first checkpoint of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.history_writer import HistoryEntry
from holdfast.engine.opening.operation_journal import Operation, remove_operation
from holdfast.model.checkpoint import Checkpoint
from holdfast.model.entries import Change, Counts
from holdfast.model.errors import IntegrityError, RefusedError
from holdfast.model.ids import new_checkpoint_id
from holdfast.model.paths import display
from holdfast.store.blobs.content_supply import StoredContent
from holdfast.store.catalog_records import CheckpointCommit
from holdfast.store.codecs.changeset import encode_changeset
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.opening.context import Context
    from holdfast.files.tree import ApplyResult, Tree
    from holdfast.model.content import Progress
    from holdfast.model.ids import CheckpointId


def write_out(
    context: Context, operation: Operation, progress: Progress | None, *, beside: Tree | None = None
) -> ApplyResult:
    """Write the operation's target into the tree and commit the fork's first checkpoint. Needs the lock; idempotent.

    Large files that are unchanged in ``beside``, the forked tree, share their blocks with it where the file system can.
    """
    source = context.catalog.checkpoint(operation.target)
    pages = context.store.pages
    changes = [Change(path, None, entry) for path, entry in manifest.iterate(pages, source.root)]
    supply = StoredContent(context.store.reader, beside)
    heard = None if progress is None else _with_total(progress, source.total_files)
    try:
        applied = context.tree.apply(
            [], ((change, supply) for change in changes), nonce=operation.nonce, progress=heard
        )
    except IntegrityError:
        _remove_written(context, changes, operation)
        raise
    if applied.skipped:
        path, reason = applied.skipped[0]
        raise RefusedError(
            f"cannot fork into {display(context.workspace.path)}: {display(path)} is in the way ({reason})",
            hint="fork into a directory that does not exist or is empty",
        )
    create_first_checkpoint(context, source)
    context.tree.settle(source.root)
    remove_operation(context.folder, operation)
    return applied


def create_first_checkpoint(context: Context, source: Checkpoint) -> CheckpointId:
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
        labels=(),
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
            event=HistoryEntry("fork").event(context, first.id, first.created_at),
        )
    )
    return first.id


def _remove_written(context: Context, changes: Iterable[Change], operation: Operation) -> None:
    """Remove the files of a fork that can never be finished, and nothing else; the empty directory stays."""
    context.tree.apply([Change(path, after, None) for path, _, after in changes], [], nonce=operation.nonce)
    if context.catalog.cursor(context.workspace.id).head is None:
        remove_operation(context.folder, operation)


def _with_total(progress: Progress, files: int) -> Progress:
    """``progress``, told how many files there are where the tree, which is given them one by one, does not know."""
    return lambda phase, done, total: progress(phase, done, total or files)
