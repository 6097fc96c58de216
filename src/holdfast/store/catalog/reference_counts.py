"""Finds live rows: reference counts by level, settled later than the commits that change them.

``refs`` of a row counts the checkpoints and pins whose root it is, and the *counted* pages that refer to it; ``deltas``
counts the rows that are stored as a delta against it. A page is live while its refs are above 0, and a live page should
be counted by its children. That is deferred: a commit counts only its root, a forget uncounts only its root, and
`deferred_counts` brings the children of pages whose state has changed up to date, level by level, in small
transactions. While `pending` finds nothing, ``refs = 0 AND deltas = 0`` is the same as *reachable from nothing*.

Two properties hold at all times, and everything else leans on them:

- *Closed*: where a page's row is, the rows of all its children are, down to the last blob; where a delta's row is, its
  base's row is. So a commit that finds a page stored already may rely on all that is below it.
- *Ordered*: ``dead_since`` of a row is never before that of a dead page which names it, so that a collector
  that deletes the pages that died by some time before the blobs that died by that time keeps the first property.
"""

from __future__ import annotations

from holdfast.model.errors import IntegrityError
from holdfast.model.fast_typing import TYPE_CHECKING, TypeVar
from holdfast.model.ids import format_hash
from holdfast.store.catalog.schema import DEAD_PAGE, PENDING, UNCOUNTED, UNMARKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.model.ids import Hash
    from holdfast.store.database.sql_database import Database, Row, Transaction

_T = TypeVar("_T")

ROWS_PER_STEP = 1000
"""Rows deleted in one transaction."""
HASHES_PER_QUERY = 500

COUNT = "UPDATE blobs SET refs = refs + ? WHERE tenant = ? AND hash = ?"
"""Add to the references of a row: how many, tenant, hash."""
RAISE = "dead_since = CASE WHEN dead_since < ? THEN ? ELSE dead_since END"
"""Sets a time of death (the parameter twice), never to an earlier one: a dead page may not outlive its children."""
UNCOUNT = f"""UPDATE blobs SET refs = refs - ?, {RAISE},
    counted = CASE WHEN kind = 1 AND refs = ? AND counted = {UNCOUNTED} THEN {UNMARKED} ELSE counted END
    WHERE tenant = ? AND hash = ? AND refs >= ?"""
"""Subtract from the references, since a time: how many, twice the time, how many, tenant, hash, how many."""

_CLOCK_STEP = 3_600_000_000
"""Microseconds that the clock may have gone back without being taken for set right."""


def slots(count: int) -> str:
    """``(?, ?, ?)`` for ``count`` parameters."""
    return "(" + ", ".join("?" * count) + ")"


def chunks(items: Iterable[_T], size: int = HASHES_PER_QUERY) -> Iterable[list[_T]]:
    """``items`` in lists of at most ``size``: as many as a query names at once."""
    listed = list(items)
    return (listed[at : at + size] for at in range(0, len(listed), size))


def moment(transaction: Transaction, tenant: int, now: int) -> int:
    """The time to write into ``dead_since``: ``now``, but not before a time that was written in the last hour.

    A clock that was far ahead and has been set right is followed: else what died meanwhile would be kept until that
    time comes. Every time that lies in the future is brought down to ``now``, which keeps their order.
    """
    row = transaction.one("SELECT latest FROM tenants WHERE number = ?", (tenant,))
    latest: int = row[0] if row else 0
    note_moment(transaction, tenant, latest, now)
    return moment_after(latest, now)


def moment_after(latest: int, now: int) -> int:
    """`moment` for a known time of the last write; `note_moment` must be called as well."""
    return latest if now < latest <= now + _CLOCK_STEP else now


def note_moment(transaction: Transaction, tenant: int, latest: int, now: int) -> None:
    """Write down that `moment_after` of these two was used."""
    if moment_after(latest, now) == latest:
        return
    if latest > now:
        transaction.run("UPDATE blobs SET dead_since = ? WHERE tenant = ? AND dead_since > ?", (now, tenant, now))
    transaction.run("UPDATE tenants SET latest = ? WHERE number = ?", (now, tenant))


def count_root(transaction: Transaction, tenant: int, root: Hash) -> bool:
    """Add a reference to the page ``root``; False if there is no such page."""
    return transaction.run(f"{COUNT} AND kind = 1", (1, tenant, root)) == 1


def uncount_root(transaction: Transaction, tenant: int, root: Hash, now: int) -> None:
    """Remove one `count_root`. Its consequences are settled later."""
    if transaction.run(UNCOUNT, (1, now, now, 1, tenant, root, 1)) != 1:
        raise IntegrityError(
            f"the count of the root page {format_hash(root)} is wrong", hint="run: holdfast gc --recount"
        )


def pending(transaction: Transaction, tenant: int) -> bool:
    """True while some page's children do not hold the counts that they should."""
    return transaction.one(f"SELECT 1 FROM blobs WHERE tenant = ? AND {PENDING} LIMIT 1", (tenant,)) is not None


def sweep_pages_step(
    database: Database, tenant: int, died_by: int, limit: int = ROWS_PER_STEP
) -> tuple[int, int] | None:
    """Delete at most ``limit`` pages that died at ``died_by`` or before; None if counts are unsettled.

    Returns how many were examined, and how many of these deleted: a base of a delta stays as mere bytes. Objects are
    not touched: pages are in packs.
    """
    with database.writing() as transaction:
        if pending(transaction, tenant):
            return None
        rows = transaction.all(
            f"""SELECT hash, deltas, base, dead_since FROM blobs
            WHERE tenant = ? AND {DEAD_PAGE} AND dead_since <= ? LIMIT ?""",
            (tenant, died_by, limit),
        )
        if not rows:
            return 0, 0
        kept = [row[0] for row in rows if row[1]]
        transaction.many("UPDATE blobs SET kind = 2 WHERE tenant = ? AND hash = ?", ((tenant, page) for page in kept))
        _delete(transaction, tenant, [row for row in rows if not row[1]])
        return len(rows), len(rows) - len(kept)


def dead_blobs(database: Database, tenant: int, died_by: int) -> list[Hash]:
    """Candidates for `sweep_blobs_step`: blobs that seem dead since ``died_by`` or before."""
    with database.reading(once=True) as transaction:
        rows = transaction.all(
            "SELECT hash FROM blobs WHERE tenant = ? AND refs = 0 AND deltas = 0 AND kind <> 1 AND dead_since <= ?",
            (tenant, died_by),
        )
    return [row[0] for row in rows]


def sweep_blobs_step(
    database: Database,
    tenant: int,
    hashes: Sequence[Hash],
    died_by: int,
    now: int,
    condemn: Callable[[Hash, int], str],
) -> int | None:
    """Delete those of ``hashes`` (at most `HASHES_PER_QUERY`) that are dead since ``died_by`` or before.

    Returns their number; None, without a change, if counts are unsettled or dead pages from before ``died_by`` still
    exist. An object of its own is condemned: ``condemn(hash, generation)`` is its key, and the caller deletes it after
    the commit.
    """
    with database.writing() as transaction:
        if pending(transaction, tenant) or transaction.one(
            f"SELECT 1 FROM blobs WHERE tenant = ? AND {DEAD_PAGE} AND dead_since <= ? LIMIT 1", (tenant, died_by)
        ):
            return None
        rows = transaction.all(
            f"""SELECT hash, deltas, base, dead_since, pack, generation, length FROM blobs
            WHERE tenant = ? AND hash IN {slots(len(hashes))}
            AND refs = 0 AND deltas = 0 AND kind <> 1 AND dead_since <= ? AND NOT EXISTS (
                SELECT 1 FROM packs WHERE packs.number = blobs.pack AND packs.spared_until > ?
            )""",
            (tenant, *hashes, died_by, now),
        )
        if not rows:
            return 0
        alone = [(condemn(row[0], row[5]), row[6]) for row in rows if row[4] is None]
        transaction.many(
            "INSERT INTO tombstones (tenant, key, size, deleted_at) VALUES (?, ?, ?, NULL) ON CONFLICT DO NOTHING",
            ((tenant, key, size) for key, size in alone),
        )
        _delete(transaction, tenant, rows)
        return len(rows)


def _delete(transaction: Transaction, tenant: int, rows: list[Row]) -> None:
    transaction.many("DELETE FROM blobs WHERE tenant = ? AND hash = ?", ((tenant, row[0]) for row in rows))
    # A dead page's own time must not move without its children's, so only other bases get their delta's time of death.
    transaction.many(
        """UPDATE blobs SET deltas = deltas - 1,
        dead_since = CASE WHEN kind <> 1 AND dead_since < ? THEN ? ELSE dead_since END WHERE tenant = ? AND hash = ?""",
        ((row[3], row[3], tenant, row[2]) for row in rows if row[2] is not None),
    )
    transaction.run("UPDATE tenants SET swept = swept + 1 WHERE number = ?", (tenant,))
