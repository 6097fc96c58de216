"""The catalog's columns that hold content, encrypted where the store has a key (docs/formats/catalog.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.errors import IntegrityError
from holdfast.store.catalog.reference_counts import chunks, slots
from holdfast.store.catalog.row_checksums import (
    ANSWERS,
    JOURNALS,
    REAPPLIES,
    SESSION_CHECKPOINTS,
    changing,
)
from holdfast.store.catalog.text_encryption import TEXTS, TextCipher, is_encrypted, name_of, plain_text
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects import sealed_values

if TYPE_CHECKING:
    from holdfast.store.catalog.catalog import Catalog
    from holdfast.store.catalog.row_checksums import ChecksummedTable
    from holdfast.store.database.sql_database import Transaction

COLUMNS: Final = {
    JOURNALS: ("data",),
    SESSION_CHECKPOINTS: ("data",),
    REAPPLIES: ("now", "before", "after", "answer"),
    ANSWERS: ("body",),
}
"""By table: the columns whose values are encrypted."""
_ROWS: Final = 32
"""Rewritten in one transaction: each may hold some MiB."""
_TEXTS: Final = 500
"""The same of rows that hold texts alone, which are short and many."""


class ValueCipher:
    """Encrypts values of a catalog's columns, and decrypts them; NULL stays NULL, and empty stays empty."""

    __slots__ = ("_catalog",)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def seal(self, table: str, column: str, row: str, value: bytes | None) -> bytes | None:
        """The stored form of a value in a row, which is identified by its key."""
        if not value:
            return value
        keys = self._catalog.keys
        if keys is None:
            return sealed_values.escape(value)
        return sealed_values.seal(value, f"{table} {column} {row}", keys.current)

    def open(self, table: str, column: str, row: str, stored: bytes | None) -> bytes | None:
        """The argument of `seal`. Raises `IntegrityError` if it was changed, is another row's, or is not encrypted
        though all are; with the code ``unknown_key`` for an unknown key.
        """
        if not stored:
            return stored
        keys = self._catalog.keys
        if sealed_values.is_sealed(stored):
            return sealed_values.unseal(stored, f"{table} {column} {row}", {} if keys is None else keys.known)
        if keys is not None and not self._catalog.accepts_plain:
            raise IntegrityError(f"the catalog's {table} {column} {row} is not encrypted, though all such values are")
        return sealed_values.unescape(stored)


def encrypt_stored(catalog: Catalog) -> None:
    """Encrypt the unencrypted values; in SQLite, leave no trace of them in its files.

    After a kill, the same call continues. Raises `StorageError` if there is no room for that, `LockedError`.
    """
    if isinstance(catalog.database, SqliteDatabase):
        catalog.database.overwrite_deleted()
    for covered in (*COLUMNS, *TEXTS):
        with catalog.database.reading() as transaction:
            keys = [
                row[0]
                for row in transaction.all(
                    f"SELECT {covered.key} FROM {covered.table} WHERE tenant = ?", (catalog.tenant,)
                )
            ]
        encrypt, size = (_encrypt_texts, _TEXTS) if covered in TEXTS else (_encrypt, _ROWS)
        for part in chunks(keys, size):
            with catalog.database.writing() as transaction:
                encrypt(transaction, catalog, covered, part)
    if isinstance(catalog.database, SqliteDatabase):
        catalog.database.write_anew()


def _encrypt(transaction: Transaction, catalog: Catalog, covered: ChecksummedTable, keys: list[str]) -> None:
    columns, cipher = COLUMNS[covered], ValueCipher(catalog)
    found = transaction.all(
        f"SELECT {covered.key}, {', '.join(columns)} FROM {covered.table} WHERE tenant = ? "
        f"AND {covered.key} IN {slots(len(keys))}",
        (catalog.tenant, *keys),
    )
    for key, *values in found:
        if all(not value or sealed_values.is_sealed(value) for value in values):
            continue
        sealed = [
            value
            if not value or sealed_values.is_sealed(value)
            else cipher.seal(covered.table, column, key, sealed_values.unescape(value))
            for column, value in zip(columns, values, strict=True)
        ]
        with changing(transaction, covered, catalog.tenant, [key]):
            transaction.run(
                f"UPDATE {covered.table} SET {', '.join(f'{column} = ?' for column in columns)} WHERE {covered.row}",
                (*sealed, catalog.tenant, key),
            )


def _encrypt_texts(
    transaction: Transaction, catalog: Catalog, covered: ChecksummedTable, keys: list[str | int]
) -> None:
    columns, cipher = TEXTS[covered], TextCipher(catalog)
    found = transaction.all(
        f"SELECT {covered.key}, {name_of(covered)}, {', '.join(columns)} FROM {covered.table} WHERE tenant = ? "
        f"AND {covered.key} IN {slots(len(keys))}",
        (catalog.tenant, *keys),
    )
    plain = {
        key: [
            text if is_encrypted(text) else cipher.seal(covered.table, column, name, plain_text(text))
            for column, text in zip(columns, texts, strict=True)
        ]
        for key, name, *texts in found
        if any(text and not is_encrypted(text) for text in texts)
    }
    with changing(transaction, covered, catalog.tenant, list(plain)):
        transaction.many(
            f"UPDATE {covered.table} SET {', '.join(f'{column} = ?' for column in columns)} WHERE {covered.row}",
            ((*sealed, catalog.tenant, key) for key, sealed in plain.items()),
        )
