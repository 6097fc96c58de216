"""Finding changes in a tree that the kernel does not report on: by comparison with the last scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.history.status import scan_tree
from holdfast.engine.opening.context import checkpoint_changes
from holdfast.model.errors import FormatError, IntegrityError, NotFoundError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.entries import Change
    from holdfast.model.ids import Hash

_LOG = Log(__name__)


class TreeComparison:
    """Finds the changes since its last comparison; at first, since the last checkpoint. For one thread at a time.

    Between two comparisons it keeps a manifest's root, and those of its pages that are not stored.
    """

    def __init__(self, context: Context, tell: Callable[[Iterable[bytes] | None], None]) -> None:
        """``tell`` gets the paths, or None if it cannot tell which."""
        self._context = context
        self._tell = tell
        self._known = False
        self._root: Hash | None = None
        self._pages: Mapping[Hash, bytes] = {}

    def compare(self) -> None:
        """Look at the tree. Needs the workspace's lock; raises what `scan_tree` does."""
        with self._context.lock():
            now = scan_tree(self._context)
        if not self._known:
            self._known, self._root = True, None if now.head is None else now.head.root
        self._compare(now.root, now.new_pages)
        self._root, self._pages = now.root, now.new_pages

    def saved(self, checkpoint: Checkpoint) -> None:
        """The tree was examined by saving it."""
        if self._known:
            self._compare(checkpoint.root, {})
            self._root, self._pages = checkpoint.root, {}
        else:
            self._told(lambda: checkpoint_changes(self._context, checkpoint))

    def forget(self) -> None:
        """Remember nothing: who asks next begins at the last checkpoint again."""
        self._known, self._root, self._pages = False, None, {}

    def _compare(self, root: Hash, new_pages: Mapping[Hash, bytes]) -> None:
        from holdfast.store.manifests import manifest

        pages = self._context.store.pages_with({**self._pages, **new_pages})
        self._told(lambda: manifest.diff(pages, self._root, root))

    def _told(self, changes: Callable[[], list[Change]]) -> None:
        try:
            paths = [change.path for change in changes()]
        except (IntegrityError, FormatError, NotFoundError) as error:
            # The last state may have been forgotten and collected since.
            _LOG.info("cannot tell the changes: %s", error.message)
            self._tell(None)
        else:
            if paths:
                self._tell(paths)
