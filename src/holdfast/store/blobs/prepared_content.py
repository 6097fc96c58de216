"""Content that was read and encoded in advance, so that the next checkpoint is quicker.

Everything here is identified by the hash of its content, and nothing depends on it: missing content is read and encoded
on demand. The commit verifies that the base of a delta is still stored, as for any other.
"""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.blobs._pack_writer import PackItem
    from holdfast.store.manifests.builder import BuiltManifest

_MOST_ITEMS = 1024
_MOST_BYTES = 8 << 20
"""Of encoded contents, and as much of pages."""


class _PreparedManifest(NamedTuple):
    """The manifest ``root`` with ``changes`` made to it."""

    root: Hash
    changes: Mapping[bytes, Entry | None]
    built: BuiltManifest


class PreparedContent:
    """Encoded contents and pages, and what pages may be differences against: a limited number of each, the first that
    come; and one manifest that may be wanted.
    """

    def __init__(self) -> None:
        self.keeping = False
        """True while all pages that are read are kept."""
        self.items: dict[Hash, PackItem] = {}
        """Encoded contents, by their hashes."""
        self.bases: dict[Hash, tuple[Hash, bytes]] = {}
        """By the hash of a page: what a later version of it may be a difference against, and that one's content."""
        self.pages: dict[Hash, PackItem] = {}
        """Encoded pages of the manifest that was foreseen last, by their hashes."""
        self.entries: dict[bytes, Entry] = {}
        """The expected entries of the paths of `entries_of`, as far as they were read."""
        self.entries_of: Hash | None = None
        """The manifest that they differ from."""
        self.unforeseen = 0
        """How often one of them was noted since a manifest was foreseen."""
        self._foreseen: _PreparedManifest | None = None
        self._item_bytes = self._base_bytes = 0

    def add_item(self, item: PackItem) -> None:
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

    def note(self, root: Hash, entries: Mapping[bytes, Entry]) -> None:
        """Note what the manifest ``root`` will have at some paths."""
        if self.entries_of != root:
            self.entries.clear()
            self.entries_of = root
        self.entries.update(entries)
        self.unforeseen += len(entries)

    def add_manifest(
        self, root: Hash, changes: Mapping[bytes, Entry | None], built: BuiltManifest, pages: Mapping[Hash, PackItem]
    ) -> None:
        """Keep the manifest that follows from ``root`` by ``changes``, with its new encoded pages. Drops an earlier
        one.
        """
        self._foreseen = _PreparedManifest(root, changes, built)
        self.pages = dict(pages)
        self.unforeseen = 0

    def manifest(self, root: Hash, changes: Mapping[bytes, Entry | None]) -> BuiltManifest | None:
        """The manifest that follows from ``root`` by exactly these ``changes``, if it was prepared."""
        foreseen = self._foreseen
        if foreseen is None or foreseen.root != root or foreseen.changes != changes:
            return None
        return foreseen.built

    def forget(self) -> None:
        """Keep nothing any more."""
        self.items.clear()
        self.bases.clear()
        self.pages.clear()
        self.entries.clear()
        self._foreseen = None
        self.unforeseen = 0
        self._item_bytes = self._base_bytes = 0
