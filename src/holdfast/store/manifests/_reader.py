"""Reading manifests: one path, many paths, a range, totals, and which pages there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol, TypeVar
from holdfast.store.codecs.columns import check_foreign_paths
from holdfast.store.manifests.page_codec import Inner, Leaf, children, decode_known_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests.page_codec import Page

T = TypeVar("T")

READ_PAGES = 256
"""The number of pages to read at once."""


class PageSource(Protocol):
    """Where encoded pages come from."""

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        """The encoded pages with these hashes, in their order, each verified against its hash.

        Raises `IntegrityError` for a page that is missing or damaged.
        """
        ...


class PageCache:
    """Pages that are kept, decoded, for as long as they are among the last ``limit`` that were used.

    Not safe for use by several threads at once.
    """

    def __init__(self, pages: PageSource, limit: int = 2048) -> None:
        self._pages = pages
        self._limit = limit
        self._kept: OrderedDict[Hash, Page] = OrderedDict()

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        """See `PageSource.read`; encoded pages are not kept."""
        return self._pages.read(hashes)

    def load(self, hashes: Sequence[Hash]) -> list[Page]:
        """The decoded pages with these hashes, in their order."""
        kept = self._kept
        found: dict[Hash, Page] = {}
        missing: list[Hash] = []
        for name in dict.fromkeys(hashes):
            page = kept.get(name)
            if page is None:
                missing.append(name)
            else:
                found[name] = page
        if missing:
            for name, data in zip(missing, self._pages.read(missing), strict=True):
                found[name] = decode_known_page(data)
        self.keep(found)
        return [found[name] for name in hashes]

    def keep(self, pages: Mapping[Hash, Page]) -> None:
        """Add pages that were decoded, or made, elsewhere: they are needed next."""
        kept = self._kept
        for name, page in pages.items():
            kept[name] = page
            kept.move_to_end(name)
        while len(kept) > self._limit:
            kept.popitem(last=False)


class ReachablePage(NamedTuple):
    """A page that `reachable` came to."""

    page: Hash
    level: int
    """0 for a leaf."""
    children: list[Hash]
    """Of a leaf the distinct contents of its entries, of any other its child pages."""


def load(pages: PageSource, hashes: Sequence[Hash], level: int | None = None) -> list[Page]:
    """The decoded pages with these hashes, in their order; `FormatError` for one that is not of ``level``.

    Their paths have not been looked at again: a caller that passes paths on checks them.
    """
    if isinstance(pages, PageCache):
        loaded = pages.load(hashes)
    else:
        loaded = [decode_known_page(data) for data in pages.read(hashes)]
    if level is not None:
        for page in loaded:
            if page.level != level:
                raise FormatError(f"page: field 'level': {page.level} where {level} is expected")
    return loaded


def load_root(pages: PageSource, root: Hash) -> Page:
    """The decoded root page."""
    return load(pages, [root])[0]


def totals(pages: PageSource, root: Hash) -> tuple[int, int]:
    """How many entries the manifest holds and the sum of their sizes. Reads the root page alone."""
    return load_root(pages, root).totals


def get(pages: PageSource, root: Hash, path: bytes) -> Entry | None:
    """The entry at ``path``, or None. Reads one page of each level."""
    page = load_root(pages, root)
    while isinstance(page, Inner):
        at = bisect_right(page.keys, path) - 1
        if at < 0:
            return None
        page = load(pages, [page.hashes[at]], page.level - 1)[0]
    at = bisect_left(page.keys, path)
    return page.entry(at) if at < page.count and page.keys[at] == path else None


def get_many(pages: PageSource, root: Hash, paths: Iterable[bytes]) -> dict[bytes, Entry]:
    """The entries at those of ``paths`` that the manifest holds. Reads each page once, a level at a time."""
    wanted = sorted(set(paths))
    found: dict[bytes, Entry] = {}
    for page, first, last in _descend(pages, root, wanted, []):
        if isinstance(page, Leaf):
            for path in wanted[first:last]:
                at = bisect_left(page.keys, path)
                if at < page.count and page.keys[at] == path:
                    found[path] = page.entry(at)
    return found


def pages_on_path(pages: PageSource, root: Hash, paths: Iterable[bytes]) -> list[Hash]:
    """The pages that `get_many` reads, from the root down."""
    names: list[Hash] = []
    _descend(pages, root, sorted(set(paths)), names)
    return names


def _descend(pages: PageSource, root: Hash, wanted: Sequence[bytes], names: list[Hash]) -> list[tuple[Page, int, int]]:
    """The leaves that hold paths of ``wanted`` (ascending), or would, each with where its own begin and end; the names
    of all pages that are read go to ``names``.
    """
    page = load_root(pages, root)
    names.append(root)
    level: list[tuple[Page, int, int]] = [(page, 0, len(wanted))]
    for below in range(page.level - 1, -1, -1):
        steps = [
            (page.hashes[at], begin, end)
            for page, first, last in level
            if isinstance(page, Inner)
            for at, begin, end in split_by_child(page.keys, wanted, first, last)
            if at >= 0
        ]
        level = []
        for some in batches(steps):
            loaded = load(pages, [name for name, _, _ in some], below)
            level += [(page, begin, end) for page, (_, begin, end) in zip(loaded, some, strict=True)]
        names += [name for name, _, _ in steps]
    return level


def split_by_child(
    keys: Sequence[bytes], paths: Sequence[bytes], begin: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """Which child each of ``paths[begin:end]`` (ascending) is below: index of the child, begin and end of its paths.

    The index is -1 for paths before the first key.
    """
    while begin < end:
        at = bisect_right(keys, paths[begin]) - 1
        stop = bisect_left(paths, keys[at + 1], begin, end) if at + 1 < len(keys) else end
        yield at, begin, stop
        begin = stop


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """``items`` in pieces of at most `READ_PAGES`."""
    for at in range(0, len(items), READ_PAGES):
        yield items[at : at + READ_PAGES]


def key_range(prefix: bytes) -> tuple[bytes, bytes | None]:
    """The range of keys (begin, end) that holds ``prefix`` and everything below it; end None: no end."""
    # "0" is the byte after "/".
    return (prefix, prefix + b"0") if prefix else (b"", None)


def iterate(pages: PageSource, root: Hash, prefix: bytes = b"", *, after: bytes = b"") -> Iterator[tuple[bytes, Entry]]:
    """Every (path, entry), ascending, at or below ``prefix`` (all for the empty prefix), after the path ``after``.

    Streams: only the pages below one page of level 1 are in memory at a time. Checks that each page's paths match its
    key, so that no manifest is endless; raises `FormatError` otherwise.
    """
    begin, end = key_range(prefix)
    page = load_root(pages, root)
    for leaf in _leaves(pages, page, max(begin, after), end, None):
        check_foreign_paths(leaf.keys)
        if not prefix and (not after or leaf.keys[:1] > [after]):
            yield from zip(leaf.keys, leaf.entries(), strict=True)
            continue
        below = prefix + b"/"
        for path, entry in zip(leaf.keys, leaf.entries(), strict=True):
            if (not prefix or path.startswith(below) or path == prefix) and path > after:
                yield path, entry


def _leaves(pages: PageSource, page: Page, begin: bytes, end: bytes | None, bound: bytes | None) -> Iterator[Leaf]:
    """The leaves below ``page`` that may hold keys of the range; ``bound`` is the key of the page after it."""
    keys = page.keys
    if bound is not None and keys and keys[-1] >= bound:
        raise FormatError("page: field 'paths': a path beyond the key of the next page")
    if isinstance(page, Leaf):
        yield page
        return
    first = max(bisect_right(keys, begin) - 1, 0)
    last = bisect_left(keys, end) if end is not None else len(keys)
    names = page.hashes[first:last]
    bounds = [*keys[first + 1 :], bound][: len(names)]
    for at, (child, after) in enumerate(zip(load(pages, names, page.level - 1), bounds, strict=True), first):
        if child.keys[:1] != keys[at : at + 1] or child.totals != (page.files[at], page.sizes[at]):
            raise FormatError("page: field 'files': a page is not what the page above says of it")
        yield from _leaves(pages, child, begin, end, after)


def reachable(pages: PageSource, root: Hash, skip: Callable[[Hash], bool]) -> Iterator[ReachablePage]:
    """Every page of the manifest, parents first, except those for which ``skip`` is true and all below them.

    ``skip`` is called once for each page, before it is read: to mark many manifests, let it return whether the page was
    marked before, and mark it.
    """
    level = [root] if not skip(root) else []
    height: int | None = None
    while level:
        below: list[Hash] = []
        for some in batches(level):
            for name, page in zip(some, load(pages, some, height), strict=True):
                height = page.level
                found = children(page)
                yield ReachablePage(name, height, found)
                if height:
                    below += [child for child in found if not skip(child)]
        if height is not None:
            height -= 1
        # A valid manifest has no page twice; an invalid one must not make the walk endless.
        level = list(dict.fromkeys(below))
