"""What is known of a workspace's files, for a whole copy of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.engine.opening.folder import INDEX
from holdfast.files.local import LocalTree
from holdfast.model.errors import StorageError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.model.ids import Hash

_LOG = Log(__name__)


def paths_of(context: Context, root: Hash) -> set[bytes]:
    """The paths in the manifest ``root``. Nothing is read where the workspace's index is of this very manifest."""
    tree = context.tree
    if isinstance(tree, LocalTree) and tree.index.root == root and not tree.index.delta:
        return tree.index.paths()
    from holdfast.store import manifest

    return {path for path, _ in manifest.iterate(context.store.pages, root)}


def inherit_index(source: Context, copy: Context, root: Hash, *, begun: int) -> None:
    """Have the next look at ``copy``, which a provider has just made as a copy of ``source``, read only what is not
    known: if the manifest ``root`` is what was saved of the source last, and the copy was begun after ``begun`` (see
    `inherit`). Nobody works in the copy yet. A failure is logged: the look is slower.
    """
    from holdfast.files.inherited_index import inherit

    tree = source.tree
    if not isinstance(tree, LocalTree) or tree.is_layered:
        return
    tree.save_index()
    try:
        index = inherit(os.path.join(source.folder, INDEX), tree.root, copy.workspace.path, root, begun=begun)
        if index is not None:
            index.save(os.path.join(copy.folder, INDEX))
    except (OSError, StorageError) as error:
        _LOG.info("all files of a copy are read when it is looked at: %s", error)
