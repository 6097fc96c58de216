"""Working ahead: a watcher reads and encodes what it notices, while no caller waits for it.

Nothing depends on that. The scan of the next checkpoint looks at every file anew, and what it finds is looked up by its
hash; whatever has changed since is read and encoded then, as if nothing had been prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.entries import Entry
from holdfast.model.ids import hash_bytes
from holdfast.store.manifests import manifest
from holdfast.store.objects.object_store import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.opening.context import Context
    from holdfast.files.local_tree import LocalTree
    from holdfast.model.ids import Hash
    from holdfast.store.store import Store

_MOST_BYTES = 64 << 10
"""Larger files are left to the checkpoint: what is written to all the time is often a large one."""
_MOST_CHANGES = 256
"""The pages for more changed files are left to the checkpoint: they would take memory, and callers would wait."""
_FRESH = 4
"""Of the changes one in so many has to be new for their pages to be made once more: all of it is then never more than a
few times the work of the checkpoint."""


def prepare(context: Context, tree: LocalTree, paths: Sequence[bytes], *, last: bool = True) -> None:
    """Encode what the files at ``paths`` hold now, if the last checkpoint knows them, and read the pages above them; if
    these are the ``last`` that have changed so far, also make and encode the pages that come in their place.

    Nothing is written. Where objects are far away, nothing is done: each would be a request.
    """
    store = context.store
    head = context.catalog.cursor(context.workspace.id).head
    if head is None or is_remote(store.objects):
        return
    root = context.catalog.checkpoint(head).root
    if paths:
        _encode(store, tree, root, paths)
    noted = store.ahead.entries
    if last and len(noted) <= _MOST_CHANGES and store.ahead.unforeseen * _FRESH > len(noted):
        with store.caching_bases():
            store.prepare_manifest(root, dict(noted))


def _encode(store: Store, tree: LocalTree, root: Hash, paths: Sequence[bytes]) -> None:
    with store.caching_bases():
        store.page_bases(manifest.pages_on_path(store.pages, root, paths))
    contents: list[tuple[bytes, Hash]] = []
    changed: dict[bytes, Entry] = {}
    for path, entry in manifest.get_many(store.pages, root, paths).items():
        if not entry.is_symlink and (data := tree.peek(path, _MOST_BYTES)) is not None:
            contents.append((data, entry.hash))
            # Its permissions are taken to be what they were.
            changed[path] = Entry(hash_bytes(data), len(data), entry.mode)
    store.encode_ahead(contents)
    store.ahead.note(root, changed)
