"""Carrying checkpoints with their ancestors from one store to another, in one file."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, cast

from holdfast.engine.bundle_check import Checker, Spool
from holdfast.engine.bundle_format import BundleReader, BundleWriter, Head, Large, Record
from holdfast.engine.upkeep import make_room, make_room_for
from holdfast.model.checkpoint import Checkpoint, Provenance
from holdfast.model.entries import Counts, Entry, NotCaptured, count_changes
from holdfast.model.errors import (
    IntegrityError,
    NotFoundError,
    RefusedError,
    StorageError,
    UsageError,
)
from holdfast.model.ids import CheckpointId, Hash, new_pack_id
from holdfast.model.paths import TEMPORARY_PREFIX, display
from holdfast.model.sinks import SMALL_BLOB_BYTES, whole
from holdfast.store.pages import Leaf, decode_known_page
from holdfast.store.records import VanishedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.context import Context
    from holdfast.store.blobs import BlobWriter, Written

_PIN_SECONDS = 24 * 3600
_BATCH = 256
_TRIES = 3


def export_bundle(context: Context, checkpoints: Sequence[CheckpointId], file: bytes) -> list[CheckpointId]:
    """Write ``checkpoints`` and all their ancestors to ``file``; returns the ids of all that it holds, parents first.

    The file appears under its name only when it is whole and synced, with mode 0600; one that was there is
    replaced. Raises `UsageError` without a checkpoint, `NotFoundError`, `StorageError`, and `IntegrityError` for
    content that is damaged: the target is then as it was.
    """
    if not checkpoints:
        raise UsageError("name at least one checkpoint to export")
    wanted = list(dict.fromkeys(checkpoints))
    pins = [_pin(context, checkpoint) for checkpoint in wanted]
    try:
        records = _records(context, wanted)
        pages, contents = _reach(context, records)
        small = {name: size for name, size in contents.items() if size <= SMALL_BLOB_BYTES}
        head = Head(
            [_record(context, checkpoint) for checkpoint in records],
            list(wanted),
            len(pages),
            sum(pages.values()),
            len(contents),
            sum(contents.values()),
        )
        with _replacing(context, file) as out:
            writer = BundleWriter(out)
            writer.head(head)
            writer.packs("pages", _page_data(context, list(pages)))
            writer.packs("blobs", _content(context, small))
            for name, size in contents.items():
                if size > SMALL_BLOB_BYTES:
                    (content,) = context.store.reader.fetch([_entry(name, size)])
                    writer.large(name, size, [content] if isinstance(content, bytes) else content)
            writer.end()
    finally:
        for pin in pins:
            context.catalog.unpin(pin)
    return [checkpoint.id for checkpoint in records]


def _pin(context: Context, checkpoint: CheckpointId) -> int:
    root = context.catalog.checkpoint(checkpoint).root
    expires = context.clock.now() + _PIN_SECONDS * 1_000_000
    return context.catalog.pin(root, "export", checkpoint=checkpoint, expires_at=expires)


def _records(context: Context, wanted: Sequence[CheckpointId]) -> list[Checkpoint]:
    """The checkpoints and their ancestors, each once, parents first."""
    found: dict[CheckpointId, Checkpoint] = {}
    for checkpoint in wanted:
        line: list[Checkpoint] = []
        for name in (checkpoint, *context.catalog.ancestors(checkpoint)):
            if name in found:
                break
            line.append(context.catalog.checkpoint(name))
        found.update((one.id, one) for one in reversed(line))
    return list(found.values())


def _record(context: Context, checkpoint: Checkpoint) -> Record:
    missed = context.catalog.not_captured(checkpoint.id)
    return Record(
        checkpoint.id,
        checkpoint.parent,
        checkpoint.root,
        checkpoint.kind,
        checkpoint.label,
        checkpoint.created_at,
        *checkpoint.provenance,
        [(one.path, one.reason) for one in missed],
    )


def _reach(context: Context, checkpoints: Sequence[Checkpoint]) -> tuple[dict[Hash, int], dict[Hash, int]]:
    """Every page of their manifests, children first, and every content, each with its size."""
    levels: dict[Hash, tuple[int, int]] = {}
    contents: dict[Hash, int] = {}
    for checkpoint in checkpoints:
        names = [checkpoint.root] if checkpoint.root not in levels else []
        while names:
            below: dict[Hash, None] = {}
            for at in range(0, len(names), _BATCH):
                some = names[at : at + _BATCH]
                for name, data in zip(some, _read_pages(context, some), strict=True):
                    page = decode_known_page(data)
                    levels[name] = (page.level, len(data))
                    if isinstance(page, Leaf):
                        contents.update((entry.hash, entry.size) for entry in page.entries())
                    else:
                        below.update((child, None) for child in page.hashes if child not in levels)
            names = list(below)
    return {name: size for name, (_, size) in sorted(levels.items(), key=lambda item: item[1][0])}, contents


def _read_pages(context: Context, names: Sequence[Hash]) -> list[bytes]:
    found = context.store.reader.read_many(names)
    return [found[name] for name in names]


def _page_data(context: Context, names: Sequence[Hash]) -> Iterator[tuple[Hash, bytes]]:
    for at in range(0, len(names), _BATCH):
        some = names[at : at + _BATCH]
        yield from zip(some, _read_pages(context, some), strict=True)


def _content(context: Context, contents: dict[Hash, int]) -> Iterator[tuple[Hash, bytes]]:
    entries = (_entry(name, size) for name, size in contents.items())
    for name, content in zip(contents, context.store.reader.fetch(entries), strict=True):
        yield name, whole(content)


def _entry(name: Hash, size: int) -> Entry:
    return Entry(name, size, 0o100600)


class _replacing:  # noqa: N801 - reads as a statement
    """A file that takes its name when the block ends well, and leaves nothing when it does not."""

    def __init__(self, context: Context, path: bytes) -> None:
        self._path = path
        self._folder = os.path.dirname(path) or b"."
        self._temporary = self._folder + b"/" + TEMPORARY_PREFIX + context.random(8).hex().encode()
        self._file: BinaryIO | None = None

    def __enter__(self) -> BinaryIO:
        if os.path.lexists(self._path):
            raise RefusedError(
                f"{display(self._path)} is there already, and would be lost", hint="name a new file, or delete that one"
            )
        try:
            descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot write {display(self._path)}: {error.strerror}") from error
        self._file = os.fdopen(descriptor, "wb")
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        assert self._file is not None
        try:
            with closing(self._file) as file:
                if error is None:
                    file.flush()
                    os.fsync(file.fileno())
            if error is None:
                os.rename(self._temporary, self._path)
                folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
                return
        except OSError as failed:
            self._remove()
            raise StorageError(f"cannot write {display(self._path)}: {failed.strerror}") from failed
        self._remove()
        if isinstance(error, OSError):
            raise StorageError(f"cannot write {display(self._path)}: {error.strerror}") from error

    def _remove(self) -> None:
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            pass


def import_bundle(context: Context, file: bytes) -> list[CheckpointId]:
    """Take the checkpoints of the bundle ``file`` in, as this workspace's; returns their ids, parents first.

    The file is hostile until all of it has been verified, and until then nothing of it is visible. Those that are here
    already are left as they are, so that repeating an import that was cut short finishes it. No head is moved.

    Raises `NotFoundError` for a missing file, `FormatError` or `IntegrityError` for one that is not sound,
    `RefusedError` (code ``different``) if it says something else of an id that is known here, `QuotaError` if it is
    larger than the store may become, `StorageError`.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _import_once(context, file)
        except VanishedError:
            # Collection has just deleted content that was stored for a later checkpoint, or that was here.
            if not left:
                raise
    raise AssertionError("unreachable")


def _import_once(context: Context, file: bytes) -> list[CheckpointId]:
    writer = None
    try:
        with _opened(file) as source, tempfile.TemporaryFile(dir=context.folder) as spool:
            reader = BundleReader(source)
            head = reader.head()
            new = [record for record in head.checkpoints if not _is_here(context, record)]
            if new:
                make_room(context, os.fstat(source.fileno()).st_size)
            writer = context.store.writer()
            checker = Checker(head, Spool(cast("BinaryIO", spool)))
            _take_in(reader, checker, writer)
            if new:
                written = writer.finish()
                make_room_for(context, written, head.page_bytes)
                with context.lock():
                    roots = {record.id: Hash(record.root) for record in head.checkpoints}
                    for number, record in enumerate(new):
                        _commit(context, checker, record, roots, written if not number else None)
    except OSError as error:
        raise StorageError(f"cannot import {display(file)}: {error.strerror}") from error
    finally:
        if writer is not None:
            writer.abort()
    return [CheckpointId(record.id) for record in head.checkpoints]


def _opened(file: bytes) -> BinaryIO:
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {display(file)}", code="no_such_path") from None


def _is_here(context: Context, record: Record) -> bool:
    try:
        known = context.catalog.checkpoint(CheckpointId(record.id))
    except NotFoundError:
        return False
    said = (record.root, record.created_at, record.author, record.message, record.command)
    if (known.root, known.created_at, *known.provenance) != said:
        raise RefusedError(
            f"the bundle has another checkpoint {record.id} than the one that is here: nothing was imported",
            code="different",
            hint="the bundle is damaged or forged; a checkpoint's id is never used for two states",
        )
    return True


def _take_in(reader: BundleReader, checker: Checker, writer: BlobWriter) -> None:
    """Verify all of a bundle and give its contents to ``writer``."""
    manifests_checked = False
    for item in reader.items():
        if not isinstance(item, Large) and item.kind == "pages":
            checker.page(item.hash, item.data)
            continue
        if not manifests_checked:
            checker.manifests()
            manifests_checked = True
        if isinstance(item, Large):
            checker.content(item.hash, item.size)
            stored, size = writer.add_stream(item.pieces)
        else:
            checker.content(item.hash, len(item.data))
            stored, size = writer.add(item.data), len(item.data)
        if stored != item.hash or (isinstance(item, Large) and size != item.size):
            raise IntegrityError(f"bundle: content {item.hash.hex()} has another hash")
    if not manifests_checked:
        checker.manifests()
    checker.complete()


def _commit(
    context: Context, checker: Checker, record: Record, roots: dict[str, Hash], written: Written | None
) -> None:
    """Commit one checkpoint of a verified bundle; ``written`` is what was stored for all of them, with the first."""
    from holdfast.store.blobs import write_pages
    from holdfast.store.changeset import encode_changeset
    from holdfast.store.records import CheckpointCommit, pages_key

    store, catalog = context.store, context.catalog
    root = Hash(record.root)
    new, shared, contents = _new_pages(context, checker, root)
    identity = CheckpointId(record.id)
    pages = write_pages(
        store.objects,
        pages_key(catalog.name, identity),
        new_pack_id(context.random),
        [(name, data, None) for name, data in zip(new, checker.spool.read(new), strict=True)],
        store.reader.read_bases,
    )
    changes = None if record.parent is None else checker.changes(roots[record.parent], root)
    files, size = checker.totals(root)
    blobs = [*(written.blobs if written else ()), *pages.blobs]
    stored = pages.stored_bytes + (written.stored_bytes if written else 0)
    catalog.commit(
        CheckpointCommit(
            checkpoint=Checkpoint(
                id=identity,
                workspace=context.workspace.id,
                parent=None if record.parent is None else CheckpointId(record.parent),
                root=root,
                kind="import",
                label=record.label,
                created_at=record.created_at,
                changes=Counts(added=files) if changes is None else count_changes(changes),
                total_files=files,
                total_bytes=size,
                new_blobs=sum(1 for blob in blobs if blob.kind == "blob"),
                stored_bytes=stored,
                not_captured=len(record.not_captured),
                provenance=Provenance(record.author, record.message, record.command),
            ),
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


def _new_pages(context: Context, checker: Checker, root: Hash) -> tuple[list[Hash], set[Hash], set[Hash]]:
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
