"""Saves a plain dictionary of files as a checkpoint, straight into a store: for tests without a tree and an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.checkpoint import Checkpoint, HistoryEvent
from holdfast.model.content import whole
from holdfast.model.entries import Counts, Entry, count_changes, file_entry
from holdfast.model.ids import WorkspaceId, new_checkpoint_id, new_pack_id
from holdfast.store.blobs.content_writer import write_pages
from holdfast.store.catalog_records import (
    CheckpointCommit,
    Cursor,
    VanishedError,
    WorkspaceRow,
    pages_key,
)
from holdfast.store.codecs.changeset import encode_changeset
from holdfast.store.manifests import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.model.checkpoint import Kind
    from holdfast.model.clock import Clock
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.store import Store

Files = dict[bytes, bytes]


class Saver:
    """One workspace of ``store``, that need not be any directory."""

    def __init__(self, store: Store, workspace: WorkspaceId, clock: Clock, random: Callable[[int], bytes]) -> None:
        self.store = store
        self.workspace = workspace
        self._clock = clock
        self._random = random

    def create(self, path: bytes, source: CheckpointId | None = None) -> None:
        """Add the workspace to the catalog."""
        now = self._clock.now()
        self.store.catalog.add_workspace(WorkspaceRow(self.workspace, path, 1, 1, now, source, live=True))

    def save(
        self,
        files: Mapping[bytes, bytes],
        *,
        kind: Kind = "manual",
        label: str = "",
        parent: CheckpointId | None = None,
        before_commit: Callable[[], object] = lambda: None,
    ) -> CheckpointId:
        """Save ``files`` as the workspace's next checkpoint; retried, storing everything anew, while blobs vanish.

        ``parent`` is the source of a fork's first checkpoint. ``before_commit`` is called between storing and
        committing, for any actions of others.
        """
        for _ in range(1000):
            commit = self.prepare(files, kind=kind, label=label, parent=parent)
            before_commit()
            try:
                self.store.catalog.commit(commit)
            except VanishedError:
                continue
            return commit.checkpoint.id
        raise AssertionError("blobs vanished a thousand times")

    def prepare(
        self,
        files: Mapping[bytes, bytes],
        *,
        kind: Kind = "manual",
        label: str = "",
        parent: CheckpointId | None = None,
    ) -> CheckpointCommit:
        """Store blobs and pages; only the commit is left."""
        store, catalog = self.store, self.store.catalog
        cursor = catalog.cursor(self.workspace)
        before_id = cursor.head or parent
        above = catalog.checkpoint(before_id) if before_id else None
        before = dict(manifest.iterate(store.pages, above.root)) if above else {}
        writer = store.writer()
        try:
            entries = self._entries(files, before, writer.add)
            written = writer.finish()
        except BaseException:
            writer.abort()
            raise
        if above is None:
            built = manifest.build(sorted(entries.items()))
            changes = None
        else:
            gone: dict[bytes, Entry | None] = dict.fromkeys(before.keys() - entries.keys())
            built = manifest.update(store.pages, above.root, {**gone, **entries})
            changes = manifest.diff(store.pages_with(built.new_pages), above.root, built.root)
        name = new_checkpoint_id(self._random)
        shared = catalog.known(built.new_pages, pages=True)
        pages = [(page, data, built.previous.get(page)) for page, data in built.new_pages.items() if page not in shared]
        key, pack = pages_key(store.tenant, name), new_pack_id(self._random)
        stored = write_pages(store.objects, key, pack, pages, store.read_bases)
        fresh: set[Hash] = {blob.hash for blob in written.blobs}
        if changes is None:
            named = {entry.hash for entry in entries.values()}
            counts = Counts(len(entries), 0, 0)
        else:
            named = {change.after.hash for change in changes if change.after is not None}
            counts = count_changes(changes)
        now = self._clock.now()
        checkpoint = Checkpoint(
            id=name,
            workspace=self.workspace,
            parent=above.id if above else None,
            root=built.root,
            kind=kind,
            labels=(label,) if label else (),
            created_at=now,
            changes=counts,
            total_files=built.files,
            total_bytes=built.bytes,
            new_blobs=len(fresh),
            stored_bytes=written.stored_bytes + stored.stored_bytes,
            not_captured=0,
        )
        return CheckpointCommit(
            checkpoint=checkpoint,
            changeset=None if changes is None else encode_changeset(changes),
            not_captured=(),
            packs=[*written.packs, *stored.packs],
            blobs=[*written.blobs, *stored.blobs],
            relied_on=frozenset(named - fresh) | written.relied_on | shared,
            expected=cursor,
            event=HistoryEvent(0, now, "fork" if kind == "fork" else "checkpoint", name, cursor.position),
        )

    def cursor(self) -> Cursor:
        """The cursor of the workspace."""
        return self.store.catalog.cursor(self.workspace)

    def _entries(
        self, files: Mapping[bytes, bytes], before: Mapping[bytes, Entry], add: Callable[[bytes, Hash | None], Hash]
    ) -> dict[bytes, Entry]:
        entries: dict[bytes, Entry] = {}
        for path, content in files.items():
            earlier = before.get(path)
            entries[path] = file_entry(add(content, earlier.hash if earlier else None), len(content), 0o644)
        return entries


def load(store: Store, checkpoint: CheckpointId) -> Files:
    """The files of a checkpoint, every byte verified."""
    found: list[tuple[bytes, Entry]] = list(manifest.iterate(store.pages, store.catalog.checkpoint(checkpoint).root))
    contents = store.reader.fetch(entry for _, entry in found)
    return {path: whole(content) for (path, _), content in zip(found, contents, strict=True)}
