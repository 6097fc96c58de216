"""The catalog's rows of tokens: who may ask for what, over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.model.errors import NotFoundError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.store.catalog.reference_counts import slots
from holdfast.store.catalog.row_checksums import TOKENS, is_sound, set_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.database.sql_database import Database

Rights = Literal["read", "write", "admin"]

_COLUMNS = "id, digest, rights, exports, roots, label, created_at, expires_at"


class TokenRow(NamedTuple):
    """One token. Times are microseconds since 1970-01-01 UTC."""

    id: str
    digest: bytes
    rights: Rights
    exports: tuple[str, ...]
    """The exports that it is for; empty: all."""
    roots: tuple[bytes, ...]
    """Directories below which it may make exports."""
    label: str
    created_at: int
    expires_at: int | None


class TokenRows:
    """The tokens of one tenant. Every method is one transaction, durable when it returns."""

    def __init__(self, catalog: Catalog) -> None:
        self._database = catalog.database
        self._tenant = catalog.tenant

    def add(self, row: TokenRow) -> None:
        """A new token."""
        exports = "".join(f"{name}\n" for name in row.exports)
        roots = b"".join(root + b"\0" for root in row.roots)
        with self._database.writing() as transaction:
            transaction.run(
                f"INSERT INTO tokens (tenant, {_COLUMNS}) VALUES {slots(9)}",
                (self._tenant, *row[:3], exports, roots, *row[5:]),
            )
            set_checksum(transaction, TOKENS, self._tenant, row.id)

    def list(self) -> list[TokenRow]:
        """All of them, oldest first."""
        with self._database.reading() as transaction:
            rows = transaction.all(
                f"SELECT {_COLUMNS} FROM tokens WHERE tenant = ? ORDER BY created_at, id", (self._tenant,)
            )
        return [_row(row) for row in rows]

    def roots(self, *, own: bool) -> list[bytes]:
        """The directories below which clients may make exports: by tokens of other tenants, and with ``own`` of this
        one. For isolation, and never shown to a client.
        """
        with self._database.reading() as transaction:
            rows = transaction.all("SELECT roots FROM tokens WHERE tenant <> ? OR ? = 1", (self._tenant, int(own)))
        return sorted({root for (roots,) in rows for root in bytes(roots).split(b"\0")[:-1]})

    def revoke(self, name: str) -> None:
        """Delete a token; raises `NotFoundError` (code ``no_token``) if there is none with this id."""
        with self._database.writing() as transaction:
            if not transaction.run("DELETE FROM tokens WHERE tenant = ? AND id = ?", (self._tenant, name)):
                raise NotFoundError(
                    f"there is no token {name}", hint="`holdfast serve token list` lists them", code="no_token"
                )


def find_token(database: Database, name: str) -> tuple[str, TokenRow] | None:
    """The token with an id, and its tenant's name; None if there is none, or its row is damaged.

    Only this function finds a tenant by a client's word: the secret decides whether that is valid.
    """
    with database.reading() as transaction:
        row = transaction.one(
            f"SELECT t.number, t.name, {', '.join(f'k.{column}' for column in _COLUMNS.split(', '))} "
            "FROM tokens k JOIN tenants t ON t.number = k.tenant WHERE k.id = ?",
            (name,),
        )
        if row is None or not is_sound(transaction, TOKENS, row[0], name):
            return None
    return row[1], _row(row[2:])


def _row(values: Sequence[object]) -> TokenRow:
    row = TokenRow(*values)  # type: ignore[arg-type]
    exports, roots = str(values[3]), values[4]
    assert isinstance(roots, bytes)
    return row._replace(exports=tuple(exports.split("\n")[:-1]), roots=tuple(roots.split(b"\0")[:-1]))
