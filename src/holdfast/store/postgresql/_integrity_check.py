"""The damage that a catalog on PostgreSQL finds in itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from holdfast.store.postgresql._schema_upgrade import SCHEMA

if TYPE_CHECKING:
    from holdfast.store.postgresql._transaction import PostgresTransaction


def check(transaction: PostgresTransaction) -> list[str]:
    """Read every table from end to end, and compare with what its indexes and references say."""
    found: list[str] = []
    try:
        for table, key in _tables(transaction):
            by_table = _count(transaction, table, key, by_index=False)
            by_index = _count(transaction, table, key, by_index=True)
            if by_table != by_index:
                found.append(f"{table} has {by_table} rows, and its primary key {by_index}")
        for table, columns, other, others in _references(transaction):
            same = " AND ".join(f"o.{theirs} = t.{mine}" for mine, theirs in zip(columns, others, strict=True))
            given = " AND ".join(f"t.{mine} IS NOT NULL" for mine in columns)
            lost = transaction.one(
                f"SELECT count(*) FROM {table} t WHERE {given} AND NOT EXISTS (SELECT 1 FROM {other} o WHERE {same})"
            )
            if lost and lost[0]:
                found.append(f"{lost[0]} rows of {table} refer to no row of {other}")
    except psycopg.errors.InternalError as error:
        found.append(error.diag.message_primary or str(error))
    except psycopg.DatabaseError as error:
        if not (error.sqlstate or "").startswith(("XX", "58")):
            raise
        found.append(error.diag.message_primary or str(error))
    return found


def _tables(transaction: PostgresTransaction) -> list[tuple[str, str]]:
    return [
        (row[0], row[1])
        for row in transaction.all(
            """SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
            WHERE n.nspname = ? AND i.indisprimary ORDER BY 1""",
            (SCHEMA,),
        )
    ]


def _references(transaction: PostgresTransaction) -> list[tuple[str, list[str], str, list[str]]]:
    def columns(table: str, numbers: str) -> str:
        return f"""(SELECT string_agg(a.attname, ' ' ORDER BY k.place) FROM unnest({numbers}) WITH ORDINALITY
            AS k (number, place) JOIN pg_attribute a ON a.attrelid = {table} AND a.attnum = k.number)"""

    rows = transaction.all(
        f"""SELECT c.conrelid::regclass::text, {columns("c.conrelid", "c.conkey")},
            c.confrelid::regclass::text, {columns("c.confrelid", "c.confkey")}
        FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace
        WHERE n.nspname = ? AND c.contype = 'f' ORDER BY c.conname, 1""",
        (SCHEMA,),
    )
    return [(table, mine.split(), other, theirs.split()) for table, mine, other, theirs in rows]


def _count(transaction: PostgresTransaction, table: str, key: str, *, by_index: bool) -> int:
    """How many rows there are, of which every value was read; or how many the primary key knows of."""
    chosen = "off" if by_index else "on"
    other = "on" if by_index else "off"
    transaction.one("SELECT set_config('enable_seqscan', ?, true)", (chosen,))
    for name in ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"):
        transaction.one("SELECT set_config(?, ?, true)", (name, other))
    if by_index:
        row = transaction.one(f"SELECT count({key}) FROM (SELECT {key} FROM {table} ORDER BY {key}) t")
    else:
        # As text, so that values stored apart from the row, or compressed, are read as well.
        row = transaction.one(f"SELECT count(*), sum(length(t::text)) FROM {table} t")
    for name in ("enable_seqscan", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"):
        transaction.one("SELECT set_config(?, 'on', true)", (name,))
    return int(row[0]) if row else 0
