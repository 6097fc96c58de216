"""The checks of a bundle before any of it is used: every page valid, every reference present, nothing superfluous.

The cost is bounded by the bundle's contents: each page is read once, with its claims about its children, and each
manifest by its difference from its parent's. ``docs/formats/bundle.md`` lists the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from holdfast.model.errors import FormatError, HoldfastError, IntegrityError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import Hash
from holdfast.store.manifests import manifest
from holdfast.store.manifests.page_codec import Inner, Leaf, children, decode_known_page, decode_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.upkeep._bundle_format import BundleHead, CheckpointRecord
    from holdfast.model.entries import Change

MAX_CHECKED = 100_000_000
"""Entries of first manifests and changes of later ones, together. A bundle with more is refused."""


class PageSpool:
    """Pages in an unnamed temporary file, so that memory holds only their places. A `PageSource` of the manifest
    module.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: dict[Hash, tuple[int, int]] = {}
        self._end = 0

    def add(self, name: Hash, data: bytes) -> None:
        """Keep a page."""
        self._file.seek(self._end)
        self._file.write(data)
        self._places[name] = (self._end, len(data))
        self._end += len(data)

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        """See `PageSource.read`; raises `IntegrityError` for a page that the bundle does not hold."""
        out: list[bytes] = []
        for name in hashes:
            place = self._places.get(name)
            if place is None:
                raise IntegrityError(f"bundle: page {name.hex()} is missing")
            self._file.seek(place[0])
            out.append(self._file.read(place[1]))
        return out

    def __contains__(self, name: Hash) -> bool:
        return name in self._places


class _Facts(NamedTuple):
    """The facts about a page that the page above claims, or should."""

    level: int
    first: bytes
    last: bytes
    files: int
    size: int


class BundleChecker:
    """Takes the contents of a bundle, piece by piece, and refuses wrong ones.

    Every method raises `FormatError` or `IntegrityError` with the fault.
    """

    def __init__(self, head: BundleHead, spool: PageSpool) -> None:
        self._head = head
        self._facts: dict[Hash, _Facts] = {}
        self._named: set[Hash] = {Hash(record.root) for record in head.checkpoints}
        self._waiting: dict[Hash, int] = {}
        self._seen: set[Hash] = set()
        self._budget = MAX_CHECKED
        self.spool = spool

    def page(self, name: Hash, data: bytes) -> None:
        """Take a page whose bytes have the hash ``name``."""
        if name in self._facts:
            raise FormatError(f"bundle: page {name.hex()} is there twice")
        page = decode_page(data)
        if isinstance(page, Leaf):
            keys = page.keys
            facts = _Facts(0, keys[0] if keys else b"", keys[-1] if keys else b"", *page.totals)
            for entry in page.entries():
                if self._waiting.setdefault(entry.hash, entry.size) != entry.size:
                    raise FormatError(f"bundle: two sizes are given for content {entry.hash.hex()}")
        else:
            facts = self._inner(name, page)
        self._facts[name] = facts
        self._named.update(children(page) if isinstance(page, Inner) else ())
        self.spool.add(name, data)

    def _inner(self, name: Hash, page: Inner) -> _Facts:
        keys = page.keys
        last = b""
        for at, child in enumerate(page.children()):
            below = self._facts.get(child.hash)
            if below is None:
                raise FormatError(
                    f"bundle: page {name.hex()} stands before its child {child.hash.hex()}, or that is missing"
                )
            last = below.last
            if (below.level, below.first, below.files, below.size) != (
                page.level - 1,
                keys[at],
                child.files,
                child.size,
            ) or (at + 1 < len(keys) and last >= keys[at + 1]):
                raise FormatError(f"bundle: page {child.hash.hex()} is not what page {name.hex()} says of it")
        return _Facts(page.level, keys[0], last, *page.totals)

    def manifests(self) -> None:
        """Check every manifest; call this when all pages have arrived."""
        for record in self._head.checkpoints:
            if record.root not in self._facts:
                name = record.root.hex()
                raise IntegrityError(f"bundle: page {name}, the root of checkpoint {record.id}, is missing")
        useless = self._facts.keys() - self._named
        if useless:
            raise FormatError(f"bundle: {len(useless)} pages that no manifest needs, such as {min(useless).hex()}")
        roots = {record.id: Hash(record.root) for record in self._head.checkpoints}
        sound: set[Hash] = set()
        for record in self._head.checkpoints:
            root = Hash(record.root)
            if root in sound:
                continue
            if record.parent is None:
                self._spend(self._facts[root].files)
                manifest.check(self.spool, root)
            else:
                self._check_against(roots[record.parent], root, record)
            sound.add(root)

    def _check_against(self, parent: Hash, root: Hash, record: CheckpointRecord) -> None:
        """The parent's manifest is sound, so if updating it gives this very root, that one is sound too."""
        changes = manifest.diff(self.spool, parent, root)
        self._spend(len(changes))
        try:
            found = manifest.update(self.spool, parent, {change.path: change.after for change in changes}).root
        except HoldfastError as error:
            raise FormatError(f"bundle: the manifest of checkpoint {record.id}: {error.message}") from error
        if found != root:
            raise FormatError(f"bundle: the manifest of checkpoint {record.id}: its entries belong in other pages")

    def _spend(self, entries: int) -> None:
        self._budget -= entries
        if self._budget < 0:
            raise FormatError(f"bundle: more than {MAX_CHECKED} entries to check: import fewer checkpoints at a time")

    def content(self, name: Hash, size: int) -> None:
        """Take note of a content; that its bytes have the hash ``name`` is the caller's to check."""
        if name in self._seen:
            raise FormatError(f"bundle: content {name.hex()} is there twice")
        wanted = self._waiting.get(name)
        if wanted is None:
            raise FormatError(f"bundle: content {name.hex()} is in no manifest")
        if wanted != size:
            raise FormatError(f"bundle: content {name.hex()} has {size} bytes, and the manifests say {wanted}")
        self._seen.add(name)

    def complete(self) -> None:
        """Check that nothing is missing; to be called at the bundle's end."""
        missing = self._waiting.keys() - self._seen
        if missing:
            raise IntegrityError(f"bundle: {len(missing)} contents are missing, such as {min(missing).hex()}")

    def totals(self, root: Hash) -> tuple[int, int]:
        """How many files the manifest ``root`` has, and their bytes."""
        return self._facts[root].files, self._facts[root].size

    def changes(self, parent: Hash, root: Hash) -> list[Change]:
        """How two manifests of the bundle differ."""
        return manifest.diff(self.spool, parent, root)

    def children(self, pages: Sequence[Hash]) -> tuple[set[Hash], set[Hash]]:
        """The pages and the contents that ``pages`` name."""
        below: set[Hash] = set()
        contents: set[Hash] = set()
        for data in self.spool.read(pages):
            page = decode_known_page(data)
            (below if isinstance(page, Inner) else contents).update(children(page))
        return below, contents
