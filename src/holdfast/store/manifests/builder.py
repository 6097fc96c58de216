"""Building a manifest from all its entries, and checking that a manifest is what building it would give."""

from __future__ import annotations

from itertools import islice, pairwise
from zlib import crc32

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import hash_bytes
from holdfast.store.codecs.columns import check_nothing_below
from holdfast.store.manifests._reader import iterate
from holdfast.store.manifests.page_codec import (
    EMPTY_PAGE,
    EMPTY_ROOT,
    MAX_ITEMS,
    MAX_PATH_BYTES,
    Child,
    encode_inner,
    encode_leaf,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.manifests._reader import PageSource

_BITS = 6
_CUT_LEVELS = 32 // _BITS
_BUFFER = 64 * MAX_ITEMS


class BuiltManifest(NamedTuple):
    """A manifest that was made, and the pages of it that were not there before."""

    root: Hash
    new_pages: dict[Hash, bytes]
    """Encoded pages by their hash; all others are pages of the manifest that was updated. Some may be stored."""
    files: int
    """How many entries the manifest holds."""
    bytes: int
    """The sum of their sizes."""
    previous: dict[Hash, Hash]
    """For a new page, the page that held its paths before: what to encode it against. Not every new page has one."""


def cut(keys: Sequence[bytes], level: int) -> list[int]:
    """The indices of ``keys`` at which the pages of ``level`` begin, given that one begins with the first key.

    A page begins with every key that has six zero bits at place 6 × level of its CRC-32 (one key in 64), and after
    every full page. The indices are ascending, the first is 0; empty without keys.
    """
    if not keys:
        return []
    mask = ((1 << _BITS) - 1) << (_BITS * level) if level < _CUT_LEVELS else 0
    natural = [at for at, key in enumerate(keys) if not crc32(key) & mask] if mask else []
    starts = [0]
    begin = 0
    for end in (*natural, len(keys)):
        if end - begin > MAX_ITEMS or sum(map(len, keys[begin:end])) > MAX_PATH_BYTES:
            length = 0
            for at in range(begin, end):
                if at > begin and (at - begin == MAX_ITEMS or length + len(keys[at]) > MAX_PATH_BYTES):
                    starts.append(at)
                    begin, length = at, 0
                length += len(keys[at])
        if 0 < end < len(keys):
            starts.append(end)
        begin = end
    return starts


def build(entries: Iterable[tuple[bytes, Entry]]) -> BuiltManifest:
    """The manifest of ``entries``, which come sorted by path, each path once.

    Raises `EscapeError` for a path that no workspace may hold; `FormatError` for paths out of order or there twice, a
    path that is both a file and a directory, a mode or size out of range.
    """
    new_pages: dict[Hash, bytes] = {}
    top = _build(entries, new_pages.__setitem__)
    return BuiltManifest(top.hash, new_pages, top.files, top.size, {})


def check(pages: PageSource, root: Hash) -> None:
    """Raise `FormatError` unless ``root`` is exactly the manifest that `build` gives for its entries.

    For a manifest of foreign origin: afterwards every rule holds, in each page and between them. Reads every
    page, a few hundred of them at a time.
    """
    try:
        found = _build(iterate(pages, root), lambda _name, _data: None)
    except FormatError as error:
        raise FormatError(f"manifest {root.hex()}: {error.message}") from None
    if found.hash != root:
        raise FormatError(f"manifest {root.hex()}: its entries belong in other pages, under {found.hash.hex()}")


def _build(entries: Iterable[tuple[bytes, Entry]], keep: Callable[[Hash, bytes], object]) -> Child:
    """`build` with each page given to ``keep`` as it is made, children first."""
    keys: list[bytes] = []
    nodes: list[Child] = []
    guard = _FileIsDirectory()
    paths: list[bytes] = []
    values: list[Entry] = []
    source = iter(entries)
    more = True
    while more:
        batch = list(islice(source, _BUFFER))
        more = len(batch) == _BUFFER
        paths += [path for path, _ in batch]
        values += [entry for _, entry in batch]
        starts = cut(paths, 0)
        # The last page may continue with the next keys; without any it ends here.
        if not more:
            starts.append(len(paths))
        for begin, end in pairwise(starts):
            part = paths[begin:end]
            guard.feed(part)
            keys.append(part[0])
            nodes.append(_give_leaf(part, values[begin:end], keep))
        del paths[: starts[-1]], values[: starts[-1]]
    if not nodes:
        keep(EMPTY_ROOT, EMPTY_PAGE)
        return Child(EMPTY_ROOT, 0, 0)
    return grow(keys, nodes, 1, keep)


def grow(keys: Sequence[bytes], nodes: Sequence[Child], level: int, keep: Callable[[Hash, bytes], object]) -> Child:
    """Build levels above ``nodes``, the first of them ``level``, until a single page is left."""
    while len(nodes) > 1:
        starts = [*cut(keys, level), len(keys)]
        nodes = [_give_inner(level, keys[begin:end], nodes[begin:end], keep) for begin, end in pairwise(starts)]
        keys = [keys[at] for at in starts[:-1]]
        level += 1
    return nodes[0]


def _give_leaf(paths: Sequence[bytes], entries: Sequence[Entry], keep: Callable[[Hash, bytes], object]) -> Child:
    """Encode a leaf, give it to ``keep``, and return what the page above says of it."""
    data = encode_leaf(paths, entries)
    name = hash_bytes(data)
    keep(name, data)
    return Child(name, len(paths), sum([entry[1] for entry in entries]))


def _give_inner(
    level: int, keys: Sequence[bytes], nodes: Sequence[Child], keep: Callable[[Hash, bytes], object]
) -> Child:
    """Encode an inner page, give it to ``keep``, and return what the page above says of it."""
    data = encode_inner(level, keys, nodes)
    name = hash_bytes(data)
    keep(name, data)
    return Child(name, sum([node[1] for node in nodes]), sum([node[2] for node in nodes]))


class _FileIsDirectory:
    """Finds a path that is a directory of one in a later leaf, and an order that is broken between two leaves."""

    def __init__(self) -> None:
        self._last: Sequence[bytes] = ()
        self._open: list[bytes] = []
        """Prefixes of the last leaf's first path: only their extensions can follow, as paths are ascending."""

    def feed(self, paths: Sequence[bytes]) -> None:
        """Take the paths of the next leaf; raises `FormatError`."""
        first = paths[0]
        if self._last and self._last[-1] >= first:
            raise FormatError("paths are not in ascending order, or one is there twice")
        self._open = [path for path in (*self._open, *self._last) if first.startswith(path)]
        for path in self._open:
            check_nothing_below(paths, path)
        self._last = paths
