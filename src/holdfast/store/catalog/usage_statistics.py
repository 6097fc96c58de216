"""Numbers and sizes, from the catalog's rows."""

from __future__ import annotations

from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING, cast
from holdfast.store.catalog.schema import OWN_OBJECT, PAGE
from holdfast.store.catalog_records import DELTA_OVERHEAD, PACK_OVERHEAD, RECORD_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.database.sql_database import Transaction


class Stats(NamedTuple):
    """The result of `stats`. Numbers are bytes unless stated otherwise. Exact while no counts are unsettled."""

    workspaces: int
    """How many are live."""
    checkpoints: int
    blobs: int
    """How many distinct contents are stored."""
    pages: int
    packs: int
    content_bytes: int
    """The sum of the sizes of all distinct content, pages not counted."""
    stored_bytes: int
    """The size of blobs, pages and packs in the object store."""
    dead_bytes: int
    """Of ``stored_bytes``: what nothing uses."""
    catalog_bytes: int
    largest: Sequence[tuple[bytes, int]] = ()
    """The paths with the most content below them, and how much that is; for a caller that looks at a tree to add."""


def stats(transaction: Transaction, tenant: int, catalog_bytes: int) -> Stats:
    """Count everything of a tenant; a page that waits to be settled may count as dead."""
    packs, packed = _packs(transaction, tenant)
    overhead = f"CASE WHEN pack IS NULL THEN 0 WHEN base IS NULL THEN {RECORD_OVERHEAD} ELSE {DELTA_OVERHEAD} END"
    rows = transaction.all(
        f"""SELECT kind, pack IS NULL, refs > 0 OR deltas > 0, count(*), sum(size), sum(length), sum({overhead})
        FROM blobs WHERE tenant = ? GROUP BY 1, 2, 3""",
        (tenant,),
    )
    # The other content beside pages with rows: their headers.
    own = f"SELECT number FROM packs WHERE tenant = ? AND {OWN_OBJECT}"
    headers = _number(
        transaction,
        f"""SELECT coalesce(sum(size - {PACK_OVERHEAD}), 0) -
            (SELECT coalesce(sum(length + {overhead}), 0) FROM blobs WHERE tenant = ? AND pack IN ({own}))
        FROM packs WHERE tenant = ? AND {OWN_OBJECT}""",
        *[tenant] * 5,
    )
    pages = sum(row[3] for row in rows if row[0] == PAGE)
    stored = packed + sum(row[5] for row in rows if row[1])
    return Stats(
        workspaces=_number(transaction, "SELECT count(*) FROM workspaces WHERE tenant = ? AND live = 1", tenant),
        checkpoints=_number(transaction, "SELECT count(*) FROM checkpoints WHERE tenant = ?", tenant),
        blobs=sum(row[3] for row in rows) - pages,
        pages=pages,
        packs=packs,
        content_bytes=sum(row[4] for row in rows if row[0] != PAGE),
        stored_bytes=stored,
        dead_bytes=max(0, stored - packs * PACK_OVERHEAD - headers - sum(row[5] + row[6] for row in rows if row[2])),
        catalog_bytes=catalog_bytes,
    )


def used_bytes(transaction: Transaction, tenant: int) -> int:
    """The size of blobs, pages and packs in the object store. Cheap: it reads packs and large blobs alone."""
    # Every object has a length. Said here, it lets SQLite see that the index of large blobs serves, which it
    # else leaves for the primary key, and every row of the table.
    alone = "SELECT coalesce(sum(length), 0) FROM blobs WHERE tenant = ? AND pack IS NULL AND length > 0"
    packed = "SELECT coalesce(sum(size), 0) FROM packs WHERE tenant = ?"
    return sum(rows[0][0] for rows in transaction.together([(alone, (tenant,)), (packed, (tenant,))]))


def _packs(transaction: Transaction, tenant: int) -> tuple[int, int]:
    """The number of packs, and their size."""
    row = transaction.one("SELECT count(*), coalesce(sum(size), 0) FROM packs WHERE tenant = ?", (tenant,))
    return (0, 0) if row is None else (row[0], row[1])


def _number(transaction: Transaction, sql: str, *values: int) -> int:
    row = transaction.one(sql, values)
    return cast("int", row[0]) if row else 0
