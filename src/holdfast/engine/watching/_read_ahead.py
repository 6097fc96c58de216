"""Working ahead: a watcher reads and encodes changed files while no caller waits.

Correctness does not depend on it. The next checkpoint's scan looks at every file anew, and finds prepared contents by
their hash; files that changed since are read and encoded then.
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
"""Larger files are left to the checkpoint: they are often files that change all the time."""
_MOST_CHANGES = 256
"""The pages for more changed files are left to the checkpoint: they would take memory, and callers would wait."""
_FRESH = 4
"""Pages are prepared again only if one in so many changes is new: so preparing costs at most a few times the work of
the checkpoint.
"""


def prepare(context: Context, tree: LocalTree, paths: Sequence[bytes], *, last: bool = True) -> None:
    """Encode the present contents of the files at ``paths`` that the last checkpoint has, and read the pages above
    them; if these are the ``last`` changes so far, also build and encode the new pages.

    Writes nothing. Does nothing for remote objects: each would be a request.
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
            # Its permissions are assumed to be unchanged.
            changed[path] = Entry(hash_bytes(data), len(data), entry.mode)
    store.encode_ahead(contents)
    store.ahead.note(root, changed)
