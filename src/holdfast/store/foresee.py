"""What a collection would give back, found out without taking anything away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple
from holdfast.store.records import DELTA_OVERHEAD, PACK_OVERHEAD, RECORD_OVERHEAD
from holdfast.store.schema import DEAD_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.ids import Hash
    from holdfast.store.database import Row, Session


class Foreseen(NamedTuple):
    """What a collection would do in the catalog; the objects that no row names come on top."""

    rows: int
    freed: int
    packs_deleted: int
    packs_rewritten: int


def foresee(session: Session, tenant: int, died_by: int, now: int, ratio: float) -> Foreseen:
    """What `Collector.collect` would take away of what died at ``died_by`` or before, with every count settled.

    One transaction sees one state of the catalog. Takes memory in proportion to what is dead.
    """
    doomed = {row[0]: row for row in _doomed(session, tenant, died_by, now)}
    dead_in: dict[int, int] = {}
    freed = 0
    for _, pack, length, base, _ in doomed.values():
        if pack is None:
            freed += length
        else:
            dead_in[pack] = dead_in.get(pack, 0) + _taken(length, base)
    deleted = rewritten = 0
    for number, size, held in session.all(
        f"""SELECT packs.number, packs.size, coalesce(held.bytes, 0) FROM packs LEFT JOIN (
            SELECT pack, sum(length + CASE WHEN base IS NULL THEN {RECORD_OVERHEAD} ELSE {DELTA_OVERHEAD} END) AS bytes
            FROM blobs WHERE tenant = ? AND pack IS NOT NULL GROUP BY pack
        ) held ON held.pack = packs.number
        WHERE packs.tenant = ? AND packs.spared_until <= ?""",
        (tenant, tenant, now),
    ):
        live = held - dead_in.get(number, 0)
        if not live:
            deleted += 1
            freed += size
        elif live < size * ratio:
            rewritten += 1
            freed += size - live - PACK_OVERHEAD
    condemned = session.one(
        "SELECT coalesce(sum(size), 0) FROM tombstones WHERE tenant = ? AND deleted_at IS NULL", (tenant,)
    )
    return Foreseen(len(doomed), freed + (condemned[0] if condemned else 0), deleted, rewritten)


def _taken(length: int, base: Hash | None) -> int:
    return length + (RECORD_OVERHEAD if base is None else DELTA_OVERHEAD)


def _doomed(session: Session, tenant: int, died_by: int, now: int) -> Iterable[Row]:
    """Hash, pack, length, base and deltas of every row that goes: what is dead, and the bases that only that needed."""
    free = session.all(
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
    # No delta is made against a delta, so that one step leads from what is dead to the bases that fall with it.
    return (row for row in free if row[4] == bases.get(row[0], 0))
