"""One open transaction on PostgreSQL: the port `Session`.

Round trips are the cost. Independent statements are sent together, in libpq's pipeline mode: a reading transaction
begins with its first statement, and one of a single statement is one round trip.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg

from holdfast.store.postgresql._dialect import (
    for_hashes,
    listed_hashes,
    place_of_hash,
    rows_at_once,
    translate,
    with_rows,
)
from holdfast.store.postgresql._value_types import Hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from holdfast.store.database.sql_database import Row, Statement
    from holdfast.store.postgresql._connections import ServerConnection

    _First = Callable[[psycopg.Connection[Row]], None]
    """Sends the first statement of a transaction."""

_ROWS_PER_TRIP: Final = 2000
"""Of a stream; and how many statements of `many` go out together."""
_LOOKING: Final = ("SELECT", "WITH")


def pipelined(connection: psycopg.Connection[Row]) -> AbstractContextManager[object]:
    """In the block, statements are sent without waiting for the answers to those before them.

    An error of one may come with a later one, or at the end of the block; those after it were not carried out.
    """
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


class PostgresTransaction:
    """One transaction on one connection."""

    __slots__ = ("_begin", "_cursor", "_pipelined", "_streams", "changed", "link", "once")

    def __init__(
        self,
        link: ServerConnection | None,
        begin: Callable[[_First], ServerConnection] | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Without a ``link``, ``begin`` returns one on the first statement: it begins the transaction there, calls its
        argument, and with ``once`` ends it, all in one round trip.
        """
        self._begin = begin
        self._cursor: psycopg.Cursor[Row] | None = None
        self._streams: list[psycopg.RawServerCursor[Row]] = []
        self._pipelined = False
        self.link = link
        self.once = once
        """For one statement alone."""
        self.changed = False
        """True after a statement that may have changed a row."""

    def all(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """See `Session.all`."""
        return self._execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        """See `Session.one`."""
        return self._execute(sql, parameters).fetchone()

    def together(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """See `Session.together`: in one trip."""
        cursors: list[psycopg.Cursor[Row]] = []

        def send(connection: psycopg.Connection[Row]) -> None:
            cursors[:] = [connection.cursor(binary=True) for _ in statements]
            for cursor, (sql, parameters) in zip(cursors, statements, strict=True):
                cursor.execute(*_translated(sql, parameters))

        self.changed = self.changed or any(_may_change(sql) for sql, _ in statements)
        if statements:
            link = self._linked(send)
            if not cursors:
                with pipelined(link.connection):
                    send(link.connection)
        return [cursor.fetchall() if cursor.rownumber is not None else [] for cursor in cursors]

    @contextmanager
    def unawaited(self) -> Generator[None]:
        """See `Session.unawaited`: one trip for the whole block."""
        with pipelined(self._linked().connection):
            self._pipelined = True
            try:
                yield
            finally:
                self._pipelined = False

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        """See `Session.stream`: by a cursor on the server, so that neither side holds all of it."""
        if self.once:
            raise RuntimeError("a stream in a transaction for one statement")
        cursor = psycopg.RawServerCursor(self._linked().connection, f"stream{len(self._streams)}")
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
            cursor = self._free_cursor(self._linked())
            if together > 1:
                statement = translate(with_rows(sql, len(part)))
                cursor.execute(statement, list(chain.from_iterable(part)))
            elif place is not None and (parameters := _merged(part, place)) is not None:
                cursor.execute(translate(for_hashes(sql)), parameters)
            else:
                cursor.executemany(translate(sql), part)
            changed += max(0, cursor.rowcount)
        return changed

    def end(self) -> None:
        """Close open streams. (A stream that is dropped later would do that in the middle of another transaction.)"""
        for cursor in self._streams:
            cursor.close()

    def _execute(self, sql: str, parameters: Sequence[object]) -> psycopg.Cursor[Row]:
        self.changed = self.changed or _may_change(sql)
        statement, values = _translated(sql, parameters)
        cursors: list[psycopg.Cursor[Row]] = []

        def send(connection: psycopg.Connection[Row]) -> None:
            cursors[:] = [connection.cursor(binary=True)]
            cursors[0].execute(statement, values)

        link = self._linked(send)
        return cursors[0] if cursors else self._free_cursor(link).execute(statement, values)

    def _linked(self, first: _First = lambda _: None) -> ServerConnection:
        """The connection on which the transaction has begun; if it does so only now, with ``first``."""
        if self.link is None:
            assert self._begin is not None
            self.link = self._begin(first)
        elif self.once:
            raise RuntimeError("a second statement in a transaction for one")
        return self.link

    def _free_cursor(self, link: ServerConnection) -> psycopg.Cursor[Row]:
        """One that waits for no answer: statements in a pipeline need one each."""
        if self._pipelined:
            return link.connection.cursor(binary=True)
        if self._cursor is None:
            self._cursor = link.connection.cursor(binary=True)
        return self._cursor


def _may_change(sql: str) -> bool:
    return not sql.lstrip().startswith(_LOOKING)


def _translated(sql: str, parameters: Sequence[object]) -> tuple[bytes, Sequence[object]]:
    found = listed_hashes(sql)
    if found is None or not isinstance(parameters[found[1]], bytes):
        return translate(sql), parameters
    together, at, count = found
    hashes = Hashes(cast("Sequence[bytes]", parameters[at : at + count]))
    return translate(together), [*parameters[:at], hashes, *parameters[at + count :]]


def _merged(rows: Sequence[Sequence[object]], place: int) -> list[object] | None:
    """One row of parameters for all of ``rows``, with a list at ``place``; None unless they differ there alone, each
    from every other.
    """
    first = rows[0]
    found: list[Any] = [row[place] for row in rows]
    if len(set(found)) != len(found):
        return None
    before, after = tuple(first[:place]), tuple(first[place + 1 :])
    if any(tuple(row[:place]) != before or tuple(row[place + 1 :]) != after for row in rows):
        return None
    return [*before, Hashes(found) if isinstance(found[0], bytes) else found, *after]
