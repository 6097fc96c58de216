"""Working ahead: a watcher reads and encodes what it notices, while nobody waits for it.

Nothing depends on that. The scan of the next checkpoint looks at every file anew, and what it finds is looked up by its
hash; whatever has changed since is read and encoded then, as if nothing had been prepared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store import manifest
from holdfast.store.objects import is_far

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.context import Context
    from holdfast.files.local import LocalTree
    from holdfast.model.ids import Hash

_MOST_BYTES = 64 << 10
"""Larger files are left to the checkpoint: what is written to all the time is often a large one."""


def prepare(context: Context, tree: LocalTree, paths: Sequence[bytes]) -> None:
    """Encode what the files at ``paths`` hold now, if the last checkpoint knows them, and read the pages above them.

    Nothing is written. Where objects are far away, nothing is done: each would be a request.
    """
    store = context.store
    head = context.catalog.cursor(context.workspace.id).head
    if head is None or not paths or is_far(store.objects):
        return
    root = context.catalog.checkpoint(head).root
    with store.keeping_ahead():
        store.page_bases(manifest.on_the_way(store.pages, root, paths))
    contents: list[tuple[bytes, Hash]] = []
    for path, entry in manifest.get_many(store.pages, root, paths).items():
        if not entry.is_symlink and (data := tree.peek(path, _MOST_BYTES)) is not None:
            contents.append((data, entry.hash))
    store.encode_ahead(contents)
