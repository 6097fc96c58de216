"""Homes between which bundles go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import zstandard

from holdfast.engine.opening.context import Context
from holdfast.engine.upkeep._bundle_format import END_MAGIC, BundleHead, CheckpointRecord, encode_head, encode_member
from holdfast.model.checkpoint import Checkpoint, HistoryEvent, Kind, Provenance
from holdfast.model.clock import SystemClock
from holdfast.model.config.settings import Settings
from holdfast.model.entries import Counts, Entry, NotCaptured, count_changes, file_entry
from holdfast.model.ids import CheckpointId, Hash, hash_bytes, new_checkpoint_id, new_pack_id, new_workspace_id
from holdfast.store.blobs.content_writer import write_pages
from holdfast.store.blobs.pack_format import encode_pack
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog_records import CheckpointCommit, WorkspaceRow, pages_key
from holdfast.store.codecs.changeset import encode_changeset
from holdfast.store.codecs.compression import Encoded
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.manifests import manifest
from holdfast.store.manifests.page_codec import encode_leaf
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

State = dict[bytes, bytes]


class Home:
    """A store with one workspace, into which states are committed without a tree on disk."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        folder.mkdir()
        database = SqliteDatabase(
            os.fsencode(folder / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID, timeout=5.0
        )
        objects = open_objects(os.fsencode(folder / "objects"), random=os.urandom)
        self.store = Store(objects, Catalog(database, "local", self.clock))
        workspace = WorkspaceRow(new_workspace_id(os.urandom), b"/w", 1, 2, self.clock.now(), None, live=True)
        self.store.catalog.add_workspace(workspace)
        self.context = Context(
            workspace=workspace,
            make_tree=lambda: cast("Any", None),
            store=self.store,
            settings=Settings(),
            folder=os.fsencode(folder),
            clock=self.clock,
            random=os.urandom,
        )

    def commit(
        self,
        state: State,
        *,
        parent: CheckpointId | None = None,
        labels: tuple[str, ...] = (),
        kind: Kind = "manual",
        missed: tuple[NotCaptured, ...] = (),
    ) -> Checkpoint:
        catalog = self.store.catalog
        cursor = catalog.cursor(self.context.workspace.id)
        above = cursor.head if parent is None else parent
        writer = self.store.writer()
        entries: dict[bytes, Entry] = {}
        for path, data in sorted(state.items()):
            size = len(data)
            entries[path] = file_entry(writer.add_stream([data])[0], size, 0o755 if path.endswith(b".sh") else 0o644)
        written = writer.finish()
        built = manifest.build(iter(entries.items()))
        identity = new_checkpoint_id(os.urandom)
        shared = catalog.known(built.new_pages, pages=True)
        fresh = [(name, data, None) for name, data in built.new_pages.items() if name not in shared]
        key = pages_key(catalog.name, identity)
        pages = write_pages(self.store.objects, key, new_pack_id(os.urandom), fresh, self.store.reader.read_bases)
        before = None if above is None else catalog.checkpoint(above).root
        overlay = self.store.pages_with(built.new_pages)
        changes = None if before is None else manifest.diff(overlay, before, built.root)
        point = Checkpoint(
            id=identity,
            workspace=self.context.workspace.id,
            parent=above,
            root=built.root,
            kind=kind,
            labels=labels,
            created_at=self.clock.now(),
            changes=Counts(added=len(entries)) if changes is None else count_changes(changes),
            total_files=built.files,
            total_bytes=built.bytes,
            new_blobs=len(written.blobs),
            stored_bytes=written.stored_bytes + pages.stored_bytes,
            not_captured=len(missed),
            provenance=Provenance("somebody", "a reason", "make"),
        )
        catalog.commit(
            CheckpointCommit(
                checkpoint=point,
                changeset=None if changes is None else encode_changeset(changes),
                not_captured=missed,
                packs=[*written.packs, *pages.packs],
                blobs=[*written.blobs, *pages.blobs],
                relied_on=written.relied_on | shared,
                expected=cursor,
                event=HistoryEvent(0, point.created_at, "checkpoint", identity, cursor.position),
            )
        )
        return point

    def state(self, checkpoint: CheckpointId) -> State:
        root = self.store.catalog.checkpoint(checkpoint).root
        listed = list(manifest.iterate(self.store.pages, root))
        contents = self.store.reader.fetch([entry for _, entry in listed])
        return {
            path: content if isinstance(content, bytes) else b"".join(content)
            for (path, _), content in zip(listed, contents, strict=True)
        }

    def ids(self) -> list[CheckpointId]:
        return [checkpoint.id for checkpoint in self.store.catalog.checkpoints()]

    def assert_sound(self) -> None:
        found = self.store.verifier().verify(read_data=True)
        assert not found.problems, found.problems


ID = CheckpointId("0123456789abcdef01234567")

Member = tuple[bytes, bytes]


def write(folder: Path, members: list[Member], *, tail: bytes = b"", end: bool = True) -> bytes:
    """A bundle of these members with a right end."""
    summed = b"".join(name + b"\0" + len(data).to_bytes(8, "little") + data for name, data in members)
    if end:
        members = [*members, (b"end", END_MAGIC + hash_bytes(summed))]
    tar = b"".join(encode_member(name, len(data)) + data + bytes(-len(data) % 512) for name, data in members)
    file = folder / "hostile"
    file.write_bytes(zstandard.ZstdCompressor().compress(tar + bytes(1024)) + tail)
    return os.fsencode(file)


def pack(*contents: bytes) -> bytes:
    return encode_pack([(hash_bytes(data), len(data), Encoded(0, data), None) for data in contents])


def record(root: Hash, identity: str = ID, parent: str | None = None, **fields: Any) -> CheckpointRecord:
    return CheckpointRecord(identity, parent, root, "manual", [], 1, "", "", "", [])._replace(**fields)


def head(records: list[CheckpointRecord], pages: list[bytes], contents: list[bytes]) -> Member:
    sizes = (len(pages), sum(map(len, pages)), len(contents), sum(map(len, contents)))
    return b"bundle", encode_head(BundleHead(records, [records[-1].id], *sizes))


def small(records: list[CheckpointRecord], pages: list[bytes], contents: list[bytes]) -> list[Member]:
    members = [head(records, pages, contents), (b"pages/000000.pack", pack(*pages))]
    return [*members, (b"blobs/000000.pack", pack(*contents))] if contents else members


def leaf(**files: bytes) -> bytes:
    entries = {path.encode(): file_entry(hash_bytes(data), len(data), 0o644) for path, data in files.items()}
    return encode_leaf(list(entries), list(entries.values()))


def forged(state: State, identity: str = ID) -> list[Member]:
    page = leaf(**{path.decode(): data for path, data in state.items()})
    return small([record(hash_bytes(page), identity)], [page], list(state.values()))
