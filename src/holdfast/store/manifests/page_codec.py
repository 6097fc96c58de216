"""The codec of pages, the nodes of the tree that a manifest is. Pure: bytes in, bytes out.

A page is four bytes of magic and version, then one MessagePack array of six columns (docs/formats/manifest.md). A leaf
(level 0) holds entries, an inner page (level 1 and up) its children. A page is named by the hash of its encoded bytes,
which is its checksum as well.
"""

from __future__ import annotations

from holdfast.model.entries import Entry
from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.ids import HASH_BYTES, Hash, hash_bytes
from holdfast.store.codecs.columns import (
    MAX_SIZE,
    check_foreign_paths,
    check_hashes,
    check_modes,
    check_no_file_is_directory,
    check_paths,
    check_prefix,
    check_sizes,
    join_paths,
    make_entries,
    pack_modes,
    split_hashes,
    split_paths,
    unpack_modes,
)
from holdfast.store.codecs.messagepack import Unpacker, array_head, binary, number, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAGIC = b"HFP"
VERSION = 1
_HEADER = MAGIC + bytes((VERSION,))

MAX_ITEMS = 256
"""The most entries of a leaf and the most children of an inner page."""
MAX_PATH_BYTES = 1 << 16
"""The most bytes that the paths of one page have together."""
MAX_PAGE_BYTES = 1 << 17
"""No encoded page is longer: paths, and 256 times a hash, two integers and a run of modes, with room to spare."""
MAX_LEVEL = 15

_Fields = tuple[int, bytes, bytes, bytes, list[int], list[int]]
"""The columns of a page."""


class Child(NamedTuple):
    """An inner page's record of one page below it; that page's first path is its key."""

    hash: Hash
    files: int
    """How many entries are below."""
    size: int
    """The sum of their sizes."""


class Leaf:
    """A page of entries. Paths and modes are spelled out when they are first asked for."""

    __slots__ = ("_paths", "count", "hashes", "prefix", "rest", "runs", "sizes")

    level = 0

    def __init__(self, prefix: bytes, rest: bytes, hashes: bytes, sizes: list[int], runs: list[int]) -> None:
        self.prefix = prefix
        self.rest = rest
        self.hashes = hashes
        """Of all entries, concatenated."""
        self.sizes = sizes
        self.runs = runs
        """The modes, as run lengths."""
        self.count = len(sizes)
        self._paths: list[bytes] | None = None

    @property
    def keys(self) -> list[bytes]:
        """The paths, ascending."""
        if self._paths is None:
            self._paths = split_paths(self.prefix, self.rest, self.count)
        return self._paths

    def key(self, at: int) -> bytes:
        """The path at this index, without spelling out what follows it."""
        if self._paths is not None:
            return self._paths[at]
        return self.prefix + self.rest.split(b"\0", at + 1)[at]

    @property
    def modes(self) -> list[int]:
        """The modes, in the order of the paths."""
        return unpack_modes(self.runs)

    @property
    def totals(self) -> tuple[int, int]:
        """How many entries, and the sum of their sizes."""
        return self.count, sum(self.sizes)

    def entries(self, begin: int = 0, end: int = MAX_ITEMS) -> list[Entry]:
        """The entries of the paths at the indices from ``begin`` to ``end``, in their order."""
        hashes = self.hashes[begin * HASH_BYTES : end * HASH_BYTES]
        return make_entries(hashes, self.sizes[begin:end], unpack_modes(self.runs)[begin:end])

    def entry(self, at: int) -> Entry:
        """The entry of the path at this index."""
        mode = self.runs[0] if len(self.runs) == 2 else self.modes[at]
        return Entry(Hash(self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]), self.sizes[at], mode)

    def replaced(self, entries: Mapping[int, Entry]) -> Leaf:
        """The leaf with other entries at some indices, under the same paths."""
        hashes, sizes, modes = bytearray(self.hashes), self.sizes.copy(), self.modes
        for at, entry in entries.items():
            hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES], sizes[at], modes[at] = entry
        leaf = Leaf(self.prefix, self.rest, bytes(hashes), sizes, pack_modes(modes))
        leaf._paths = self._paths
        return leaf


class Inner:
    """A page of pages, all of the level below its own. Keys are spelled out when they are first asked for."""

    __slots__ = ("_keys", "files", "hashes", "level", "prefix", "rest", "sizes")

    def __init__(
        self, level: int, prefix: bytes, rest: bytes, hashes: tuple[Hash, ...], files: list[int], sizes: list[int]
    ) -> None:
        self.level = level
        self.hashes = hashes
        self.files = files
        self.sizes = sizes
        self.prefix = prefix
        self.rest = rest
        self._keys: list[bytes] | None = None

    @property
    def keys(self) -> list[bytes]:
        """The first path below each child, ascending."""
        if self._keys is None:
            self._keys = split_paths(self.prefix, self.rest, len(self.hashes))
        return self._keys

    @property
    def totals(self) -> tuple[int, int]:
        """How many entries are below, and the sum of their sizes."""
        return sum(self.files), sum(self.sizes)

    def children(self) -> list[Child]:
        """The children, in the order of their keys."""
        return list(map(Child, self.hashes, self.files, self.sizes))

    def replaced(self, children: Mapping[int, Child]) -> Inner:
        """The page with other children at some indices, under the same keys."""
        hashes, files, sizes = list(self.hashes), self.files.copy(), self.sizes.copy()
        for at, child in children.items():
            hashes[at], files[at], sizes[at] = child
        page = Inner(self.level, self.prefix, self.rest, tuple(hashes), files, sizes)
        page._keys = self._keys
        return page


Page = Leaf | Inner


def encode_page(page: Page) -> bytes:
    """The encoded bytes of a page whose paths are known to be in order. Raises `FormatError` for its other columns."""
    if isinstance(page, Leaf):
        check_sizes(page.sizes, page.count, "sizes")
        _check_leaf(page.count, page.hashes, page.sizes, page.runs)
        return _encode(0, page.prefix, page.rest, page.hashes, page.sizes, page.runs)
    hashes = b"".join(page.hashes)
    check_sizes(page.files, len(page.hashes), "files")
    check_sizes(page.sizes, len(page.hashes), "sizes")
    _check_inner(page.level, len(page.hashes), hashes, page.files, page.sizes)
    return _encode(page.level, page.prefix, page.rest, hashes, page.files, page.sizes)


def _encode(level: int, prefix: bytes, rest: bytes, hashes: bytes, first: list[int], second: list[int]) -> bytes:
    columns = (number(level), binary(prefix), binary(rest), binary(hashes), numbers(first), numbers(second))
    return b"".join((_HEADER, array_head(len(columns)), *columns))


def encode_leaf(paths: Sequence[bytes], entries: Sequence[Entry]) -> bytes:
    """The encoded `make_leaf`. One set of entries has one encoding."""
    return encode_page(make_leaf(paths, entries))


def encode_inner(level: int, keys: Sequence[bytes], children: Sequence[Child]) -> bytes:
    """The encoded `make_inner`."""
    return encode_page(make_inner(level, keys, children))


def make_leaf(paths: Sequence[bytes], entries: Sequence[Entry]) -> Leaf:
    """The page that holds ``entries`` under ``paths``.

    This and `encode_page` raise what `decode_page` would find wrong: `EscapeError` for a path that `check_path`
    refuses, `FormatError` for anything else, among it paths out of order and more than a page may hold.
    """
    _check_limits(paths)
    check_paths(paths)
    check_no_file_is_directory(paths)
    hashes = b"".join([entry[0] for entry in entries])
    runs = pack_modes([entry[2] for entry in entries])
    return Leaf(*join_paths(paths), hashes, [entry[1] for entry in entries], runs)


def make_inner(level: int, keys: Sequence[bytes], children: Sequence[Child]) -> Inner:
    """The page of ``level`` that holds ``children`` under ``keys``, their first paths. Raises as `make_leaf`."""
    _check_limits(keys)
    check_paths(keys)
    hashes, files, sizes = zip(*children, strict=True) if children else ((), (), ())
    return Inner(level, *join_paths(keys), hashes, list(files), list(sizes))


def decode_page(data: bytes) -> Page:
    """The page in ``data``, which may be untrusted.

    Everything that one page can show is checked: magic, version, types, lengths, numbers and modes in range, valid
    paths, ascending and distinct, none of them a parent of another. Memory is bounded by the length of ``data``, which
    is bounded too. Raises only `FormatError`, with the field.
    """
    page = decode_known_page(data)
    keys = page.keys
    try:
        check_foreign_paths(keys)
        check_prefix(keys, page.prefix)
        if isinstance(page, Leaf):
            check_no_file_is_directory(keys)
    except FormatError as error:
        raise FormatError(f"page: {error.message}") from None
    return page


def decode_known_page(data: bytes) -> Page:
    """`decode_page` without checks of the paths: for a page of a manifest that was checked before it was stored.

    The page's hash proves that. Shapes, counts and numbers are checked all the same; raises `FormatError`.
    """
    if data[:3] != MAGIC:
        raise FormatError("page: field 'magic': this is no page of a manifest")
    if data[3:4] != _HEADER[3:]:
        found = data[3] if len(data) > 3 else "none"
        raise FormatError(f"page: field 'version': {found}, and only {VERSION} is known here")
    if len(data) > MAX_PAGE_BYTES:
        raise FormatError(f"page: {len(data)} bytes are more than the {MAX_PAGE_BYTES} that a page may have")
    try:
        level, prefix, rest, hashes, first, second = _columns(data)
    except FormatError as error:
        raise FormatError(f"page: field 'columns': {error.message}") from None
    try:
        count = check_hashes(hashes)
        if level == 0:
            _check_leaf(count, hashes, first, second)
        else:
            _check_inner(level, count, hashes, first, second)
        if count > MAX_ITEMS:
            raise FormatError(f"field 'hashes': {count} items are more than the {MAX_ITEMS} that a page may have")
        # The number of paths must be right before anyone pairs them with the other columns.
        if b"\0" in prefix:
            raise FormatError("field 'prefix': it holds a zero byte")
        if rest.count(b"\0") != max(count - 1, 0) or (not count and (prefix or rest)):
            raise FormatError(f"field 'paths': it does not hold {count} paths, one for each hash")
        if count > 1 and count * len(prefix) + len(rest) - (count - 1) > MAX_PATH_BYTES:
            raise FormatError(f"field 'paths': together they are longer than {MAX_PATH_BYTES} bytes")
    except FormatError as error:
        raise FormatError(f"page: {error.message}") from None
    if level == 0:
        return Leaf(prefix, rest, hashes, first, second)
    return Inner(level, prefix, rest, split_hashes(hashes), first, second)


def children(page: Page) -> list[Hash]:
    """The references of a page: of an inner page its child pages, of a leaf the distinct contents of its entries."""
    if isinstance(page, Inner):
        return list(page.hashes)
    return list(dict.fromkeys(split_hashes(page.hashes)))


def _check_limits(paths: Sequence[bytes]) -> None:
    if len(paths) > MAX_ITEMS or (len(paths) > 1 and sum(map(len, paths)) > MAX_PATH_BYTES):
        raise FormatError(f"a page holds at most {MAX_ITEMS} items and {MAX_PATH_BYTES} bytes of paths")


def _check_leaf(count: int, hashes: bytes, sizes: list[int], runs: list[int]) -> None:
    if len(hashes) != HASH_BYTES * count or len(sizes) != count:
        raise FormatError(f"field 'sizes': {len(sizes)} values for {len(hashes)} bytes of hashes")
    check_modes(runs, count)


def _check_inner(level: int, count: int, hashes: bytes, files: list[int], sizes: list[int]) -> None:
    if not 1 <= level <= MAX_LEVEL:
        raise FormatError(f"field 'level': {level} is not between 0 and {MAX_LEVEL}")
    if not count or not len(files) == len(sizes) == count or len(hashes) != HASH_BYTES * count:
        raise FormatError(f"field 'files': {len(files)} and {len(sizes)} values for {len(hashes)} bytes of hashes")
    if min(files) < 1:
        raise FormatError("field 'files': a child without entries")


def _columns(data: bytes) -> _Fields:
    reader = Unpacker(data[len(_HEADER) :])
    reader.array(6)
    level, prefix, rest, hashes = reader.number(), reader.binary(), reader.binary(), reader.binary()
    first, second = reader.numbers(), reader.numbers()
    reader.end()
    if max(first, default=0) > MAX_SIZE or max(second, default=0) > MAX_SIZE:
        raise FormatError(f"a number over {MAX_SIZE}")
    return level, prefix, rest, hashes, first, second


EMPTY_PAGE = _HEADER + b"\x96\x00\xc4\x00\xc4\x00\xc4\x00\x90\x90"
"""The page of the manifest that holds nothing."""
EMPTY_ROOT = hash_bytes(EMPTY_PAGE)
