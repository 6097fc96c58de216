"""A checkpoint that is derived from another by changes, for a tree that will be brought to it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.history.checkpoint import make_room
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.entries import Change, count_changes
from holdfast.model.errors import RefusedError
from holdfast.model.ids import new_checkpoint_id, new_pack_id
from holdfast.store.catalog_records import CheckpointCommit, MergeParent, pages_key
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Kind
    from holdfast.model.ids import CheckpointId
    from holdfast.store.blobs.content_writer import WrittenBlobs


def create_derived_checkpoint(
    context: Context,
    ours: CheckpointId,
    changes: Sequence[Change],
    provenance: Provenance,
    *,
    taken_in: MergeParent | None = None,
    content: WrittenBlobs | None = None,
    name: CheckpointId | None = None,
    kind: Kind = "merge",
) -> CheckpointId:
    """A checkpoint of the workspace with the state ``ours`` and ``changes`` to it. Moves nothing. Needs the lock.

    Durable when it returns, together with the record of the line that it has ``taken_in``. ``name`` is its id, for a
    caller that must record the id before anything exists (None: a new one). The contents of ``changes`` must be stored,
    or be in ``content``, which was just written; raises `RefusedError` (code ``vanished``) if one was collected
    meanwhile.
    """
    from holdfast.store.blobs.content_writer import WrittenBlobs, write_pages
    from holdfast.store.codecs.changeset import encode_changeset
    from holdfast.store.manifests.checkpoint_header import encode_header, header_of

    store, catalog = context.store, context.catalog
    before = catalog.checkpoint(ours)
    built = manifest.update(store.pages, before.root, {change.path: change.after for change in changes})
    make_room(context, 0)
    fresh = content or WrittenBlobs([], [], frozenset(), 0)
    identity = name or new_checkpoint_id(context.random)
    shared = catalog.known(built.new_pages, pages=True)
    pages = [(page, data, built.previous.get(page)) for page, data in built.new_pages.items() if page not in shared]
    point = Checkpoint(
        id=identity,
        workspace=context.workspace.id,
        parent=ours,
        root=built.root,
        kind=kind,
        labels=(),
        created_at=context.clock.now(),
        changes=count_changes(changes),
        total_files=built.files,
        total_bytes=built.bytes,
        new_blobs=len(fresh.blobs),
        stored_bytes=fresh.stored_bytes,
        not_captured=0,
        provenance=provenance,
    )
    written = write_pages(
        store.objects,
        pages_key(store.tenant, identity),
        new_pack_id(context.random),
        pages,
        store.read_bases,
        header=encode_header(header_of(point, context.workspace.path, is_state=False, merged=taken_in)),
    )
    catalog.commit(
        CheckpointCommit(
            checkpoint=point._replace(stored_bytes=written.stored_bytes + fresh.stored_bytes),
            changeset=encode_changeset(list(changes)),
            not_captured=[],
            packs=[*fresh.packs, *written.packs],
            blobs=[*fresh.blobs, *written.blobs],
            relied_on=frozenset(
                {change.after.hash for change in changes if change.after is not None}
                - {blob.hash for blob in fresh.blobs}
                | shared
            ),
            expected=catalog.cursor(context.workspace.id),
            event=None,
            merge_parents=taken_in,
            is_apart=True,
        )
    )
    return identity


@contextmanager
def forgotten_if_unreached(context: Context, state: CheckpointId) -> Generator[None]:
    """Around bringing the tree to a derived state: the state is forgotten if nothing of it was written, so that the log
    shows no operation that did not happen.
    """
    try:
        yield
    except RefusedError as error:
        if error.code in ("changed_meanwhile", "left_alone"):
            context.catalog.forget([state])
        raise
