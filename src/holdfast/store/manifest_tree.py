"""Finding one's way in a manifest: which page of a level holds a path, and what stands before and after it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from holdfast.model.named import NamedTuple
from holdfast.model.typed import TYPE_CHECKING, cast
from holdfast.store.manifest_read import batches, load, load_root, spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

    from holdfast.model.ids import Hash
    from holdfast.store.manifest_read import Pages
    from holdfast.store.pages import Inner, Page


class Node(NamedTuple):
    """A page of a tree, and where it stands on its level."""

    key: bytes
    """Its first path; empty for the leaf of the empty manifest."""
    hash: Hash
    next: bytes | None
    """The key of the next page of the level."""


class Tree:
    """A manifest, with those of its pages that were read so far."""

    def __init__(self, pages: Pages, root: Hash) -> None:
        self._pages = pages
        self.root = load_root(pages, root)
        self.top: Final = Node(next(iter(self.root.keys), b""), root, None)
        self._read: dict[Hash, Page] = {root: self.root}

    def has_read(self, name: Hash) -> bool:
        """True if ``name`` is among the pages that were read."""
        return name in self._read

    def page(self, name: Hash, level: int | None = None) -> Page:
        """The decoded page ``name``, which is of ``level``."""
        page = self._read.get(name)
        if page is None:
            page = self._read[name] = load(self._pages, [name], level)[0]
        return page

    def preload(self, paths: Sequence[bytes]) -> None:
        """Read the pages on the way to ``paths`` (ascending), a level at a time."""
        wanted = [(self.top.hash, 0, len(paths))] if paths else []
        for level in range(self.root.level - 1, -1, -1):
            below: list[tuple[Hash, int, int]] = []
            for name, first, last in wanted:
                page = cast("Inner", self.page(name))
                # Paths before the first key belong into the first child, as does what follows up to the second key.
                spreading = spread(page.keys[1:], paths, first, last)
                below += [(page.hashes[at + 1], begin, end) for at, begin, end in spreading]
            for some in batches([name for name, _, _ in below]):
                self._read.update(zip(some, load(self._pages, some, level), strict=True))
            wanted = below

    def locate(self, level: int, path: bytes) -> Node:
        """The page of ``level`` that holds ``path``, or would. The page itself is not read."""
        node = self.top
        for below in range(self.root.level, level, -1):
            page = cast("Inner", self.page(node.hash, below))
            node = _child(page, max(bisect_right(page.keys, path) - 1, 0), node.next)
        return node

    def before(self, level: int, key: bytes) -> Node | None:
        """The page of ``level`` before the one that has this ``key``; None for the first. It is not read."""
        node = self.top
        if node.key >= key:
            return None
        for below in range(self.root.level, level, -1):
            page = cast("Inner", self.page(node.hash, below))
            node = _child(page, bisect_left(page.keys, key) - 1, node.next)
        return node

    def holds(self, path: bytes) -> bool:
        """True if the manifest has an entry at ``path``."""
        keys = self.page(self.locate(0, path).hash, 0).keys
        at = bisect_left(keys, path)
        return at < len(keys) and keys[at] == path


def _child(page: Inner, at: int, after: bytes | None) -> Node:
    keys = page.keys
    return Node(keys[at], page.hashes[at], keys[at + 1] if at + 1 < len(keys) else after)
