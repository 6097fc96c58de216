"""The catalog's schema on PostgreSQL: its mark, its version, and bringing an older one forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.store.database.sql_database import Migration, Row
    from holdfast.store.postgresql._transaction import PostgresTransaction
    from holdfast.store.postgresql.catalog_url import CatalogAddress

_LOG = Log(__name__)

SCHEMA: Final = "holdfast"

# Not to_regclass, which may use the session's knowledge from before it waited for the lock.
_THERE: Final = """SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ? AND c.relname = 'catalog_state'"""

_OWN: Final = (
    """
-- What this schema is: one row.
CREATE TABLE catalog_state (
  one BIGINT PRIMARY KEY CHECK (one = 1),
  application INTEGER NOT NULL,     -- the mark of a catalog of Holdfast
  version INTEGER NOT NULL          -- of the schema, as in docs/formats/catalog.md
)""",
    """
-- The last transaction that each connection has committed, written by that transaction: what is not here was not
-- committed. A row is of use only while its connection is being asked for; kept for a week.
CREATE TABLE commit_marks (
  client BLOB PRIMARY KEY,          -- 16 random bytes: the connection
  number INTEGER NOT NULL,          -- 1, 2, 3, ...
  at TIMESTAMPTZ NOT NULL
)""",
)


class SchemaState:
    """Which version the schema has, and which this program knows."""

    def __init__(self, address: CatalogAddress, migrations: Sequence[Migration], application_id: int) -> None:
        self._address = address
        self._migrations = migrations
        self._application = application_id
        self.question = "SELECT application, version FROM catalog_state"

    def look(self, transaction: PostgresTransaction) -> bool:
        """True if the schema is there, ours and of this version; False if it is older, or not there.

        Raises `FormatError` for a newer one, or one of another program.
        """
        if transaction.one(_THERE, (SCHEMA,)) is None:
            return False
        return self._version(transaction.one(self.question)) == len(self._migrations)

    def check(self, row: Row | None) -> None:
        """Raise `FormatError` unless ``row``, the answer to `question`, names this version."""
        version = self._version(row)
        if version != len(self._migrations):
            raise FormatError(f"the catalog {self._address.shown} has become older: schema version {version}")

    def bring_forward(self, transaction: PostgresTransaction, check_new: Callable[[], None] | None) -> None:
        """Make the schema, or bring it up to this version. In one transaction, with every other process locked out."""
        version = 0
        if transaction.one(_THERE, (SCHEMA,)) is not None:
            version = self._version(transaction.one(self.question))
        else:
            self._begin(transaction, check_new)
        for number in range(version, len(self._migrations)):
            _LOG.info("catalog %s: schema version %d to %d", self._address.shown, number, number + 1)
            self._migrations[number](transaction)
        transaction.run("UPDATE catalog_state SET version = ?", (len(self._migrations),))

    def _begin(self, transaction: PostgresTransaction, check_new: Callable[[], None] | None) -> None:
        there = transaction.one(
            """SELECT relname FROM pg_class
            WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = ?) LIMIT 1""",
            (SCHEMA,),
        )
        if there is not None:
            raise FormatError(
                f"the schema {SCHEMA} of {self._address.shown} is of another program, not a catalog",
                hint="name another database in store.catalog",
            )
        if check_new is not None:
            check_new()
        # IF NOT EXISTS would require the right to make schemas even if an administrator has made this one.
        if transaction.one("SELECT 1 FROM pg_namespace WHERE nspname = ?", (SCHEMA,)) is None:
            transaction.run(f"CREATE SCHEMA {SCHEMA}")
        for statement in _OWN:
            transaction.run(statement)
        transaction.run("INSERT INTO catalog_state VALUES (1, ?, 0)", (self._application,))

    def _version(self, row: Row | None) -> int:
        if row is None or row[0] != self._application:
            raise FormatError(f"the schema {SCHEMA} of {self._address.shown} is of another program, not a catalog")
        version = int(row[1])
        if version > len(self._migrations):
            raise FormatError(
                f"the catalog {self._address.shown} has schema version {version}; this program knows up to "
                f"{len(self._migrations)}",
                hint="use the newer version of Holdfast that wrote it, and end what older ones are still running",
            )
        return version
