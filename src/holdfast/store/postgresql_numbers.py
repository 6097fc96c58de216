"""Numbers that a copy of a catalog has brought with it: the next ones have to be above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.postgresql_schema import SCHEMA

if TYPE_CHECKING:
    from holdfast.store.database import Session


def go_on_above(session: Session) -> None:
    """Have every table number its next row above those that it has. To be called where rows were inserted with numbers
    of their own, in the same transaction; SQLite does this by itself.
    """
    columns = session.all(
        """SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = ? AND is_identity = 'YES' ORDER BY 1""",
        (SCHEMA,),
    )
    for table, column in columns:
        session.one(
            f"SELECT setval(pg_get_serial_sequence(?, ?), greatest(max({column}), 1), max({column}) IS NOT NULL) "
            f"FROM {table}",
            (f"{SCHEMA}.{table}", column),
        )
