"""Collection: deletes content that nothing needs any more, whatever else runs at the same time (I11).

Every step is a small transaction, or deletes objects that a transaction has condemned. An object's key is written to
``tombstones`` before the object is deleted, and a commit that would use such a key is refused; so a key that is being
deleted is never in use, however long ago a collector decided to delete it. After a kill at any point, the next run
continues with the remaining tombstones. A forecast predicts the result of a collection, and deletes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast.model.errors import IntegrityError, NotFoundError, StorageError, room_hint
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import new_pack_id
from holdfast.model.log import Log
from holdfast.store.blobs.pack_format import PackEncoder
from holdfast.store.catalog import reference_counts
from holdfast.store.catalog.reference_counts import HASHES_PER_QUERY, ROWS_PER_STEP, chunks, slots
from holdfast.store.catalog.schema import DEAD_PAGE, OWN_OBJECT
from holdfast.store.catalog.work_lease import Lease
from holdfast.store.catalog_records import DELTA_OVERHEAD, PACK_OVERHEAD, RECORD_OVERHEAD, large_blob_key, pack_key
from holdfast.store.codecs.compression import Encoded
from holdfast.store.collection import count_correction, deferred_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.model.content import Progress
    from holdfast.model.ids import Hash
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.collection.count_correction import CountDrift, CountMark
    from holdfast.store.collection.deferred_counts import Children
    from holdfast.store.database.sql_database import Row, Transaction
    from holdfast.store.objects.object_store import ObjectStore


class CollectionForecast(NamedTuple):
    """The expected result of a collection in the catalog, without the objects that have no row."""

    rows: int
    freed: int
    packs_deleted: int
    packs_rewritten: int


def forecast(transaction: Transaction, tenant: int, died_by: int, now: int, ratio: float) -> CollectionForecast:
    """The expected result of `Collector.collect` for content that died at ``died_by`` or before, all counts settled.

    One transaction sees one state of the catalog. Takes memory in proportion to the dead content.
    """
    doomed = {row[0]: row for row in _doomed(transaction, tenant, died_by, now)}
    dead_in: dict[int, int] = {}
    freed = 0
    for _, pack, length, base, _ in doomed.values():
        if pack is None:
            freed += length
        else:
            dead_in[pack] = dead_in.get(pack, 0) + _taken(length, base)
    deleted = rewritten = 0
    for number, size, held in transaction.all(
        f"""SELECT packs.number, packs.size, coalesce(held.bytes, 0) FROM packs LEFT JOIN (
            SELECT pack, sum(length + CASE WHEN base IS NULL THEN {RECORD_OVERHEAD} ELSE {DELTA_OVERHEAD} END) AS bytes
            FROM blobs WHERE tenant = ? AND pack IS NOT NULL GROUP BY pack
        ) held ON held.pack = packs.number
        WHERE packs.tenant = ? AND packs.spared_until <= ? AND NOT {OWN_OBJECT}""",
        (tenant, tenant, now, tenant),
    ):
        live = held - dead_in.get(number, 0)
        if not live:
            deleted += 1
            freed += size
        elif live < size * ratio:
            rewritten += 1
            freed += size - live - PACK_OVERHEAD
    condemned = transaction.one(
        "SELECT coalesce(sum(size), 0) FROM tombstones WHERE tenant = ? AND deleted_at IS NULL", (tenant,)
    )
    return CollectionForecast(len(doomed), freed + (condemned[0] if condemned else 0), deleted, rewritten)


def _taken(length: int, base: Hash | None) -> int:
    return length + (RECORD_OVERHEAD if base is None else DELTA_OVERHEAD)


def _doomed(transaction: Transaction, tenant: int, died_by: int, now: int) -> Iterable[Row]:
    """Hash, pack, length, base and deltas of every row to delete: dead rows, and the bases that only they needed."""
    free = transaction.all(
        f"""SELECT hash, pack, length, base, deltas FROM blobs
        WHERE tenant = ? AND refs = 0 AND dead_since <= ? AND ({DEAD_PAGE} OR NOT EXISTS (
            SELECT 1 FROM packs WHERE packs.number = blobs.pack AND packs.spared_until > ?
        ))""",
        (tenant, died_by, now),
    )
    bases: dict[Hash, int] = {}
    for row in free:
        if row[3] is not None and not row[4]:
            bases[row[3]] = bases.get(row[3], 0) + 1
    # No delta has a delta as its base, so one step finds all bases that die with their deltas.
    return (row for row in free if row[4] == bases.get(row[0], 0))


_T = TypeVar("_T")
_LOG = Log(__name__)

LEASE = "collection"
REMEMBERED = 7 * 24 * 3600 * 1_000_000
"""Microseconds for which the key of a deleted object is not used again."""
UPLOADS = 24 * 3600 * 1_000_000
"""Microseconds after which an upload that was never finished is thrown away, even if the grace time is shorter."""

_READ_BYTES = 1 << 20
_PACKS_PER_QUERY = 8
_DIVISOR = 8
"""How many times smaller the steps are that are to take little space."""
_PATIENCE = 1000
"""How often collection settles again because others commit in between, before it leaves the rest to the next run."""


class Collected(NamedTuple):
    """The result of a collection."""

    blobs_deleted: int
    """Rows of blobs and pages that nothing needed."""
    bytes_freed: int
    """In the object store; what rewritten packs take is subtracted."""
    packs_deleted: int
    """Packs in which nothing was needed any more."""
    packs_rewritten: int
    dry_run: bool = False
    """True for a prediction: nothing was deleted."""
    corrected: Sequence[CountDrift] = ()
    """Counts that were not what a full mark has found, and are now (or would be), if one was made."""


Recount = Literal["never", "due", "now"]
"""Whether every count is compared with a full mark before anything is deleted: every 30 days, or at once."""


class Collector:
    """Settles counts and collects for the tenant of ``catalog``.

    ``children`` reads pages; ``rewrite_ratio`` is the live share below which a pack is rewritten. ``small_steps`` tells
    whether transactions must take little space, as on a full disk. ``guard`` raises if this store may not delete the
    objects. ``mark`` recounts: see `Verifier.mark_counts`.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: ObjectStore,
        children: Children,
        random: Callable[[int], bytes],
        *,
        rewrite_ratio: float = 0.5,
        small_steps: Callable[[], bool] = lambda: False,
        guard: Callable[[], None] = lambda: None,
        mark: Callable[[Progress | None], CountMark],
    ) -> None:
        self._catalog = catalog
        self._database = catalog.database
        self._tenant = catalog.tenant
        self._objects = objects
        self._children = children
        self._random = random
        self._ratio = rewrite_ratio
        self._small_steps = small_steps
        self._guard = guard
        self._mark = mark
        self._lease = Lease(catalog.database, catalog.tenant, LEASE, catalog.clock)
        self._progress: Progress | None = None
        self._rows = self._freed = self._emptied = self._rewritten = 0

    def _divisor(self) -> int:
        return _DIVISOR if self._small_steps() else 1

    def settle(self) -> int:
        """Bring every count up to date, in small transactions; returns the number of examined pages. Needs no lease."""
        done = 0
        if self._database.read_only:
            return done  # the counts stay outdated
        limit = deferred_counts.PAGES_PER_STEP // self._divisor()
        while step := deferred_counts.settle_step(self._database, self._tenant, self._children, limit):
            done += step
            self._report("settle", done)
        return done

    def collect(self, grace: float, *, recount: Recount = "never", progress: Progress | None = None) -> Collected:
        """Delete content that has been dead for ``grace`` seconds (0: all dead content); rewrite packs that are mostly
        dead. ``recount`` tells whether drifted counts are corrected before.

        One collection runs at a time: raises `LockedError` if another does. May be interrupted at any point. Raises
        `IntegrityError`, having deleted nothing that a damaged page might name, if a live page cannot be read.
        """
        self._progress = progress
        self._rows = self._freed = self._emptied = self._rewritten = 0
        self._lease.acquire()
        try:
            self._guard()
            corrected = self._recount() if recount == "now" or (recount == "due" and self._is_recount_due()) else ()
            self._collect(int(grace * 1_000_000))
        finally:
            self._progress = None
            self._lease.release()
        return Collected(self._rows, self._freed, self._emptied, self._rewritten, corrected=corrected)

    def preview(self, grace: float, *, recount: bool = False, progress: Progress | None = None) -> Collected:
        """The expected result of `collect` now. Settles counts, and deletes and writes nothing else.

        With ``recount`` it lists the counts that would be corrected; the content that this would free is not included.
        """
        self._progress = progress
        try:
            wrong = self._mark(progress).sure if recount else ()
            self._catalog.unpin_expired()
            self.settle()
            now = self._catalog.clock.now()
            died_by = now - int(grace * 1_000_000)
            with self._database.reading() as transaction:
                found = forecast(transaction, self._tenant, died_by, now, self._ratio)
            lost = sum(size for orphans in self._old_orphans(died_by) for _, size in orphans)
        finally:
            self._progress = None
        return Collected(found.rows, found.freed + lost, found.packs_deleted, found.packs_rewritten, True, tuple(wrong))

    def _is_recount_due(self) -> bool:
        with self._database.reading(once=True) as transaction:
            return count_correction.is_due(transaction, self._tenant, self._catalog.clock.now())

    def _recount(self) -> Sequence[CountDrift]:
        """Compare every count with a full mark and correct drifted ones; returns those."""
        mark = self._mark(self._progress)
        self._lease.renew()
        corrected = count_correction.correct(
            self._database, self._tenant, mark, self._catalog.clock.now, ROWS_PER_STEP // self._divisor()
        )
        if corrected is None:
            _LOG.warning("not all counts could be corrected: another collection went on; the next one tries again")
            return ()
        if corrected:
            _LOG.warning("%d counts were wrong and have been corrected", len(corrected))
        if not mark.is_whole and len(mark.sure) < len(mark.drifts):
            _LOG.warning(
                "%d counts may be too high, which cannot be told while the store is damaged: see `holdfast verify`",
                len(mark.drifts) - len(mark.sure),
            )
        with self._database.writing() as transaction:
            count_correction.note_done(transaction, self._tenant, self._catalog.clock.now())
        return tuple(corrected)

    def _collect(self, grace: int) -> None:
        self._delete_condemned()
        self._catalog.unpin_expired()
        with self._database.writing() as transaction:
            now = reference_counts.moment(transaction, self._tenant, self._catalog.clock.now())
            # Commits that added rows ahead and never finished are given up: they cannot complete any more.
            transaction.run(
                "UPDATE packs SET spared_until = 0 WHERE tenant = ? AND spared_until > 0 AND spared_until <= ?",
                (self._tenant, now),
            )
        while self._sweep(now - grace, now):
            pass
        self._delete_condemned()
        self._drop_empty_packs()
        self._rewrite_packs()
        self._guard()
        self._condemn_orphans(now - grace)
        self._objects.clean(now - max(grace, UPLOADS))
        with self._database.writing() as transaction:
            transaction.run(
                "DELETE FROM tombstones WHERE tenant = ? AND deleted_at < ?", (self._tenant, now - REMEMBERED)
            )

    # --- rows ---

    def _sweep(self, died_by: int, now: int) -> bool:
        """Take away the rows that are dead by ``died_by``; True if more may have become free by that."""
        before = self._rows
        limit = ROWS_PER_STEP // self._divisor()
        more = True
        while more:
            found = self._when_settled(
                lambda: reference_counts.sweep_pages_step(self._database, self._tenant, died_by, limit)
            )
            if found is None:
                return False
            more = found[0] > 0
            self._rows += found[1]
        dead = reference_counts.dead_blobs(self._database, self._tenant, died_by)
        for part in chunks(dead, HASHES_PER_QUERY // self._divisor()):
            removed = self._when_settled(lambda part=part: self._sweep_blobs(part, died_by, now))
            if removed is None:
                return False
            self._rows += removed
            self._report("sweep", self._rows)
        return self._rows > before

    def _sweep_blobs(self, hashes: Sequence[Hash], died_by: int, now: int) -> int | None:
        return reference_counts.sweep_blobs_step(self._database, self._tenant, hashes, died_by, now, self._large_key)

    def _when_settled(self, step: Callable[[], _T | None]) -> _T | None:
        for _ in range(_PATIENCE):
            self._lease.renew()
            if (done := step()) is not None:
                return done
            self.settle()
        _LOG.info("collection leaves the rest to the next run: too much is being committed")
        return None

    def _large_key(self, name: Hash, generation: int) -> str:
        return large_blob_key(self._catalog.name, name, generation)

    # --- objects ---

    def _delete_condemned(self) -> None:
        """Delete the objects that are condemned."""
        while True:
            self._lease.renew()
            with self._database.reading() as transaction:
                rows = transaction.all(
                    "SELECT key, size FROM tombstones WHERE tenant = ? AND deleted_at IS NULL LIMIT 200",
                    (self._tenant,),
                )
            if not rows:
                return
            for key, _ in rows:
                self._objects.delete(key)
            with self._database.writing() as transaction:
                now = self._catalog.clock.now()
                for key, size in rows:
                    self._freed += size * transaction.run(
                        "UPDATE tombstones SET deleted_at = ? WHERE tenant = ? AND key = ? AND deleted_at IS NULL",
                        (now, self._tenant, key),
                    )

    def _condemn(self, transaction: Transaction, key: str, size: int) -> None:
        transaction.run(
            """INSERT INTO tombstones (tenant, key, size, deleted_at) VALUES (?, ?, ?, NULL)
            ON CONFLICT (tenant, key) DO UPDATE SET size = excluded.size, deleted_at = NULL""",
            (self._tenant, key, size),
        )

    def _drop_empty_packs(self) -> None:
        """Condemn empty packs; no row is ever added to a sealed pack, so none comes late."""
        with self._database.reading() as transaction:
            rows = transaction.all(
                f"""SELECT number, key, size FROM packs WHERE tenant = ? AND spared_until = 0 AND number NOT IN
                (SELECT DISTINCT pack FROM blobs WHERE blobs.tenant = ? AND pack IS NOT NULL)
                AND NOT {OWN_OBJECT}""",
                (self._tenant, self._tenant, self._tenant),
            )
        for part in chunks(rows):
            with self._database.writing() as transaction:
                for number, key, size in part:
                    if transaction.run("DELETE FROM packs WHERE number = ?", (number,)):
                        self._condemn(transaction, key, size)
                        self._emptied += 1
            self._delete_condemned()

    def _condemn_orphans(self, older_than: int) -> None:
        """Condemn objects without rows: of checkpoints that were never committed, or stored twice."""
        for found in self._old_orphans(older_than):
            with self._database.writing() as transaction:
                for key, size in self._orphans(transaction, found):
                    self._condemn(transaction, key, size)
            self._delete_condemned()

    def _old_orphans(self, older_than: int) -> Iterator[list[tuple[str, int]]]:
        """Keys and sizes of objects that seem to have neither row nor tombstone, in batches."""
        name = self._catalog.name
        for prefix in (f"packs/{name}/", f"checkpoints/{name}/", f"blobs/{name}/"):
            old = ((info.key, info.size) for info in self._objects.list(prefix) if info.modified_at <= older_than)
            for part in _batched(old, HASHES_PER_QUERY):
                with self._database.reading() as transaction:
                    orphans = self._orphans(transaction, part)
                if orphans:
                    yield orphans

    def _orphans(self, transaction: Transaction, listed: list[tuple[str, int]]) -> list[tuple[str, int]]:
        keys = [key for key, _ in listed]
        rows = transaction.all(
            f"""SELECT key FROM packs WHERE tenant = ? AND key IN {slots(len(keys))}
            UNION ALL SELECT key FROM tombstones
            WHERE tenant = ? AND key IN {slots(len(keys))} AND deleted_at IS NULL""",
            (self._tenant, *keys, self._tenant, *keys),
        )
        named = {row[0] for row in rows}
        digits = [key.rpartition("/")[2].partition(".")[0] for key in keys if key.startswith("blobs/")]
        hashes = [bytes.fromhex(text) for text in digits if _is_hex(text)]
        if hashes:
            rows = transaction.all(
                f"""SELECT hash, generation FROM blobs
                WHERE tenant = ? AND hash IN {slots(len(hashes))} AND pack IS NULL""",
                (self._tenant, *hashes),
            )
            named.update(self._large_key(*row) for row in rows)
        return [item for item in listed if item[0] not in named]

    # --- packs ---

    def _rewrite_packs(self) -> None:
        with self._database.reading() as transaction:
            sparse = transaction.all(
                f"""SELECT packs.number, packs.key, packs.size FROM packs JOIN (
                    SELECT pack, sum(length + CASE WHEN base IS NULL THEN {RECORD_OVERHEAD} ELSE {DELTA_OVERHEAD} END)
                    AS live FROM blobs WHERE tenant = ? AND pack IS NOT NULL GROUP BY pack
                ) held ON held.pack = packs.number
                WHERE packs.tenant = ? AND packs.spared_until = 0 AND held.live < packs.size * ?
                AND NOT {OWN_OBJECT}
                ORDER BY held.live, packs.number""",
                (self._tenant, self._tenant, self._ratio, self._tenant),
            )
        for part in chunks(sparse, _PACKS_PER_QUERY):
            with self._database.reading() as transaction:
                rows = transaction.all(
                    f"""SELECT pack, hash, size, codec, base, place, length FROM blobs
                    WHERE tenant = ? AND pack IN {slots(len(part))} ORDER BY pack, place""",
                    (self._tenant, *(pack[0] for pack in part)),
                )
            for number, key, size in part:
                self._lease.renew()
                try:
                    self._rewrite(number, key, size, [row[1:] for row in rows if row[0] == number])
                except (IntegrityError, NotFoundError) as error:
                    _LOG.warning("pack %s is left as it is: %s", key, error)
                except StorageError as error:
                    if not isinstance(error.__cause__, OSError) or room_hint(error.__cause__) is None:
                        raise
                    # The others have more to copy. The freed space stays free; the next run continues.
                    _LOG.warning("the disk is too full to rewrite packs; collect again later")
                    return
                self._delete_condemned()
                self._report("rewrite", self._rewritten, len(sparse))

    def _rewrite(self, number: int, key: str, size: int, rows: list[Row]) -> None:
        """Copy the live records of a pack to a new one, and condemn the old one. Stored bytes stay the same."""
        pack = new_pack_id(self._random)
        new_key = pack_key(self._catalog.name, pack)
        encoder = PackEncoder()
        moved: list[tuple[int, Hash]] = []
        upload = self._objects.upload()
        try:
            upload.write(encoder.begin())
            for row, stored in self._stored(key, rows):
                name, content_bytes, codec, base = row[:4]
                head, offset = encoder.add(name, content_bytes, Encoded(codec, stored), base)
                upload.write(head)
                upload.write(stored)
                moved.append((offset, name))
            upload.write(encoder.end())
            upload.commit(new_key)
        finally:
            upload.abort()
        with self._database.writing() as transaction:
            taken = transaction.one(
                "SELECT 1 FROM tombstones WHERE tenant = ? AND key = ?", (self._tenant, new_key)
            ) or not transaction.run("DELETE FROM packs WHERE number = ?", (number,))
            if taken:
                return  # another collection was faster; the new pack is an orphan
            row = transaction.one(
                """INSERT INTO packs (tenant, id, key, size, created_at, spared_until)
                VALUES (?, ?, ?, ?, ?, 0) RETURNING number""",
                (self._tenant, pack, new_key, encoder.size, self._catalog.clock.now()),
            )
            assert row is not None
            transaction.many(
                "UPDATE blobs SET pack = ?, place = ? WHERE tenant = ? AND hash = ? AND pack = ?",
                ((row[0], offset, self._tenant, name, number) for offset, name in moved),
            )
            self._condemn(transaction, key, size)
        self._rewritten += 1
        self._freed -= encoder.size

    def _stored(self, key: str, rows: list[Row]) -> Iterator[tuple[Row, bytes]]:
        """Each row with its stored bytes; neighbours are read at once."""
        at = 0
        while at < len(rows):
            begin: int = rows[at][4]
            end = at + 1
            while end < len(rows) and rows[end][4] + rows[end][5] - begin <= _READ_BYTES:
                end += 1
            data = self._objects.get(key, begin, rows[end - 1][4] + rows[end - 1][5] - begin)
            for row in rows[at:end]:
                yield row, data[row[4] - begin : row[4] - begin + row[5]]
            at = end

    def _report(self, phase: str, done: int, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(phase, done, total)


def _is_hex(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)


def _batched(items: Iterator[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    batch: list[tuple[str, int]] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
