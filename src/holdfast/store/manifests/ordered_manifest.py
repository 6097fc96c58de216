"""A manifest as one sorted list: the entry at a position, and the position of a path."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.codecs.columns import check_foreign_paths
from holdfast.store.manifests._reader import load, load_root
from holdfast.store.manifests.page_codec import Inner, Leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests._reader import PageSource
    from holdfast.store.manifests.page_codec import Page

_Kept = TypeVar("_Kept")

_LEAVES: Final = 512
"""How many leaves are kept, spelled out: some 20 KB each."""
_INNERS: Final = 512
_AHEAD: Final = 16
"""The number of leaves to read at once if the previous one was cached: a list is being read in order."""


class EntryRun(NamedTuple):
    """Consecutive entries."""

    first: int
    """The position of the first one."""
    paths: Sequence[bytes]
    entries: Sequence[Entry]


class _Branch(NamedTuple):
    """An inner page, with the position of each child's first entry, counted from its own."""

    page: Inner
    starts: Sequence[int]


class OrderedManifest:
    """One manifest, read on demand. A bounded part of it is cached. Any number of threads may use it.

    Each method raises `IntegrityError` for pages that are damaged, missing, or not as the page above describes them.
    """

    def __init__(self, pages: PageSource, root: Hash) -> None:
        self._pages = pages
        self._top = load_root(pages, root)
        self.count, self.size = self._top.totals
        """How many entries there are, and the sum of their sizes."""
        self._turn = Lock()
        self._stretches: OrderedDict[Hash, EntryRun] = OrderedDict()
        self._branches: OrderedDict[Hash, _Branch] = OrderedDict()
        self._root = root

    def find(self, path: bytes) -> int:
        """The position of the first entry whose path is not before ``path``; `count` if there is none."""
        page, name, first = self._top, self._root, 0
        while isinstance(page, Inner):
            branch = self._branch(page, name)
            at = max(bisect_right(page.keys, path) - 1, 0)
            first += branch.starts[at]
            if page.level == 1:
                stretch = self._stretch(page, at, first)
                return first + bisect_left(stretch.paths, path)
            page, name = self._child(page, at), page.hashes[at]
        return bisect_left(page.keys, path)

    def run_at(self, position: int) -> EntryRun:
        """Some entries, including the one at ``position``. Raises `IndexError` if there is none."""
        if not 0 <= position < self.count:
            raise IndexError(position)
        page, name, first = self._top, self._root, 0
        while isinstance(page, Inner):
            branch = self._branch(page, name)
            at = bisect_right(branch.starts, position - first) - 1
            first += branch.starts[at]
            if page.level == 1:
                return self._stretch(page, at, first)
            page, name = self._child(page, at), page.hashes[at]
        return self._spelled(page, 0)

    def _branch(self, page: Inner, name: Hash) -> _Branch:
        with self._turn:
            branch = self._branches.get(name)
            if branch is None:
                branch = _Branch(page, [0, *accumulate(page.files)][:-1])
                _keep(self._branches, name, branch, _INNERS)
            return branch

    def _child(self, page: Inner, at: int) -> Page:
        """The inner page at an index of another one."""
        name = page.hashes[at]
        with self._turn:
            branch = self._branches.get(name)
            if branch is not None:
                self._branches.move_to_end(name)
                return branch.page
            (child,) = load(self._pages, [name], page.level - 1)
        _check(page, at, child)
        return child

    def _stretch(self, page: Inner, at: int, first: int) -> EntryRun:
        """The leaf at an index of a page of level 1, whose first entry has the position ``first``."""
        name = page.hashes[at]
        with self._turn:
            kept = self._stretches.get(name)
            if kept is not None and kept.first == first:
                self._stretches.move_to_end(name)
                return kept
            going_on = at > 0 and page.hashes[at - 1] in self._stretches
            until = min(at + (_AHEAD if going_on else 1), len(page.hashes))
            stretches: list[EntryRun] = []
            begin = first
            for index, leaf in enumerate(load(self._pages, page.hashes[at:until], 0), at):
                _check(page, index, leaf)
                stretches.append(self._spelled(leaf, begin))
                begin += page.files[index]
            for index, stretch in reversed(list(enumerate(stretches, at))):
                _keep(self._stretches, page.hashes[index], stretch, _LEAVES)
            return stretches[0]

    @staticmethod
    def _spelled(leaf: Page, first: int) -> EntryRun:
        assert isinstance(leaf, Leaf)
        check_foreign_paths(leaf.keys)
        return EntryRun(first, leaf.keys, leaf.entries())


def _check(page: Inner, at: int, child: Page) -> None:
    """Raise `FormatError` unless ``child`` is as ``page`` describes it: positions would be wrong."""
    keys = child.keys
    beyond = at + 1 < len(page.keys) and keys[-1:] >= page.keys[at + 1 : at + 2]
    if keys[:1] != page.keys[at : at + 1] or child.totals != (page.files[at], page.sizes[at]) or beyond:
        raise FormatError("page: field 'files': a page is not what the page above says of it")


def _keep(kept: OrderedDict[Hash, _Kept], name: Hash, one: _Kept, most: int) -> None:
    kept[name] = one
    while len(kept) > most:
        kept.popitem(last=False)
