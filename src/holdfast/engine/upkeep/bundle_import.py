"""Taking in the checkpoints of a bundle, which is hostile until all of it has been verified."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

from holdfast.engine.history.checkpoint import make_room, make_room_for
from holdfast.engine.upkeep._bundle_check import BundleChecker, PageSpool
from holdfast.engine.upkeep._bundle_format import BundleReader, LargeItem
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.entries import Counts, NotCaptured, count_changes
from holdfast.model.errors import IntegrityError, NotFoundError, RefusedError, StorageError
from holdfast.model.ids import CheckpointId, Hash, new_pack_id
from holdfast.model.paths import display
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import VanishedError, last_seen_path

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.engine.opening.context import Context
    from holdfast.engine.upkeep._bundle_format import CheckpointRecord
    from holdfast.store.blobs.content_writer import BlobWriter, WrittenBlobs

_TRIES = 3


def import_bundle(context: Context, file: bytes) -> list[CheckpointId]:
    """Import the checkpoints of the bundle ``file`` into this workspace; returns their ids, parents first.

    The file is hostile until all of it is verified, and nothing of it is visible before that. Checkpoints that exist
    already stay as they are, so repeating an interrupted import finishes it. No head is moved.

    Raises `NotFoundError` for a missing file, `FormatError` or `IntegrityError` for an invalid one, `RefusedError`
    (code ``different``) if an id has another state here, or (``other_workspace``) is in another workspace of this home,
    `QuotaError` if it is larger than the store may become, `LockedError` while another import into this store goes on,
    `StorageError`.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _import_once(context, file)
        except VanishedError:
            # Collection has just deleted content that was stored for a later checkpoint, or that was here.
            if not left:
                raise
    raise AssertionError("unreachable")


def check_bundle_head(file: bytes) -> None:
    """Raise what `import_bundle` does for a file that is missing, or no bundle by its head."""
    with _opened(file) as source:
        BundleReader(source).head()


def _import_once(context: Context, file: bytes) -> list[CheckpointId]:
    writer = None
    try:
        with _opened(file) as source, tempfile.TemporaryFile(dir=context.folder) as spool:
            reader = BundleReader(source)
            head = reader.head()
            wanted = frozenset(head.wanted)
            new = [record for record in head.checkpoints if not _is_here(context, record, wanted=record.id in wanted)]
            if new:
                make_room(context, os.fstat(source.fileno()).st_size)
            writer = context.store.writer()
            checker = BundleChecker(head, PageSpool(cast("BinaryIO", spool)))
            _read_contents(reader, checker, writer)
            if new:
                written = writer.finish()
                make_room_for(context, written, head.page_bytes)
                with context.lock(), _alone(context):
                    roots = {record.id: Hash(record.root) for record in head.checkpoints}
                    # Another import may have been faster.
                    missing = [one for one in new if not _is_here(context, one, wanted=one.id in wanted)]
                    for number, record in enumerate(missing):
                        _commit(context, checker, record, roots, written if not number else None)
    except OSError as error:
        raise StorageError(f"cannot import {display(file)}: {error.strerror}") from error
    finally:
        if writer is not None:
            writer.abort()
    return [CheckpointId(record.id) for record in head.checkpoints]


@contextmanager
def _alone(context: Context) -> Generator[None]:
    """Keep another import out of the store: that of the same checkpoints writes objects by the same keys."""
    lease = Lease(context.catalog.database, context.catalog.tenant, "import", context.clock)
    lease.acquire()
    try:
        yield
    finally:
        lease.release()


def _opened(file: bytes) -> BinaryIO:
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {display(file)}", code="no_such_path") from None


def _is_here(context: Context, record: CheckpointRecord, *, wanted: bool) -> bool:
    try:
        known = context.catalog.checkpoint(CheckpointId(record.id))
    except NotFoundError:
        return False
    # Its labels and message may have changed since, here or there.
    if (known.root, known.created_at) != (record.root, record.created_at):
        raise RefusedError(
            f"the bundle has another checkpoint {record.id} than this workspace: nothing was imported",
            code="different",
            hint="the bundle is damaged or forged; a checkpoint's id is never used for two states",
        )
    if wanted and known.workspace != context.workspace.id:
        import shlex

        owner = display(last_seen_path(context.catalog.workspace(known.workspace).path))
        raise RefusedError(
            f"checkpoint {record.id[:12]} belongs to {owner} already, and cannot belong to "
            "a second workspace: nothing was imported",
            code="other_workspace",
            hint=f"`holdfast -w {shlex.quote(owner)} fork {record.id[:12]} DIR` makes a workspace of it",
        )
    return True


def _read_contents(reader: BundleReader, checker: BundleChecker, writer: BlobWriter) -> None:
    """Verify all of a bundle and give its contents to ``writer``."""
    manifests_checked = False
    for item in reader.items():
        if not isinstance(item, LargeItem) and item.kind == "pages":
            checker.page(item.hash, item.data)
            continue
        if not manifests_checked:
            checker.manifests()
            manifests_checked = True
        if isinstance(item, LargeItem):
            checker.content(item.hash, item.size)
            stored, size = writer.add_stream(item.pieces)
        else:
            checker.content(item.hash, len(item.data))
            stored, size = writer.add(item.data), len(item.data)
        if stored != item.hash or (isinstance(item, LargeItem) and size != item.size):
            raise IntegrityError(f"bundle: content {item.hash.hex()} has another hash")
    if not manifests_checked:
        checker.manifests()
    checker.complete()


def _commit(
    context: Context,
    checker: BundleChecker,
    record: CheckpointRecord,
    roots: dict[str, Hash],
    written: WrittenBlobs | None,
) -> None:
    """Commit one checkpoint of a verified bundle; the first one's ``written`` has the objects of all of them."""
    from holdfast.store.blobs.content_writer import write_pages
    from holdfast.store.catalog_records import CheckpointCommit, pack_key, pages_key
    from holdfast.store.codecs.changeset import encode_changeset
    from holdfast.store.manifests.checkpoint_header import encode_header, header_of

    store, catalog = context.store, context.catalog
    root = Hash(record.root)
    new, shared, contents = _new_pages(context, checker, root)
    identity = CheckpointId(record.id)
    changes = None if record.parent is None else checker.changes(roots[record.parent], root)
    files, size = checker.totals(root)
    contents_stored = list(written.blobs) if written else []
    point = Checkpoint(
        id=identity,
        workspace=context.workspace.id,
        parent=None if record.parent is None else CheckpointId(record.parent),
        root=root,
        kind="import",
        labels=tuple(record.labels),
        created_at=record.created_at,
        changes=Counts(added=files) if changes is None else count_changes(changes),
        total_files=files,
        total_bytes=size,
        new_blobs=len(contents_stored),
        stored_bytes=written.stored_bytes if written else 0,
        not_captured=len(record.not_captured),
        provenance=Provenance(record.author, record.message, record.command),
    )
    pack, header = new_pack_id(context.random), encode_header(header_of(point, context.workspace.path, is_state=False))
    key = pages_key(catalog.name, identity)
    if not catalog.is_unused(key):
        # The checkpoint was here and was forgotten. Others may need pages of its object, which has its header.
        key, header = pack_key(catalog.name, pack), b""
    pages = write_pages(
        store.objects,
        key,
        pack,
        [(name, data, None) for name, data in zip(new, checker.spool.read(new), strict=True)],
        store.reader.read_bases,
        header=header,
    )
    blobs = [*contents_stored, *pages.blobs]
    catalog.commit(
        CheckpointCommit(
            checkpoint=point._replace(stored_bytes=point.stored_bytes + pages.stored_bytes),
            changeset=None if changes is None else encode_changeset(changes),
            not_captured=[NotCaptured(path, reason) for path, reason in record.not_captured],
            packs=[*(written.packs if written else ()), *pages.packs],
            blobs=blobs,
            relied_on=frozenset(shared | contents | (written.relied_on if written else frozenset()))
            - {blob.hash for blob in blobs},
            expected=catalog.cursor(context.workspace.id),
            event=None,
        )
    )


def _new_pages(context: Context, checker: BundleChecker, root: Hash) -> tuple[list[Hash], set[Hash], set[Hash]]:
    """Of the manifest ``root``: the pages that the store lacks, those below them that it has, the former's contents."""
    new: list[Hash] = []
    shared: set[Hash] = set()
    contents: set[Hash] = set()
    seen = {root}
    level = {root}
    while level:
        known = context.catalog.known(level, pages=True)
        shared |= known
        lacking = sorted(level - known)
        new += lacking
        below, named = checker.children(lacking)
        contents |= named
        level = below - seen
        seen |= below
    return new, shared, contents
