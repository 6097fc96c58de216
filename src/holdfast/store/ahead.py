"""What was read and encoded ahead of a checkpoint, so that it is quicker when it is asked for.

Everything here is named by the hash of its content, and nothing relies on it: what is not here is read and encoded when
it is wanted. Whether what a difference stands on is still stored is for the commit to prove, as with any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.ids import Hash
    from holdfast.store.pack_writer import Item

_MOST_ITEMS = 1024
_MOST_BYTES = 8 << 20
"""Of encoded contents, and as much of pages."""


class Ahead:
    """Encoded contents, and what pages may be differences against: a limited number of each, the first that come."""

    def __init__(self) -> None:
        self.keeping = False
        """True while whatever is read of pages is kept."""
        self.items: dict[Hash, Item] = {}
        """Encoded contents, by their hashes."""
        self.bases: dict[Hash, tuple[Hash, bytes]] = {}
        """By the hash of a page: what a later version of it may be a difference against, and that one's content."""
        self._item_bytes = self._base_bytes = 0

    def add_item(self, item: Item) -> None:
        """Keep an encoded content, if there is room."""
        size = len(item.encoded.data)
        if len(self.items) < _MOST_ITEMS and self._item_bytes + size <= _MOST_BYTES:
            self.items[item.hash] = item
            self._item_bytes += size

    def add_bases(self, bases: Mapping[Hash, tuple[Hash, bytes]]) -> None:
        """Keep what pages may be differences against, if there is room."""
        for page, (root, content) in bases.items():
            if self._base_bytes + len(content) > _MOST_BYTES:
                return
            if page not in self.bases:
                self.bases[page] = root, content
                self._base_bytes += len(content)

    def forget(self) -> None:
        """Keep nothing any more."""
        self.items.clear()
        self.bases.clear()
        self._item_bytes = self._base_bytes = 0
