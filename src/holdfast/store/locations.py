"""Where the catalog says that blobs are stored, and where one may be stored anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.keys import is_key
from holdfast.store.liveness import chunks, slots
from holdfast.store.records import Location, large_blob_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.ids import Hash
    from holdfast.store.database import Row, Session


def locate(session: Session, tenant: int, name: str, hashes: Iterable[Hash]) -> dict[Hash, Location]:
    """See `Catalog.locate`; ``name`` is the tenant's in object keys."""
    rows: list[Row] = []
    keys: dict[int, str] = {}
    for part in chunks(hashes):
        rows += session.all(
            f"""SELECT hash, pack, place, length, codec, size, base, generation FROM blobs
            WHERE tenant = ? AND hash IN {slots(len(part))}""",
            (tenant, *part),
        )
    # Rather than a join: ten thousand blobs lie in a few packs.
    for part in chunks({row[1] for row in rows if row[1] is not None}):
        packs = session.all(
            f"SELECT number, key FROM packs WHERE tenant = ? AND number IN {slots(len(part))}", (tenant, *part)
        )
        # A damaged key leads nowhere: what should be there is as good as lost.
        keys.update((number, key) for number, key in packs if is_key(key))
    return {
        blob: Location(
            large_blob_key(name, blob, generation) if pack is None else keys[pack], at, length, codec, size, base
        )
        for blob, pack, at, length, codec, size, base, generation in rows
        if pack is None or pack in keys
    }


def generation_of(session: Session, tenant: int, name: str, hash: Hash) -> int:  # noqa: A002 - the field's own name
    """See `Catalog.generation_of`; ``name`` is the tenant's in object keys."""
    first = large_blob_key(name, hash, 0)
    rows = session.all(
        "SELECT key FROM tombstones WHERE tenant = ? AND (key = ? OR (key > ? AND key < ?))",
        (tenant, first, first + ".", first + "/"),
    )
    return max((int(row[0][len(first) + 1 :] or 0) + 1 for row in rows), default=0)
