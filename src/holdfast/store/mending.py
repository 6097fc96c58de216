"""Storing content anew that the catalog knows and the object store has lost, while somebody still has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.ids import PackId
    from holdfast.store.blob_writer import Written
    from holdfast.store.database import Session
    from holdfast.store.records import NewBlob, NewPack


def relocate(session: Session, tenant: int, written: Written, now: int) -> int:
    """Note that known blobs are where they were ``written`` anew, whole; returns how many. Counts stay as they are.

    What the catalog does not know stays unnamed. The object that a blob was in goes when nothing is left in it.
    """
    numbers = _add_packs(session, tenant, written.packs, now)
    return sum(_move(session, tenant, blob, numbers, now) for blob in written.blobs)


def _add_packs(session: Session, tenant: int, packs: Sequence[NewPack], now: int) -> dict[PackId | None, int | None]:
    numbers: dict[PackId | None, int | None] = {None: None}
    for pack in packs:
        row = session.one(
            """INSERT INTO packs (tenant, id, key, size, created_at, spared_until)
            VALUES (?, ?, ?, ?, ?, 0) RETURNING number""",
            (tenant, pack.id, pack.key, pack.size, now),
        )
        assert row is not None
        numbers[pack.id] = row[0]
    return numbers


def _move(session: Session, tenant: int, blob: NewBlob, numbers: dict[PackId | None, int | None], now: int) -> bool:
    row = session.one("SELECT base FROM blobs WHERE tenant = ? AND hash = ?", (tenant, blob.hash))
    if row is None:
        return False
    if row[0] is not None:
        # It was a difference, and is none any more.
        session.run(
            """UPDATE blobs SET deltas = deltas - 1,
            dead_since = CASE WHEN kind <> 1 AND dead_since < ? THEN ? ELSE dead_since END
            WHERE tenant = ? AND hash = ?""",
            (now, now, tenant, row[0]),
        )
    session.run(
        """UPDATE blobs SET codec = ?, base = NULL, pack = ?, place = ?, length = ?, generation = ?
        WHERE tenant = ? AND hash = ?""",
        (blob.codec, numbers[blob.pack], blob.offset, blob.length, blob.generation, tenant, blob.hash),
    )
    return True
