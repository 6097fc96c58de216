"""Writing checkpoints with their ancestors to one file, which another store can take in."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO

from holdfast.engine.upkeep._bundle_format import BundleHead, BundleWriter, CheckpointRecord
from holdfast.model.content import SMALL_BLOB_BYTES, whole
from holdfast.model.entries import Entry
from holdfast.model.errors import RefusedError, StorageError, UsageError
from holdfast.model.paths import TEMPORARY_PREFIX, display
from holdfast.store.manifests.page_codec import Leaf, decode_known_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId, Hash

_PIN_SECONDS = 24 * 3600
_BATCH = 256


def export_bundle(context: Context, checkpoints: Sequence[CheckpointId], file: bytes) -> list[CheckpointId]:
    """Write ``checkpoints`` and all their ancestors to ``file``; returns the ids of all that it holds, parents first.

    The file appears under its name only when it is whole and synced, with mode 0600; an existing one is replaced.
    Raises `UsageError` without a checkpoint, `NotFoundError`, `StorageError`, and `IntegrityError` for content that is
    damaged: the target is then as it was.
    """
    if not checkpoints:
        raise UsageError("name at least one checkpoint to export")
    wanted = list(dict.fromkeys(checkpoints))
    # A read-only home forgets nothing, so it needs no pins.
    pins = [] if context.catalog.database.read_only else [_pin(context, checkpoint) for checkpoint in wanted]
    try:
        records = _records(context, wanted)
        pages, contents = _reach(context, records)
        small = {name: size for name, size in contents.items() if size <= SMALL_BLOB_BYTES}
        head = BundleHead(
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


def _record(context: Context, checkpoint: Checkpoint) -> CheckpointRecord:
    missed = context.catalog.not_captured(checkpoint.id)
    return CheckpointRecord(
        checkpoint.id,
        checkpoint.parent,
        checkpoint.root,
        checkpoint.kind,
        list(checkpoint.labels),
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
    """A file that gets its name when the block succeeds; after a failure nothing remains."""

    def __init__(self, context: Context, path: bytes) -> None:
        self._path = path
        self._folder = os.path.dirname(path) or b"."
        self._temporary = self._folder + b"/" + TEMPORARY_PREFIX + context.random(8).hex().encode()
        self._file: BinaryIO | None = None

    def __enter__(self) -> BinaryIO:
        if os.path.lexists(self._path):
            raise RefusedError(f"{display(self._path)} exists already", hint="name a new file, or delete that one")
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
