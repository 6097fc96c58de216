"""Updating a manifest: what changed is cut again from where pages surely begin to where old and new boundaries meet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import pairwise

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Generic, TypeVar, cast
from holdfast.model.ids import hash_bytes
from holdfast.model.paths import display
from holdfast.store.codecs.columns import check_nothing_below
from holdfast.store.manifests._reader import PageCache, batches, load, load_root, split_by_child
from holdfast.store.manifests.builder import BuiltManifest, cut, grow
from holdfast.store.manifests.page_codec import (
    EMPTY_PAGE,
    EMPTY_ROOT,
    Child,
    Inner,
    Leaf,
    decode_known_page,
    encode_page,
    make_inner,
    make_leaf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Final

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests._reader import PageSource
    from holdfast.store.manifests.page_codec import Inner, Page


# The tree of pages: the page of a level for a path, and its neighbours ---


class Node(NamedTuple):
    """A page of a tree, and its position on its level."""

    key: bytes
    """Its first path; empty for the leaf of the empty manifest."""
    hash: Hash
    next: bytes | None
    """The key of the next page of the level."""


class Tree:
    """A manifest, with those of its pages that were read so far."""

    def __init__(self, pages: PageSource, root: Hash) -> None:
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
                spreading = split_by_child(page.keys[1:], paths, first, last)
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
        """The page of ``level`` before the one with this ``key``; None for the first. It is not read."""
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


T = TypeVar("T")


def update(pages: PageSource, root: Hash, changes: Mapping[bytes, Entry | None]) -> BuiltManifest:
    """The manifest ``root`` with ``changes``: an entry is set at its path, None removes the path.

    The root is the one that `build` gives for the resulting entries. Reads the changed pages, all pages above
    them, and sometimes a neighbour. A change without effect is allowed. Raises as `build`.
    """
    tree = Tree(pages, root)
    paths = sorted(changes)
    tree.preload(paths)
    _check_added(tree, paths, changes)
    rewrite = _Rewrite(tree)
    above = rewrite.level(0, _LEAVES, changes)
    for level in range(1, tree.root.level + 1):
        above = rewrite.level(level, _inners(level), above)
    if not above:
        return BuiltManifest(root, {}, *tree.root.totals, {})
    if tree.top.key not in above:
        # The old root is still a page of its level, beside new ones.
        above[tree.top.key] = Child(root, *tree.root.totals)
    tops = sorted((key, node) for key, node in above.items() if node is not None)
    if not tops:
        return BuiltManifest(EMPTY_ROOT, {EMPTY_ROOT: EMPTY_PAGE}, 0, 0, {EMPTY_ROOT: root})
    top = grow([key for key, _ in tops], [node for _, node in tops], tree.root.level + 1, rewrite.made.__setitem__)
    name = _shrink(tree, top.hash, rewrite.made)
    # Some pages were made and came out as they had been.
    made = {page: data for page, data in rewrite.made.items() if not tree.has_read(page)}
    if isinstance(pages, PageCache):
        # The next update begins where this one has ended.
        pages.keep({page: rewrite.pages[page] for page in made if page in rewrite.pages})
    return BuiltManifest(
        name, made, top.files, top.size, {page: old for page, old in rewrite.previous.items() if page in made}
    )


def _shrink(tree: Tree, root: Hash, made: dict[Hash, bytes]) -> Hash:
    """Go down from ``root`` while it has a single child: the root is the lowest level that is one page."""
    while True:
        page = decode_known_page(made[root]) if root in made else tree.page(root)
        if isinstance(page, Leaf) or len(page.keys) > 1:
            return root
        made.pop(root, None)
        (root,) = page.hashes


class _PageKind(NamedTuple, Generic[T]):
    """The items of a level's pages: entries under their paths, or children under their keys."""

    items: Callable[[Page], list[T]]
    replace: Callable[[Page, Mapping[int, T]], Page]
    make: Callable[[Sequence[bytes], Sequence[T]], Page]


def _entries(page: Page) -> list[Entry]:
    return cast("Leaf", page).entries()


def _replace_entries(page: Page, entries: Mapping[int, Entry]) -> Leaf:
    return cast("Leaf", page).replaced(entries)


def _children(page: Page) -> list[Child]:
    return cast("Inner", page).children()


def _replace_children(page: Page, children: Mapping[int, Child]) -> Inner:
    return cast("Inner", page).replaced(children)


_LEAVES = _PageKind(_entries, _replace_entries, make_leaf)


def _inners(level: int) -> _PageKind[Child]:
    return _PageKind(_children, _replace_children, partial(make_inner, level))


class _Rewrite:
    """The pages that an update makes, level by level."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.made: dict[Hash, bytes] = {}
        self.pages: dict[Hash, Page] = {}
        """New pages, not yet encoded."""
        self.previous: dict[Hash, Hash] = {}

    def level(self, level: int, kind: _PageKind[T], changes: Mapping[bytes, T | None]) -> dict[bytes, Child | None]:
        """Make ``changes`` to the items of the pages of ``level``; returns the changes for the level above."""
        tree = self._tree
        result: dict[bytes, Child | None] = {}
        names = sorted(changes)
        done = 0
        while done < len(names):
            node = tree.locate(level, names[done])
            end = len(names) if node.next is None else bisect_left(names, node.next, done)
            page = tree.page(node.hash, level)
            replaced = _replacements(page.keys, names[done:end], changes)
            if replaced is None:
                done = self._cut_again(level, kind, changes, names, done, result)
                continue
            # The paths stay as they are, and with them every boundary.
            done = end
            self._put(node.key, kind.replace(page, replaced), node, result)
        return result

    def _cut_again(
        self,
        level: int,
        kind: _PageKind[T],
        changes: Mapping[bytes, T | None],
        names: Sequence[bytes],
        done: int,
        result: dict[bytes, Child | None],
    ) -> int:
        """Rewrite pages from that of ``names[done]`` up to the next page whose start is unchanged; returns progress."""
        tree = self._tree
        node = tree.locate(level, names[done])
        olds = [node]
        keys: list[bytes] = []
        items: list[T] = []
        # Where pages begin among ``keys``. The last of them is open: what follows may belong to it.
        starts = [0]
        while True:
            page = tree.page(node.hash, level)
            end = len(names) if node.next is None else bisect_left(names, node.next, done)
            more_keys, more_items = _apply(page.keys, kind.items(page), names[done:end], changes)
            done = end
            if node is olds[0] and more_keys[:1] != [node.key] and (before := tree.before(level, node.key)) is not None:
                # Without the key that it began with, the rest of the page may belong to the page before.
                olds.insert(0, before)
                page = self._present(before, level, result)
                keys, items = list(page.keys), kind.items(page)
            keys += more_keys
            items += more_items
            base = starts.pop()
            if node.next is None:
                starts += [base + at for at in cut(keys[base:], level)]
                break
            following = tree.locate(level, node.next)
            if done < len(names) and (following.next is None or names[done] < following.next):
                starts.append(base)
            else:
                # The next page is as it was, and stays if a page begins there still.
                starts += [base + at for at in cut([*keys[base:], node.next], level)]
                if starts[-1] == len(keys):
                    starts.pop()
                    break
            olds.append(following)
            node = following
        result.update(dict.fromkeys([old.key for old in olds]))
        old_keys = [old.key for old in olds]
        for begin, end in pairwise([*starts, len(keys)]):
            page = kind.make(keys[begin:end], items[begin:end])
            old = olds[max(bisect_right(old_keys, keys[begin]) - 1, 0)]
            self._put(keys[begin], page, old, result)
        return done

    def _present(self, node: Node, level: int, result: dict[bytes, Child | None]) -> Page:
        """The page of ``node`` as it is by now: perhaps this update has made changes to it already."""
        child = result.get(node.key)
        if child is None:
            return self._tree.page(node.hash, level)
        self.previous.pop(child.hash, None)
        del self.made[child.hash]
        return self.pages.pop(child.hash)

    def _put(self, key: bytes, page: Page, old: Node, result: dict[bytes, Child | None]) -> None:
        """Record that ``page`` replaces ``old``, under ``key``."""
        data = encode_page(page)
        name = hash_bytes(data)
        if name == old.hash:
            result.pop(old.key, None)
            return
        self.made[name] = data
        self.pages[name] = page
        self.previous[name] = old.hash
        result[key] = Child(name, *page.totals)


def _replacements(
    keys: Sequence[bytes], names: Sequence[bytes], changes: Mapping[bytes, T | None]
) -> dict[int, T] | None:
    """The indices of ``names`` among ``keys`` with their new items; None if any is added or removed."""
    found: dict[int, T] = {}
    for name in names:
        at = bisect_left(keys, name)
        item = changes[name]
        if item is None or at == len(keys) or keys[at] != name:
            return None
        found[at] = item
    return found


def _apply(
    keys: list[bytes], items: list[T], names: Sequence[bytes], changes: Mapping[bytes, T | None]
) -> tuple[list[bytes], list[T]]:
    """Keys and items of a page after the changes to ``names`` (ascending)."""
    keys, items = list(keys), list(items)
    if len(names) > len(keys):
        # Many at once are sorted in once; put in one by one, they would take time with the square of their number.
        merged = {**dict(zip(keys, items, strict=True)), **{name: changes[name] for name in names}}
        kept = [(name, item) for name in sorted(merged) if (item := merged[name]) is not None]
        return [name for name, _ in kept], [item for _, item in kept]
    for name in names:
        item = changes[name]
        at = bisect_left(keys, name)
        present = at < len(keys) and keys[at] == name
        if item is None:
            if present:
                del keys[at], items[at]
        elif present:
            items[at] = item
        else:
            keys.insert(at, name)
            items.insert(at, item)
    return keys, items


def _check_added(tree: Tree, names: Sequence[bytes], changes: Mapping[bytes, Entry | None]) -> None:
    """Raise `FormatError` if an added path would be a parent of another, or below a file.

    The manifest itself is valid, so only added paths are checked; usually the page that the path goes into is enough.
    """
    present = [name for name in names if changes[name] is not None]
    directories: set[bytes] = set()
    for path in present:
        node = tree.locate(0, path)
        keys = tree.page(node.hash, 0).keys
        at = bisect_left(keys, path)
        if at < len(keys) and keys[at] == path:
            continue
        check_nothing_below(present, path)
        _check_emptied(tree, path, changes)
        parent = path.rpartition(b"/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            below = parent + b"/"
            at = bisect_left(keys, below)
            if (keys[at] if at < len(keys) else node.next or b"").startswith(below):
                break
            if changes.get(parent, False) is not None and tree.holds(parent):
                raise FormatError(f"{display(parent)!r} is both a file and the directory of {display(path)!r}")
            parent = parent.rpartition(b"/")[0]


def _check_emptied(tree: Tree, path: bytes, changes: Mapping[bytes, Entry | None]) -> None:
    """Raise `FormatError` if the manifest holds anything below ``path`` that ``changes`` do not remove."""
    below = path + b"/"
    after: bytes | None = below
    while after is not None:
        node = tree.locate(0, after)
        keys = tree.page(node.hash, 0).keys
        for at in range(bisect_left(keys, below), len(keys)):
            if not keys[at].startswith(below):
                return
            if changes.get(keys[at], False) is not None:
                raise FormatError(f"{display(path)!r} is both a file and the directory of {display(keys[at])!r}")
        after = node.next if node.next is not None and node.next.startswith(below) else None
