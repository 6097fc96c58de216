"""One open transaction on PostgreSQL: the port `Session`."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import psycopg

from holdfast.store.postgresql_dialect import for_hashes, place_of_hash, rows_at_once, translate, with_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.store.database import Row

_ROWS_PER_TRIP: Final = 2000
"""Of a stream; and how many statements of `many` go out together."""
_LOOKING: Final = ("SELECT", "WITH")


class PostgresSession:
    """One transaction on one connection."""

    __slots__ = ("_connection", "_cursor", "_streams", "changed")

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._cursor = connection.cursor(binary=True)
        self._streams: list[psycopg.RawServerCursor[Row]] = []
        self.changed = False
        """True once something was run that may have changed a row."""

    def all(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """See `Session.all`."""
        return self._execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        """See `Session.one`."""
        return self._execute(sql, parameters).fetchone()

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        """See `Session.stream`: by a cursor on the server, so that neither side holds all of it."""
        cursor = psycopg.RawServerCursor(self._connection, f"stream{len(self._streams)}")
        self._streams.append(cursor)
        cursor.itersize = _ROWS_PER_TRIP
        cursor.execute(translate(sql), parameters, binary=True)
        return iter(cursor)

    def run(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """See `Session.run`."""
        return self._execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        """See `Session.many`: many rows in one statement where that means the same, else many statements in one go."""
        self.changed = True
        together = rows_at_once(sql)
        size = together if together > 1 else _ROWS_PER_TRIP
        place = place_of_hash(sql)
        left = iter(rows)
        changed = 0
        while part := list(islice(left, size)):
            if together > 1:
                statement = translate(with_rows(sql, len(part)))
                self._cursor.execute(statement, list(chain.from_iterable(part)))
            elif place is not None and (parameters := _merged(part, place)) is not None:
                self._cursor.execute(translate(for_hashes(sql)), parameters)
            else:
                self._cursor.executemany(translate(sql), part)
            changed += max(0, self._cursor.rowcount)
        return changed

    def end(self) -> None:
        """Close what is open. (A stream that is let go of later would do that in the middle of another transaction.)"""
        for cursor in self._streams:
            cursor.close()

    def _execute(self, sql: str, parameters: Sequence[object]) -> psycopg.Cursor[Row]:
        if not sql.lstrip().startswith(_LOOKING):
            self.changed = True
        return self._cursor.execute(translate(sql), parameters)


def _merged(rows: Sequence[Sequence[object]], place: int) -> list[object] | None:
    """One row of parameters for all of ``rows``, with a list at ``place``; None unless they differ there alone, each
    from every other.
    """
    first = rows[0]
    found = [row[place] for row in rows]
    if len(set(found)) != len(found):
        return None
    before, after = tuple(first[:place]), tuple(first[place + 1 :])
    if any(tuple(row[:place]) != before or tuple(row[place + 1 :]) != after for row in rows):
        return None
    return [*before, found, *after]
