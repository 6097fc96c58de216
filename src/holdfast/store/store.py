"""The store, put together: objects, catalog, and what reads, writes, collects and verifies them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

from holdfast.model.errors import IntegrityError, StorageError
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.model.store_location import local_directory
from holdfast.store import disk_reserve
from holdfast.store.blobs.prepared_content import PreparedContent
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.identity import object_store_binding
from holdfast.store.objects.configured_store import assemble, keys_of, open_objects
from holdfast.store.objects.object_store import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from holdfast.model.clock import Clock
    from holdfast.model.config.settings import Settings
    from holdfast.model.content import Content
    from holdfast.model.entries import Entry
    from holdfast.model.ids import Hash
    from holdfast.store.blobs.content_reader import BlobReader
    from holdfast.store.blobs.content_writer import BlobWriter
    from holdfast.store.collection.collector import Collector
    from holdfast.store.manifests.manifest import PageCache, PageSource
    from holdfast.store.objects.object_store import ObjectStore
    from holdfast.store.objects.remote_store import RemoteObjects
    from holdfast.store.verification.verifier import Verifier

_LOG = Log(__name__)
CATALOG = b"catalog.db"
OBJECTS = b"objects"


class Store:
    """One tenant's store. Several processes may have it open at once; close it, or use it as a context manager."""

    def __init__(
        self,
        objects: ObjectStore,
        catalog: Catalog,
        *,
        random: Callable[[int], bytes] = os.urandom,
        pack_bytes: int = 32 << 20,
        rewrite_ratio: float = 0.5,
        home: bytes | None = None,
        open_cold: Callable[[], ObjectStore] | None = None,
        bucket: RemoteObjects | None = None,
    ) -> None:
        self.objects = objects
        self.catalog = catalog
        catalog.keys = keys_of(objects)
        self.tenant = catalog.name
        """Its form in object keys."""
        self._random = random
        self._pack_bytes = pack_bytes
        self._ratio = rewrite_ratio
        self._home = home
        self._open_cold = open_cold
        self.bucket = bucket
        """The underlying bucket of the objects, if there is one."""
        self._cold: ObjectStore | None = None
        self._tight = False
        self._reader: BlobReader | None = None
        self._pages: PageCache | None = None
        self.ahead = PreparedContent()

    @classmethod
    def open(
        cls,
        home: str | bytes,
        settings: Settings,
        *,
        clock: Clock,
        random: Callable[[int], bytes] = os.urandom,
        claim: bool = True,
        becoming: bool = False,
    ) -> Store:
        """Open the store of the directory ``home``, made (mode 0700) if it is missing.

        A bucket is claimed for it (see `bucket_claim`), unless ``claim`` is false: then nothing may be written.
        ``becoming``: it is the target of a copy, in any state, and is not claimed yet.

        The settings give the places of objects and catalog. Raises `StorageError`, `LockedError`, `FormatError` for a
        catalog of a newer version, and `ConfigError` for a bad ``store.url`` or one without the objects.
        """
        folder = os.fsencode(home)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make the directory {os.fsdecode(home)}: {error.strerror}") from error
        location = settings.store.url or folder + b"/" + OBJECTS
        assembled = assemble(location, settings.store, folder, open_it=open_objects, random=random)
        objects, bucket = assembled.objects, assembled.bucket
        if settings.store.catalog:
            from holdfast.store._shared_catalog import open_catalog

            disk_reserve.create(folder)
            catalog = open_catalog(folder, settings, objects, clock=clock, random=random, becoming=becoming)
        else:
            catalog = _own_catalog(folder, settings, objects, clock, becoming=becoming)
        if bucket is not None and claim and not becoming:
            from holdfast.store.identity.bucket_claim import ensure_claimed

            try:
                ensure_claimed(catalog, bucket, random)
            except BaseException:
                catalog.close()
                raise
        cold = settings.session.cold_url
        return cls(
            objects,
            catalog,
            random=random,
            pack_bytes=settings.store.pack_bytes,
            rewrite_ratio=settings.gc.rewrite_ratio,
            home=folder,
            open_cold=(lambda: assemble(cold, settings.store, folder, random=random).objects) if cold else None,
            bucket=bucket,
        )

    def tier_objects(self, tier: str) -> ObjectStore | None:
        """Where the session checkpoints of a tier are: None for those in the catalog, and where it is not known."""
        if tier == "warm":
            return self.objects
        if tier == "cold" and self._cold is None and self._open_cold is not None:
            self._cold = self._open_cold()
        return self._cold if tier == "cold" else None

    @property
    def reader(self) -> BlobReader:
        """Reads blobs and pages."""
        if self._reader is None:
            from holdfast.store.blobs.content_reader import BlobReader

            self._reader = BlobReader(self.objects, self.catalog.locate)
        return self._reader

    def writer(self) -> BlobWriter:
        """A new writer of blobs; its blobs are known when their rows are committed."""
        from holdfast.store.blobs.content_writer import BlobWriter

        return BlobWriter(
            self.objects,
            self.tenant,
            self.catalog.known,
            self.read_bases,
            self._random,
            pack_bytes=self._pack_bytes,
            generation_of=self.catalog.generation_of,
            ahead=self.ahead.items,
        )

    def mend(self, contents: Iterable[Content]) -> int:
        """Store contents anew, whatever the catalog says, and record the new places of those that it knows; returns
        their number. All of it is durable then.
        """
        from holdfast.store.blobs.content_writer import BlobWriter

        writer = BlobWriter(
            self.objects,
            self.tenant,
            lambda _: set(),
            lambda _: {},
            self._random,
            pack_bytes=self._pack_bytes,
            generation_of=self.catalog.generation_of,
        )
        try:
            for content in contents:
                if isinstance(content, bytes):
                    writer.add(content)
                else:
                    writer.add_stream(content)
            written = writer.finish()
        except BaseException:
            writer.abort()
            raise
        return self.catalog.relocate(written)

    @property
    def pages(self) -> PageCache:
        """The pages of all manifests; the last used ones are kept, decoded."""
        if self._pages is None:
            from holdfast.store.manifests.manifest import PageCache

            self._pages = PageCache(_StoredPages(self))
        return self._pages

    def read_pages(self, hashes: Sequence[Hash]) -> dict[Hash, bytes]:
        """Encoded pages that are stored; see `PageSource.read`."""
        if not self.ahead.keeping:
            return self.reader.read_many(hashes)
        bases: dict[Hash, tuple[Hash, bytes]] = {}
        found = self.reader.read_many(hashes, bases)
        self.ahead.add_bases(bases)
        return found

    def pages_with(self, new: Mapping[Hash, bytes]) -> PageSource:
        """`pages`, and before them ``new`` ones that are not stored yet."""
        return _OverlaidPages(self.pages, new)

    def read_bases(self, hashes: Sequence[Hash]) -> dict[Hash, tuple[Hash, bytes]]:
        """Bases for deltas: see `BlobReader.read_bases`."""
        return self.reader.read_bases(hashes)

    @contextmanager
    def caching_bases(self) -> Generator[None]:
        """For the length of the block, pages that are read are kept for `page_bases`, up to a limit: a change of a
        manifest reads a page first, and then the base of the new one's delta.
        """
        self.ahead.keeping = True
        try:
            yield
        finally:
            self.ahead.keeping = False

    def page_bases(self, hashes: Sequence[Hash]) -> dict[Hash, tuple[Hash, bytes]]:
        """`read_bases` for pages."""
        kept = self.ahead.bases
        missing = [name for name in hashes if name not in kept]
        found = self.read_bases(missing) if missing else {}
        if self.ahead.keeping:
            self.ahead.add_bases(found)
        return {**found, **{name: kept[name] for name in hashes if name in kept}}

    def encode_ahead(self, contents: Sequence[tuple[bytes, Hash]]) -> None:
        """Encode contents that may soon be written, each with the hash of the version before it. They are small."""
        from holdfast.store.blobs.content_writer import encode

        for item in encode(contents, self.read_bases):
            self.ahead.add_item(item)

    def prepare_manifest(self, root: Hash, changes: Mapping[bytes, Entry | None]) -> None:
        """Make and encode the pages of the manifest ``root`` with ``changes`` made to it: it may soon be written."""
        from holdfast.store.blobs.content_writer import encode_pages
        from holdfast.store.manifests import manifest

        built = manifest.update(self.pages, root, changes)
        known = self.ahead.pages
        made = [(name, data, built.previous.get(name)) for name, data in built.new_pages.items() if name not in known]
        encoded = {item.hash: item for item in encode_pages(made, self.page_bases)}
        pages = {name: encoded.get(name) or known[name] for name in built.new_pages}
        self.ahead.add_manifest(root, changes, built, pages)

    def children(self, pages: Sequence[Hash]) -> dict[Hash, list[Hash]]:
        """The distinct children of each of ``pages``; raises `IntegrityError` for one that cannot be read."""
        from holdfast.store.manifests.page_codec import children, decode_page

        found = self.reader.read_many(pages)
        return {name: list(dict.fromkeys(children(decode_page(found[name])))) for name in pages}

    def collector(self) -> Collector:
        """The collector, which settles counts and collects."""
        from holdfast.store.collection.collector import Collector

        return Collector(
            self.catalog,
            self.objects,
            self.children,
            self._random,
            rewrite_ratio=self._ratio,
            small_steps=lambda: self._tight,
            guard=self._check_claim,
            mark=lambda progress: self._verifier().mark_counts(progress=progress),
        )

    def verifier(self) -> Verifier:
        """The verifier of the store."""
        if not is_remote(self.objects):
            return self._verifier()
        from holdfast.store.objects.cached_store import uncached

        # The bucket itself must be verified, not the cache on this disk.
        proved = Store(uncached(self.objects), self.catalog, random=self._random, open_cold=self._open_cold)
        return proved._verifier()

    def _verifier(self) -> Verifier:
        from holdfast.store.verification.verifier import Verifier

        return Verifier(self.catalog, self.objects, self.children, self.reader.read, self.tier_objects)

    def note_copy(self) -> None:
        """Note in the home that it becomes a copy: until that is whole, it is not opened otherwise."""
        if self._home is not None:
            object_store_binding.note_copy(self._home)

    def _check_claim(self) -> None:
        """Raise `RefusedError` if the objects in a bucket are not, or no longer, this store's."""
        if self.bucket is not None and not self.catalog.database.read_only:
            from holdfast.store.identity.bucket_claim import check_owned

            check_owned(self.catalog, self.bucket)

    def release_reserve(self) -> bool:
        """Give up the ballast if the disk is full, and save space from now on; False if that has freed nothing."""
        if self._home is None or not disk_reserve.release(self._home):
            return False
        self.save_space()
        return True

    def save_space(self) -> None:
        """Take as little space on the side as possible from now on, however slow that is."""
        self._tight = True
        self.catalog.database.save_space()

    def restore_reserve(self) -> None:
        """Make the ballast again, if it was given up and there is room for it."""
        if self._home is not None:
            disk_reserve.create(self._home, again=True)

    def take_spare_if_due(self) -> None:
        """Make a spare of the home's own catalog, if the newest is a day old and there is room. Best effort. Takes as
        long as the catalog is large: for what keeps house alone.
        """
        if self._home is None or not isinstance(self.catalog.database, SqliteDatabase):
            return  # a server has backups of its own
        from holdfast.store import catalog_spare

        if not self.catalog.database.read_only and catalog_spare.is_due(self._home, self.catalog.clock.now()):
            _take_spare(self._home, self.catalog.clock)

    def used_bytes(self) -> int:
        """The size of the store, without the catalog."""
        return self.catalog.used_bytes()

    def close(self) -> None:
        """Close the catalog. Harmless a second time."""
        self.catalog.close()

    def __enter__(self) -> Store:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _own_catalog(folder: bytes, settings: Settings, objects: ObjectStore, clock: Clock, *, becoming: bool) -> Catalog:
    """The catalog in the home itself."""
    path = folder + b"/" + CATALOG
    location = settings.store.url or folder + b"/" + OBJECTS
    check_new = partial(_refuse_lost_catalog, folder, local_directory(location))
    if _is_empty(path):
        # Asked before SQLite looks at it, which deletes the log of a file that has become empty.
        try:
            check_new()
        except IntegrityError:
            if _is_empty(path):  # else another process has just begun this home
                raise
    database = SqliteDatabase(
        path,
        MIGRATIONS,
        application_id=APPLICATION_ID,
        timeout=settings.lock.timeout,
        check_new=check_new,
        before_upgrade=partial(_take_spare, folder, clock),
    )
    disk_reserve.create(folder)
    try:
        catalog = Catalog(database, settings.store.tenant, clock)
        catalog.keys = keys_of(objects)
        if not becoming:
            object_store_binding.check(folder, settings.store.url, objects, catalog)
    except BaseException:
        database.close()
        raise
    return catalog


def _refuse_lost_catalog(folder: bytes, objects: bytes | None) -> None:
    """Raise `IntegrityError` if there are objects that the catalog does not know: a new catalog would count all of them
    as dead.

    ``objects`` is a directory of this machine (None: they are remote, and the home's other files decide).
    """
    from holdfast.store.catalog_spare import was_there

    lost = was_there(folder)
    for kind in (b"packs", b"blobs", b"checkpoints"):
        if objects is None:
            break
        try:
            with os.scandir(objects + b"/" + kind) as tenants:
                lost = lost or next(tenants, None) is not None
        except OSError:
            continue
    if lost:
        raise IntegrityError(
            f"{display(objects or folder)} holds objects, but their catalog {display(folder)}/{CATALOG.decode()} is "
            "missing or empty; nothing was touched",
            hint="`holdfast doctor --repair` brings it back; or put it back from a copy, or name another store.url "
            "to begin anew",
        )


def _take_spare(folder: bytes, clock: Clock) -> None:
    """Best effort: a catalog that is whole needs none."""
    from holdfast.store import catalog_spare

    try:
        catalog_spare.take(folder, folder + b"/" + CATALOG, clock.now())
    except StorageError as error:
        _LOG.warning("%s", error.message)


def _is_empty(catalog: bytes) -> bool:
    """True if the file is missing or empty."""
    try:
        return not os.path.getsize(catalog)
    except FileNotFoundError:
        return True


class _StoredPages:
    """`PageSource` that are stored."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        found = self._store.read_pages(hashes)
        return [found[name] for name in hashes]


class _OverlaidPages:
    """`PageSource` of which some are in memory."""

    __slots__ = ("_below", "_new")

    def __init__(self, below: PageSource, new: Mapping[Hash, bytes]) -> None:
        self._below = below
        self._new = new

    def read(self, hashes: Sequence[Hash], /) -> list[bytes]:
        missing = [name for name in hashes if name not in self._new]
        found = dict(zip(missing, self._below.read(missing), strict=True)) if missing else {}
        return [self._new[name] if name in self._new else found[name] for name in hashes]
