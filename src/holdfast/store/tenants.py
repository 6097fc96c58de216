"""Those who share a catalog but not a byte (I10): their names, and the numbers that stand for them in every row."""

from __future__ import annotations

from holdfast.model.errors import IntegrityError
from holdfast.model.typed import TYPE_CHECKING
from holdfast.store.checksums import TENANTS, damaged, set_checksum

if TYPE_CHECKING:
    from holdfast.store.database import Database, Session


def number_of(database: Database, name: str) -> int:
    """The number that stands in every row of the tenant ``name``, which begins here if it is new."""
    find = "SELECT number FROM tenants WHERE name = ?"
    with database.reading(once=True) as session:
        row = session.one(find, (name,))
    if row is None:
        with database.writing() as session:
            row = session.one(find, (name,))  # another process may have been first
            if row is None:
                _refuse_damaged_tenants(session)
                row = session.one(
                    "INSERT INTO tenants (name, swept, latest) VALUES (?, 0, 0) RETURNING number", (name,)
                )
                assert row is not None
                set_checksum(session, TENANTS, row[0], row[0])
    return row[0]


def _refuse_damaged_tenants(session: Session) -> None:
    """A tenant whose name was damaged must not begin anew: all of its objects would be taken for nobody's."""
    for (number,) in session.all("SELECT number FROM tenants"):
        if any(damaged(session, TENANTS, number)):
            raise IntegrityError(
                "the catalog is damaged: the name of a tenant is not what it was",
                hint="put the catalog back from a copy; its objects are untouched",
            )
