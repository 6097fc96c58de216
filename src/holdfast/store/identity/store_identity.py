"""The catalog's record of its own store: the row in ``stores``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import IntegrityError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.row_checksums import ChecksummedTable, damaged, set_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Transaction

STORES = ChecksummedTable("stores", "tenant", "tenant, id, claimed, conditional, origin, copied")


class StoreIdentity(NamedTuple):
    """The identity of a store."""

    id: str
    claimed: str = ""
    conditional: str = ""
    origin: str = ""
    copied: bool = False


def find(transaction: Transaction, tenant: int) -> StoreIdentity | None:
    """The row, if there is one. Raises `IntegrityError` if it is damaged: another id would be another store's."""
    row = transaction.one("SELECT id, claimed, conditional, origin, copied FROM stores WHERE tenant = ?", (tenant,))
    if row is None:
        return None
    if any(damaged(transaction, STORES, tenant)):
        raise IntegrityError("the catalog is damaged: its record of which store it is was changed")
    return StoreIdentity(row[0], row[1], row[2], row[3], bool(row[4]))


def read(catalog: Catalog) -> StoreIdentity | None:
    """As `find`."""
    with catalog.database.reading() as transaction:
        return find(transaction, catalog.tenant)


def make(catalog: Catalog, random: Callable[[int], bytes]) -> StoreIdentity:
    """The row, made with a new id if it is missing."""
    found = read(catalog)
    if found is not None or catalog.database.read_only:
        return found or StoreIdentity("0" * 32)
    with catalog.database.writing() as transaction:
        transaction.run(
            "INSERT INTO stores (tenant, id, claimed, conditional, origin, copied) VALUES (?, ?, '', '', '', 0) "
            "ON CONFLICT DO NOTHING",
            (catalog.tenant, random(16).hex()),
        )
        set_checksum(transaction, STORES, catalog.tenant, catalog.tenant)
        made = find(transaction, catalog.tenant)
    assert made is not None
    return made


def change(catalog: Catalog, identity: StoreIdentity) -> None:
    """Write the row, which is there, as ``identity`` says."""
    with catalog.database.writing() as transaction:
        write(transaction, catalog.tenant, identity)


def write(transaction: Transaction, tenant: int, identity: StoreIdentity) -> None:
    """As `change`, in a transaction."""
    transaction.run(
        "UPDATE stores SET id = ?, claimed = ?, conditional = ?, origin = ?, copied = ? WHERE tenant = ?",
        (*identity[:4], int(identity.copied), tenant),
    )
    set_checksum(transaction, STORES, tenant, tenant)
