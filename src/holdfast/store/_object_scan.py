"""The contents of a tenant's objects, found from the objects alone: the places of blobs, and the headers of
checkpoints.

For the loss of the catalog, which has the same facts (`catalog_repair`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError, NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import CheckpointId, Hash, hash_bytes
from holdfast.store.blobs.content_reader import BlobReader
from holdfast.store.blobs.large_blob import content_size
from holdfast.store.blobs.pack_format import read_index
from holdfast.store.catalog_records import BlobLocation, large_blob_key, pages_key
from holdfast.store.codecs.compression import LARGE, RAW
from holdfast.store.manifests.checkpoint_header import MAGIC, decode_header
from holdfast.store.manifests.manifest import PageCache
from holdfast.store.manifests.page_codec import children

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.manifests.checkpoint_header import CheckpointHeader
    from holdfast.store.manifests.page_codec import Page
    from holdfast.store.objects.object_store import ObjectInfo, ObjectStore


class FoundPack(NamedTuple):
    """An existing pack, complete as far as its index shows."""

    info: ObjectInfo
    hashes: Sequence[Hash]
    """Of its records, without the header."""
    header: CheckpointHeader | None
    checkpoint: CheckpointId | None
    """Of an object of pages: whose it is."""


class ObjectScan:
    """All objects of one tenant. Reads every index; content only on demand."""

    def __init__(self, objects: ObjectStore, tenant: str) -> None:
        """Raises `StorageError`, and `IntegrityError` (``unknown_key``) if the objects' key is not known."""
        self._objects = objects
        self._tenant = tenant
        self._places: dict[Hash, BlobLocation] = {}
        self._large: dict[Hash, tuple[int, int]] = {}
        """Generation and size of each object that is one blob."""
        self._whole: dict[Hash, bool] = {}
        self.packs: dict[str, FoundPack] = {}
        """By key."""
        self.damaged = 0
        """Packs whose index cannot be read."""
        self.levels: dict[Hash, int] = {}
        """Levels of the pages of all manifests that `is_whole` has checked."""
        self.below: dict[Hash, Sequence[Hash]] = {}
        """The children of each of these pages."""
        self._reader = BlobReader(objects, self.locate)
        self.pages = PageCache(self)
        self._scan()

    def locate(self, hashes: Sequence[Hash]) -> dict[Hash, BlobLocation]:
        """The places of blobs; missing blobs are left out."""
        return {name: place for name in hashes if (place := self.place(name)) is not None}

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        """See `PageSource.read`."""
        found = self._reader.read_many(hashes)
        return [found[name] for name in hashes]

    def place(self, name: Hash) -> BlobLocation | None:
        """The place of a blob, or None: a delta only if its base exists."""
        place = self._places.get(name)
        if place is not None:
            base = None if place.base is None else self._places.get(place.base)
            if place.base is None or (base is not None and base.base is None):
                return place
        if name not in self._large:
            return None
        generation, length = self._large[name]
        key = large_blob_key(self._tenant, name, generation)
        try:
            size = content_size(self._objects, name, key, length)
        except (IntegrityError, NotFoundError):
            del self._large[name]
            return None
        return BlobLocation(key, 0, length, LARGE, size, None)

    def generation(self, name: Hash) -> int:
        """The generation of a blob that is an object of its own."""
        return self._large[name][0]

    def is_whole(self, root: Hash) -> bool:
        """Whether all that a manifest names is there, down to the last blob. Contents are not read."""
        try:
            return self._is_page_whole(root, None)
        except (IntegrityError, NotFoundError):
            return False

    def root_of(self, pack: FoundPack) -> Hash | None:
        """The page of an object without a header to which no other page in it refers; None if there is not just one."""
        try:
            pages = dict(zip(pack.hashes, self.pages.load(pack.hashes), strict=True))
        except (IntegrityError, NotFoundError):
            return None
        named = {child for page in pages.values() if page.level for child in children(page)}
        tops = [name for name in pages if name not in named]
        return tops[0] if len(tops) == 1 else None

    def _is_page_whole(self, name: Hash, page: Page | None) -> bool:
        if name in self._whole:
            return self._whole[name]
        self._whole[name] = False  # until it is known
        if self.place(name) is None:
            return False
        if page is None:
            (page,) = self.pages.load([name])
        below = list(dict.fromkeys(children(page)))
        if page.level:
            new = [child for child in below if child not in self._whole]
            if any(self.place(child) is None for child in new):
                return False
            loaded = dict(zip(new, self.pages.load(new), strict=True))
            if any(one.level != page.level - 1 for one in loaded.values()):
                return False
            whole = all(self._is_page_whole(child, loaded.get(child)) for child in below)
        else:
            whole = all(self.place(child) is not None for child in below)
        if whole:
            self._whole[name] = True
            self.levels[name] = page.level
            self.below[name] = below
        return whole

    def _scan(self) -> None:
        for prefix in (f"packs/{self._tenant}/", f"checkpoints/{self._tenant}/"):
            for info in self._objects.list(prefix):
                self._look_into(info)
        for info in self._objects.list(f"blobs/{self._tenant}/"):
            digits, _, generation = info.key.rpartition("/")[2].partition(".")
            if len(digits) == 32 and not digits.strip("0123456789abcdef") and (generation or "0").isdigit():
                name, number = Hash(bytes.fromhex(digits)), int(generation or "0")
                if number >= self._large.get(name, (0, 0))[0]:
                    self._large[name] = (number, info.size)

    def _look_into(self, info: ObjectInfo) -> None:
        try:
            records = read_index(self._objects, info.key)
        except (IntegrityError, NotFoundError) as error:
            if error.code == "unknown_key":
                raise
            self.damaged += 1
            return
        header = whose = None
        if info.key.startswith("checkpoints/"):
            name = CheckpointId(info.key.rpartition("/")[2].partition(".")[0])
            if info.key == pages_key(self._tenant, name):
                whose = name
            last = records[-1] if records else None
            if whose is not None and last is not None and last.codec == RAW:
                data = self._objects.get(info.key, last.offset, last.length)
                if data.startswith(MAGIC) and hash_bytes(data) == last.hash:
                    records.pop()
                    header = _header(data, whose)
        self.packs[info.key] = FoundPack(info, [record.hash for record in records], header, whose)
        for record in records:
            known = self._places.get(record.hash)
            if known is None or (known.base is not None and record.base is None):
                self._places[record.hash] = BlobLocation(info.key, *record[3:5], *record[1:3], record.base)


def _header(data: bytes, whose: CheckpointId) -> CheckpointHeader | None:
    try:
        header = decode_header(data)
    except IntegrityError:
        return None
    return header if header.id == whose else None
