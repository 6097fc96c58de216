"""Committing a checkpoint to the catalog: one write transaction, with the rows of large ones laid in ahead of it."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.model.errors import NotFoundError
from holdfast.store.checksums import CHECKPOINTS, set_checksum
from holdfast.store.history import append_event, check_cursor, set_cursor
from holdfast.store.liveness import RAISE, chunks, count_root, moment, slots
from holdfast.store.records import Cursor, VanishedError, large_blob_key
from holdfast.store.schema import BASE, BLOB, PAGE, UNCOUNTED, UNMARKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.model.ids import Hash, PackId
    from holdfast.store.database import Database, Session
    from holdfast.store.records import CheckpointCommit, NewBlob, NewPack

AHEAD = 4000
"""A commit with more new blobs lays them in ahead, this many in a transaction, so that it blocks nobody for long."""
SPARED = 24 * 3600 * 1_000_000
"""Microseconds for which rows laid in ahead are left alone by collection, whatever its grace time."""

_INSERT = """INSERT INTO blobs
    (tenant, hash, kind, size, codec, base, pack, place, length, generation, refs, deltas, counted, dead_since)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?) ON CONFLICT DO NOTHING"""


class Committer:
    """Commits checkpoints of one tenant. ``tenant`` is its number, ``name`` its name in object keys."""

    __slots__ = ("_database", "_name", "_now", "_tenant")

    def __init__(self, database: Database, tenant: int, name: str, now: Callable[[], int]) -> None:
        self._database = database
        self._tenant = tenant
        self._name = name
        self._now = now

    def commit(self, commit: CheckpointCommit) -> Cursor:
        """See `Catalog.commit`."""
        ahead: list[NewBlob] = []
        rest = list(commit.blobs)
        if len(rest) > AHEAD:
            # Those that stand on nothing first, so that a base's row is there before its delta's. Pages and objects of
            # their own are few and wait: a page's row must never be there without its children's.
            small = sorted([blob for blob in rest if blob.kind == "blob" and blob.pack], key=itemgetter(0))
            ahead = [blob for blob in small if blob.base is None] + [blob for blob in small if blob.base is not None]
            rest = [blob for blob in rest if blob.kind != "blob" or not blob.pack]
        # What is found alive now, or laid in from now on, is alive at the end if nothing was collected meanwhile.
        with self._database.reading() as session:
            swept = self._swept(session)
            self._check_alive(session, commit.relied_on)
        for start in range(0, len(ahead), AHEAD):
            self._lay_in(commit, ahead[start : start + AHEAD])
        with self._database.writing() as session:
            if self._swept(session) != swept:
                self._check_alive(session, commit.relied_on.union(blob.hash for blob in ahead))
            return self._finish(session, commit, rest)

    def _lay_in(self, commit: CheckpointCommit, blobs: Sequence[NewBlob]) -> None:
        with self._database.writing() as session:
            now = moment(session, self._tenant, self._now())
            numbers = self._add_packs(session, commit, now)
            self._add_blobs(session, blobs, numbers, now)

    def _finish(self, session: Session, commit: CheckpointCommit, blobs: Sequence[NewBlob]) -> Cursor:
        tenant, checkpoint = self._tenant, commit.checkpoint
        check_cursor(session, tenant, checkpoint.workspace, commit.expected)
        if checkpoint.parent is not None and not session.one(
            "SELECT 1 FROM checkpoints WHERE tenant = ? AND id = ?", (tenant, checkpoint.parent)
        ):
            raise NotFoundError(f"the parent checkpoint {checkpoint.parent} is gone")
        now = moment(session, tenant, self._now())
        numbers = self._add_packs(session, commit, now)
        self._check_keys(session, [blob for blob in blobs if blob.pack is None])
        self._add_blobs(session, [blob for blob in blobs if blob.kind == "blob"], numbers, now)
        self._add_pages(session, [blob for blob in blobs if blob.kind == "page"], numbers, now)
        session.many("UPDATE packs SET spared_until = 0 WHERE number = ?", ((number,) for number in numbers.values()))
        if not count_root(session, tenant, checkpoint.root):
            raise VanishedError([checkpoint.root])
        self._add_checkpoint(session, commit)
        return self._advance(session, commit)

    def _swept(self, session: Session) -> int:
        row = session.one("SELECT swept FROM tenants WHERE number = ?", (self._tenant,))
        return row[0] if row else 0

    def _check_alive(self, session: Session, hashes: frozenset[Hash]) -> None:
        missing = hashes - known(session, self._tenant, hashes)
        if missing:
            raise VanishedError(missing)

    def _check_keys(self, session: Session, blobs: Iterable[NewBlob]) -> None:
        gone = {
            blob.hash
            for blob in blobs
            if self._condemned(session, large_blob_key(self._name, blob.hash, blob.generation))
        }
        if gone:
            raise VanishedError(gone)

    def _condemned(self, session: Session, key: str) -> bool:
        return session.one("SELECT 1 FROM tombstones WHERE tenant = ? AND key = ?", (self._tenant, key)) is not None

    def _add_packs(self, session: Session, commit: CheckpointCommit, now: int) -> dict[PackId, int]:
        numbers: dict[PackId, int] = {}
        for pack in commit.packs:
            numbers[pack.id] = self._add_pack(session, commit, pack, now)
        return numbers

    def _add_pack(self, session: Session, commit: CheckpointCommit, pack: NewPack, now: int) -> int:
        row = session.one("SELECT number, spared_until FROM packs WHERE tenant = ? AND id = ?", (self._tenant, pack.id))
        # A pack that collection has condemned or sealed takes no more rows: it may be on its way out.
        if (row is not None and not row[1]) or self._condemned(session, pack.key):
            raise VanishedError([blob.hash for blob in commit.blobs if blob.pack == pack.id])
        if row is None:
            row = session.one(
                """INSERT INTO packs (tenant, id, key, size, created_at, spared_until)
                VALUES (?, ?, ?, ?, ?, ?) RETURNING number""",
                (self._tenant, pack.id, pack.key, pack.size, now, now + SPARED),
            )
        assert row is not None
        return row[0]

    def _add_blobs(self, session: Session, blobs: Sequence[NewBlob], numbers: dict[PackId, int], now: int) -> bool:
        """Enter ``blobs``; True if none of them was known."""
        # In the order of the table's key: a thousand pages of it are then written once each.
        plain = sorted([blob for blob in blobs if blob.base is None], key=itemgetter(0))
        new = session.many(_INSERT, self._rows(plain, numbers, now)) == len(plain)
        if not new:
            # Some were known: one of them perhaps as a former page, which does not count as stored content.
            session.many(
                f"UPDATE blobs SET kind = {BLOB} WHERE tenant = ? AND hash = ? AND kind = {BASE}",
                ((self._tenant, blob.hash) for blob in plain),
            )
        return self._add_deltas(session, [blob for blob in blobs if blob.base is not None], numbers, now) and new

    def _add_deltas(self, session: Session, blobs: Sequence[NewBlob], numbers: dict[PackId, int], now: int) -> bool:
        if not blobs:
            return True
        there = known(session, self._tenant, (blob.hash for blob in blobs), every=True)
        new = list({blob.hash: blob for blob in blobs if blob.hash not in there}.values())
        session.many(
            f"UPDATE blobs SET kind = {BLOB} WHERE tenant = ? AND hash = ? AND kind = {BASE}",
            ((self._tenant, blob.hash) for blob in blobs if blob.hash in there and blob.kind == "blob"),
        )
        bases = Counter(blob.base for blob in new if blob.base is not None)
        good = whole(session, self._tenant, bases)
        homeless = [blob.hash for blob in new if blob.base not in good]
        if homeless:
            raise VanishedError(homeless)
        session.many(_INSERT, self._rows(new, numbers, now))
        session.many(
            "UPDATE blobs SET deltas = deltas + ? WHERE tenant = ? AND hash = ?",
            ((count, self._tenant, base) for base, count in bases.items()),
        )
        return not there

    def _add_pages(self, session: Session, pages: Sequence[NewBlob], numbers: dict[PackId, int], now: int) -> None:
        if self._add_blobs(session, pages, numbers, now):
            return
        # A page may have been known before as a user's file of the same bytes, or as a former page.
        session.many(
            f"""UPDATE blobs SET kind = {PAGE}, counted = {UNMARKED}, {RAISE}
            WHERE tenant = ? AND hash = ? AND kind <> {PAGE}""",
            ((now, now, self._tenant, page.hash) for page in pages),
        )

    def _rows(self, blobs: Sequence[NewBlob], numbers: dict[PackId, int], now: int) -> list[tuple[object, ...]]:
        # One comprehension, no call per row: a first checkpoint has as many rows as files.
        tenant = self._tenant
        places: dict[PackId | None, int | None] = {None: None, **numbers}
        kinds = {"blob": (BLOB, UNCOUNTED), "page": (PAGE, UNMARKED)}
        return [
            (tenant, name, kinds[kind][0], size, codec, base, places[pack], at, length, generation, kinds[kind][1], now)
            for name, kind, size, codec, base, pack, at, length, generation in blobs
        ]

    def _add_checkpoint(self, session: Session, commit: CheckpointCommit) -> None:
        tenant, point = self._tenant, commit.checkpoint
        session.run(
            f"""INSERT INTO checkpoints (tenant, id, workspace, parent, root, kind, label, created_at, added, modified,
            deleted, total_files, total_bytes, new_blobs, stored_bytes, not_captured, author, message, command)
            VALUES {slots(19)}""",
            (tenant, *point[:7], *point.changes, *point[8:12], len(commit.not_captured), *point.provenance),
        )
        if commit.changeset is not None:
            session.run("INSERT INTO changesets VALUES (?, ?, ?)", (tenant, point.id, commit.changeset))
        session.many(
            "INSERT INTO not_captured VALUES (?, ?, ?, ?, ?)",
            ((tenant, point.id, place, *missed) for place, missed in enumerate(commit.not_captured)),
        )
        set_checksum(session, CHECKPOINTS, tenant, point.id)
        if commit.taken_in is not None:
            from holdfast.store.merges import add

            add(session, tenant, point.id, commit.taken_in, point.created_at)

    def _advance(self, session: Session, commit: CheckpointCommit) -> Cursor:
        point = commit.checkpoint
        if commit.event is not None:
            seq = append_event(session, self._tenant, point.workspace, commit.event)
            cursor = Cursor(point.id, seq, seq if commit.redo_tip is None else commit.redo_tip)
        elif point.kind in ("import", "merge"):
            return commit.expected
        else:
            cursor = commit.expected._replace(head=point.id)
        set_cursor(session, self._tenant, point.workspace, cursor)
        return cursor


def known(
    session: Session, tenant: int, hashes: Iterable[Hash], *, pages: bool = False, every: bool = False
) -> set[Hash]:
    """Those of ``hashes`` that are stored: as content or page, only as ``pages``, or (``every``) in any way."""
    return _those(session, tenant, hashes, "" if every else f"AND kind = {PAGE}" if pages else f"AND kind <> {BASE}")


def whole(session: Session, tenant: int, hashes: Iterable[Hash]) -> set[Hash]:
    """Those of ``hashes`` that a delta may stand on: stored, and not as a delta themselves."""
    return _those(session, tenant, hashes, "AND base IS NULL")


def _those(session: Session, tenant: int, hashes: Iterable[Hash], where: str) -> set[Hash]:
    found: set[Hash] = set()
    for part in chunks(sorted(hashes)):
        rows = session.all(
            f"SELECT hash FROM blobs WHERE tenant = ? AND hash IN {slots(len(part))} {where}", (tenant, *part)
        )
        found.update(row[0] for row in rows)
    return found
