"""What a checkpoint changed against its parent, and what the parent says of that which cannot be read now."""

from __future__ import annotations

from holdfast.model.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change, Entry
    from holdfast.model.ids import Hash
    from holdfast.store.store import Store


def changes_of(context: Context, checkpoint: Checkpoint) -> list[Change]:
    """The changeset of ``checkpoint``, sorted by path; for one without a parent, everything it holds as added."""
    from holdfast.store import manifest
    from holdfast.store.changeset import decode_changeset

    stored = context.catalog.changeset(checkpoint.id)
    return manifest.diff(context.store.pages, None, checkpoint.root) if stored is None else decode_changeset(stored)


class SavedState:
    """What the stored manifest ``root`` holds: see `holdfast.files.tree.Saved`."""

    def __init__(self, context: Context, root: Hash) -> None:
        self._store = context.store
        self._root = root

    def entries(self, path: bytes) -> Iterator[tuple[bytes, Entry]]:
        """See `Saved.entries`."""
        from holdfast.store import manifest

        return manifest.iterate(self._store.pages, self._root, path)

    def read(self, path: bytes, limit: int) -> bytes | None:
        """See `Saved.read`."""
        return read_saved(self._store, self._root, path, limit)


def read_saved(store: Store, root: Hash, path: bytes, limit: int) -> bytes | None:
    """At most ``limit`` bytes of the file at ``path`` in the manifest ``root``; None if there is no file."""
    from holdfast.store import manifest

    entry = manifest.get(store.pages, root, path)
    if entry is None or entry.is_symlink:
        return None
    content = next(store.reader.fetch((entry,)))
    found = bytearray()
    for piece in (content,) if isinstance(content, bytes) else content:
        found += piece
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def saved_in(context: Context, checkpoint: Checkpoint | None) -> SavedState | None:
    """For `Tree.scan`: what ``checkpoint`` holds; None if there is no checkpoint."""
    return None if checkpoint is None else SavedState(context, checkpoint.root)
