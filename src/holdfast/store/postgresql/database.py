"""`Database` on PostgreSQL: a catalog that many machines share.

A writing transaction first takes an advisory lock of its tenant, so everything that it reads stays valid. A reading one
sees one state. A row of each connection shows whether a commit has happened although the connection broke during it
(docs/formats/catalog.md).
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from holdfast.model.errors import ConnectionLostError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.ids import hash_bytes
from holdfast.model.log import Log
from holdfast.store.postgresql import _server_errors as server_errors
from holdfast.store.postgresql._connections import Connections, end_session
from holdfast.store.postgresql._schema_upgrade import SCHEMA, SchemaState
from holdfast.store.postgresql._transaction import PostgresTransaction, pipelined

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from holdfast.store.database.sql_database import Migration, Row, Transaction
    from holdfast.store.postgresql._connections import ServerConnection
    from holdfast.store.postgresql.catalog_url import CatalogAddress

_LOG = Log(__name__)

_IDLE: Final = 300_000
"""Milliseconds after which the server ends a transaction whose process does nothing in it, as one that is stopped."""
_SILENT: Final = 1.0
"""Seconds of waiting after which it is logged."""
_TRIES: Final = 5
_PAUSE: Final = 0.01
_KEPT_MARKS: Final = "7 days"


class PostgresDatabase:
    """`Database` in the schema ``holdfast`` of one PostgreSQL database, for the tenant of this name.

    ``migrations`` and ``check_new`` as in `SqliteDatabase`; ``timeout`` is in seconds and limits every wait, for other
    processes and for the server. ``connections`` is the number of threads that may be in transactions at once.
    ``closed``: this process may not write, whatever the server would permit.
    """

    def __init__(
        self,
        address: CatalogAddress,
        migrations: Sequence[Migration],
        *,
        tenant: str,
        application_id: int,
        timeout: float = 30.0,
        connections: int = 8,
        closed: bool = False,
        check_new: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._timeout = timeout
        self._closed = closed
        self._standby = False
        self._here = threading.local()
        self._connections = Connections(address, most=connections, timeout=timeout)
        self._standing = SchemaState(address, migrations, application_id)
        self._key = _lock_key(b"tenant", tenant.encode())
        self._schema_key = _lock_key(b"schema")
        try:
            self._open(check_new)
        except BaseException:
            self.close()
            raise

    @property
    def read_only(self) -> bool:
        """See `Database.read_only`."""
        return self._closed or self._standby

    @contextmanager
    def reading(self, *, once: bool = False) -> Generator[Transaction]:
        """See `Database.reading`. Raises `ConnectionLostError` if the connection breaks meanwhile.

        It begins with its first statement. A connection that is lost before the answer is replaced.
        """
        transaction = self._current()
        if transaction is not None:
            yield transaction
            return
        with self._transaction(PostgresTransaction(None, partial(self._begun_reading, once), once=once)) as transaction:
            yield transaction

    @contextmanager
    def writing(self) -> Generator[Transaction]:
        """See `Database.writing`. Raises `ConnectionLostError` where the connection breaks and nothing was committed;
        `StorageError` with code ``commit_unknown`` if it breaks in the commit and the server does not come back.
        """
        if self._current() is not None:
            raise RuntimeError("a writing transaction inside another transaction")
        if self._closed:
            raise server_errors.read_only(self.address)
        # Shared: a process that brings the schema forward waits for this, and this for them.
        locks = f"SELECT pg_advisory_xact_lock_shared({self._schema_key}), pg_advisory_xact_lock({self._key})"
        with self._transaction(self._begun_writing(locks), locks) as transaction:
            yield transaction

    def again(self, call: Callable[[], Any]) -> Any:
        """``call()``; repeated a few times if the connection is lost and nothing was committed.

        It must do its work in one transaction, or be harmless when repeated.
        """
        if self._current() is not None:
            return call()  # the transaction around it is lost as well
        for left in reversed(range(_TRIES)):
            try:
                return call()
            except ConnectionLostError as error:
                if not left:
                    raise
                _LOG.warning("%s; trying again", error.message)
        raise AssertionError

    def save_space(self) -> None:
        """See `Database.save_space`: nothing is taken on the side here."""

    def save_memory(self) -> None:
        """See `Database.save_memory`: nothing is kept here."""

    def size(self) -> int:
        """See `Database.size`: of all tenants, with indexes."""
        with self.reading() as transaction:
            row = transaction.one(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ? AND c.relkind = 'r'",
                (SCHEMA,),
            )
        return int(row[0]) if row else 0

    def check(self) -> list[str]:
        """See `Database.check`: every table is read from end to end, by itself and by its primary key."""
        from holdfast.store.postgresql._integrity_check import check

        with self.reading():
            transaction = self._current()
            assert transaction is not None
            return check(transaction)

    def close(self) -> None:
        """See `Database.close`."""
        self._connections.close()

    # --- opening ---

    def _open(self, check_new: Callable[[], None] | None) -> None:
        with self._transaction(PostgresTransaction(None, partial(self._begun_reading, False))) as transaction:
            current = self._standing.look(transaction)
        if current:
            return
        if self.read_only:
            raise server_errors.read_only(self.address)
        locks = f"SELECT pg_advisory_xact_lock({self._schema_key})"
        with self._transaction(self._begun_writing(locks, checked=False), locks) as transaction:
            self._standing.bring_forward(transaction, check_new)

    # --- transactions ---

    def _current(self) -> PostgresTransaction | None:
        """The transaction of this thread. (A child that was forked in one is in none.)"""
        transaction, process = getattr(self._here, "transaction", (None, 0))
        return transaction if process == os.getpid() else None

    @contextmanager
    def _transaction(self, transaction: PostgresTransaction, locks: str = "") -> Generator[PostgresTransaction]:
        self._here.transaction = transaction, os.getpid()
        try:
            try:
                yield transaction
                if transaction.link is not None and transaction.link.inherited:
                    raise RuntimeError("a transaction is not a forked child's to end")
                transaction.end()
            except BaseException:
                if transaction.link is not None and not transaction.link.inherited:
                    self._roll_back(transaction.link)
                    transaction.end()
                raise
            finally:
                self._here.transaction = None, 0
            if transaction.link is not None and not transaction.once:
                self._commit(transaction.link, locks if transaction.changed else "")
        except psycopg.Error as error:
            link = transaction.link
            if locks and link is not None and link.lost:
                self._connections.orphan(link.name)
            raise server_errors.translate(error, self.address, lost=link is not None and link.lost) from error
        finally:
            if transaction.link is not None:
                self._connections.put(transaction.link)

    def _begun_reading(self, once: bool, first: Callable[[psycopg.Connection[Row]], None]) -> ServerConnection:
        def begin(link: ServerConnection, _: float) -> None:
            # All in one trip.
            with pipelined(link.connection):
                link.connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                for words in _surroundings():
                    link.connection.execute(words.encode())
                first(link.connection)
                if once:
                    link.connection.execute(b"COMMIT")

        return self._begun(begin)

    def _begun_writing(self, locks: str, *, checked: bool = True) -> PostgresTransaction:
        def begin(link: ServerConnection, limit: float) -> None:
            # All in one round trip. Each statement sees the commits before its own begin: reads after the lock are as
            # of the lock, unlike with a snapshot of the whole transaction.
            look = f"; {self._standing.question}" if checked else ""
            words = f"{_begin_writing()}; SET LOCAL lock_timeout = {int(limit * 1000) or 1}; {locks}{look}"
            cursor = link.connection.execute(words.encode())
            if checked:
                while cursor.nextset():
                    pass
                self._standing.check(cursor.fetchone())

        return PostgresTransaction(self._begun(begin, to_write=True))

    def _begun(self, begin: Callable[[ServerConnection, float], None], *, to_write: bool = False) -> ServerConnection:
        """A connection with a new transaction; ``begin`` receives the seconds that it may wait for a lock. Lost
        connections are replaced: nothing has happened on them yet.
        """
        ends = time.monotonic() + self._timeout
        told = False
        tries = 0
        while True:
            tries += 1
            link = self._connections.take()
            left = ends - time.monotonic()
            limit = max(0.001, left if told else min(left, _SILENT))
            try:
                if to_write and not link.writable:
                    link.connection.execute(b"SELECT")  # it may have been made the primary, and tells with any answer
                self._standby = not link.writable
                if to_write and self._standby:
                    raise server_errors.read_only(self.address)
                begin(link, limit)
                return link
            except psycopg.Error as error:
                lost = link.lost
                self._roll_back(link)
                self._connections.put(link)
                found = server_errors.translate(error, self.address, lost=lost)
                waiting = isinstance(error, psycopg.errors.LockNotAvailable) and not told and left > limit
                if not waiting and not (isinstance(found, ConnectionLostError) and left > 0):
                    raise found from error
                if waiting:
                    told = True
                    _LOG.warning(
                        "another process holds the catalog %s; waiting at most %g s", self.address.shown, self._timeout
                    )
                else:
                    # The pool may have had several lost ones; a server that accepts no connection gets a pause.
                    time.sleep(min(_PAUSE * tries, 0.5) if tries > 2 else 0)
            except BaseException:
                self._roll_back(link)
                self._connections.put(link)
                raise

    def _commit(self, link: ServerConnection, locks: str) -> None:
        if not locks:
            cursor = link.connection.execute(b"COMMIT")
        else:
            link.commits += 1
            cursor = link.connection.cursor()
            try:
                cursor.execute(_marking(link.name, link.commits).encode())
                while cursor.nextset():
                    pass
            except psycopg.Error as error:
                if not link.lost:
                    raise
                self._settle(link, locks, error)
                return
        if cursor.statusmessage != "COMMIT":
            raise StorageError(
                f"the catalog {self.address.shown} has undone a transaction instead of committing it",
                hint="nothing was changed; run the command again",
            )

    def _settle(self, lost: ServerConnection, locks: str, error: psycopg.Error) -> None:
        """Find out whether a commit without an answer has happened: return if it has.

        Raises the error if it has not; ``commit_unknown`` if no server can be asked.
        """
        _LOG.warning("the connection to the catalog %s broke in a commit; asking again", self.address.shown)
        ends = time.monotonic() + self._timeout
        while True:
            try:
                if self._has_mark(lost, locks, max(1.0, ends - time.monotonic())):
                    return
                break
            except (psycopg.Error, StorageError) as failed:
                time.sleep(_PAUSE)
                if time.monotonic() >= ends or getattr(failed, "code", "") == "unreachable":
                    raise StorageError(
                        f"the connection to the catalog {self.address.shown} broke while something was being "
                        "committed, and it cannot be asked whether that was done",
                        hint="when it can be reached again, look (`holdfast log`) before you do it once more",
                        code="commit_unknown",
                    ) from error
        raise ConnectionLostError(
            f"the connection to the catalog {self.address.shown} was lost before a transaction was committed",
            hint="nothing of it was changed; run the command again",
        ) from error

    def _has_mark(self, lost: ServerConnection, locks: str, limit: float) -> bool:
        link = self._connections.take_new()
        try:
            # The old session may still run. It is ended, or has ended when its locks are free.
            end_session(link, lost.name)
            words = f"{_begin_writing()}; SET LOCAL lock_timeout = {int(limit * 1000)}; {locks}"
            link.connection.execute(words.encode())
            row = link.connection.execute(b"SELECT number FROM commit_marks WHERE client = $1", (lost.name,)).fetchone()
            link.connection.execute(b"COMMIT")
            return row is not None and row[0] == lost.commits
        finally:
            self._roll_back(link)
            self._connections.put(link)

    def _roll_back(self, link: ServerConnection) -> None:
        try:
            if not link.lost and link.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                link.connection.execute(b"ROLLBACK")
        except psycopg.Error:
            link.close()


def _surroundings() -> Sequence[str]:
    # Of the transaction alone: behind a pooler the next one may be on another session.
    return f"SET LOCAL search_path = {SCHEMA}", f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE}"


def _begin_writing() -> str:
    return "; ".join(("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", *_surroundings()))


def _marking(name: bytes, number: int) -> str:
    """Say, in the transaction itself, that it was committed, and commit it: one trip."""
    client = f"decode('{name.hex()}', 'hex')"
    words = (
        f"INSERT INTO commit_marks VALUES ({client}, {number}, now()) "
        "ON CONFLICT (client) DO UPDATE SET number = excluded.number, at = excluded.at; "
        # A commit that has returned survives (I4), also where the server's setting says that speed goes first.
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'; "
    )
    if number == 1:
        words += (
            "DELETE FROM commit_marks WHERE client IN (SELECT client FROM commit_marks "
            f"WHERE at < now() - interval '{_KEPT_MARKS}' LIMIT 100 FOR UPDATE SKIP LOCKED); "
        )
    return f"{words}COMMIT"


def _lock_key(*parts: bytes) -> int:
    """The number of an advisory lock, the same in every process."""
    digest = hash_bytes(b"\0".join((b"holdfast catalog", *parts)))
    return int.from_bytes(digest[:8], "big", signed=True)


# The server that a catalog is on -------------------------------------------------------------------------------------


class ServerInfo(NamedTuple):
    """A catalog's server, as it is now."""

    shown: str
    """The URL, without a password."""
    server: str
    """Its version."""
    milliseconds: float
    """How long a question takes, there and back."""
    standby: bool
    """True if nothing can be written there."""
    forgetful: tuple[str, ...]
    """Settings of the server with which a power loss may lose committed data."""
    clock: float
    """Seconds by which its clock is ahead of this machine's."""
    guarded: bool
    """False if traffic with it can be read and changed on the way."""


def server_info(database: PostgresDatabase) -> ServerInfo:
    """Ask the server; raises as `Database.reading`."""
    with database.reading() as transaction:
        begun = time.perf_counter()
        transaction.one("SELECT 1")
        took = time.perf_counter() - begun
        rows = dict(
            transaction.all("SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes')")
        )
        row = transaction.one(
            """SELECT current_setting('server_version'), pg_is_in_recovery(),
            extract(epoch from clock_timestamp())::float8, inet_server_addr() IS NULL, coalesce(s.ssl, false)
            FROM (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) s"""
        )
    assert row is not None
    return ServerInfo(
        shown=database.address.shown,
        server=str(row[0]),
        milliseconds=took * 1000,
        standby=bool(row[1]),
        forgetful=tuple(sorted(name for name, value in rows.items() if value == "off")),
        clock=row[2] - time.time(),
        guarded=bool(row[3] or row[4]),
    )
