"""The places of blobs in the catalog, and new places for those that the object store had lost."""

from __future__ import annotations

from itertools import chain

from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.store.catalog.reference_counts import chunks, slots
from holdfast.store.catalog_records import BlobLocation, large_blob_key
from holdfast.store.objects.object_keys import is_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.model.ids import Hash, PackId
    from holdfast.store.blobs.content_writer import WrittenBlobs
    from holdfast.store.catalog_records import NewBlob, NewPack
    from holdfast.store.database.sql_database import Database, Row, Transaction


def locate(database: Database, tenant: int, name: str, hashes: Iterable[Hash]) -> dict[Hash, BlobLocation]:
    """See `Catalog.locate`; ``name`` is the tenant's in object keys."""
    parts = list(chunks(hashes))
    if not parts:
        return {}
    select = "SELECT hash, pack, place, length, codec, size, base, generation"
    if len(parts) == 1:
        # In one statement: most questions are about a few blobs.
        key = "(SELECT key FROM packs WHERE packs.tenant = blobs.tenant AND packs.number = blobs.pack)"
        question = f"{select}, {key} FROM blobs WHERE tenant = ? AND hash IN {slots(len(parts[0]))}"
        with database.reading(once=True) as transaction:
            found = transaction.all(question, (tenant, *parts[0]))
        return _locations(name, [row[:-1] for row in found], {row[1]: row[-1] for row in found})
    keys: dict[int | None, str | None] = {}
    with database.reading() as transaction:
        rows = list(
            chain.from_iterable(
                transaction.together(
                    [
                        (f"{select} FROM blobs WHERE tenant = ? AND hash IN {slots(len(part))}", (tenant, *part))
                        for part in parts
                    ]
                )
            )
        )
        # Rather than a join: ten thousand blobs lie in a few packs.
        for part in chunks({row[1] for row in rows if row[1] is not None}):
            question = f"SELECT number, key FROM packs WHERE tenant = ? AND number IN {slots(len(part))}"
            keys.update(transaction.all(question, (tenant, *part)))
    return _locations(name, rows, keys)


def _locations(name: str, rows: Iterable[Row], stored: Mapping[int | None, str | None]) -> dict[Hash, BlobLocation]:
    # A damaged key leads nowhere: its object counts as lost.
    keys = {pack: key for pack, key in stored.items() if key is not None and is_key(key)}
    return {
        blob: BlobLocation(
            large_blob_key(name, blob, generation) if pack is None else keys[pack], at, length, codec, size, base
        )
        for blob, pack, at, length, codec, size, base, generation in rows
        if pack is None or pack in keys
    }


def generation_of(transaction: Transaction, tenant: int, name: str, hash: Hash) -> int:  # noqa: A002 - the field's own name
    """See `Catalog.generation_of`; ``name`` is the tenant's in object keys."""
    first = large_blob_key(name, hash, 0)
    rows = transaction.all(
        "SELECT key FROM tombstones WHERE tenant = ? AND (key = ? OR (key > ? AND key < ?))",
        (tenant, first, first + ".", first + "/"),
    )
    return max((int(row[0][len(first) + 1 :] or 0) + 1 for row in rows), default=0)


def relocate(transaction: Transaction, tenant: int, written: WrittenBlobs, now: int) -> int:
    """Record that known blobs are ``written`` anew, without bases; returns their number. Counts stay the same.

    Blobs that the catalog does not know stay without a row. A blob's former object is deleted when nothing is left in
    it.
    """
    numbers = _add_packs(transaction, tenant, written.packs, now)
    return sum(_move(transaction, tenant, blob, numbers, now) for blob in written.blobs)


def _add_packs(
    transaction: Transaction, tenant: int, packs: Sequence[NewPack], now: int
) -> dict[PackId | None, int | None]:
    numbers: dict[PackId | None, int | None] = {None: None}
    for pack in packs:
        row = transaction.one(
            """INSERT INTO packs (tenant, id, key, size, created_at, spared_until)
            VALUES (?, ?, ?, ?, ?, 0) RETURNING number""",
            (tenant, pack.id, pack.key, pack.size, now),
        )
        assert row is not None
        numbers[pack.id] = row[0]
    return numbers


def _move(
    transaction: Transaction, tenant: int, blob: NewBlob, numbers: dict[PackId | None, int | None], now: int
) -> bool:
    row = transaction.one("SELECT base FROM blobs WHERE tenant = ? AND hash = ?", (tenant, blob.hash))
    if row is None:
        return False
    if row[0] is not None:
        # It was a delta, and is none any more.
        transaction.run(
            """UPDATE blobs SET deltas = deltas - 1,
            dead_since = CASE WHEN kind <> 1 AND dead_since < ? THEN ? ELSE dead_since END
            WHERE tenant = ? AND hash = ?""",
            (now, now, tenant, row[0]),
        )
    transaction.run(
        """UPDATE blobs SET codec = ?, base = NULL, pack = ?, place = ?, length = ?, generation = ?
        WHERE tenant = ? AND hash = ?""",
        (blob.codec, numbers[blob.pack], blob.offset, blob.length, blob.generation, tenant, blob.hash),
    )
    return True
