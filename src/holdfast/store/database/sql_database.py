"""The database port under the catalog: plain SQL in transactions, and its implementation over SQLite; that over
PostgreSQL is `holdfast.store.postgresql.database`.

The statements are SQL that SQLite and PostgreSQL both run, with ``?`` for a parameter; rows are tuples. A writing
transaction is the only writer meanwhile, so everything that it has read stays valid until it ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import time
from functools import partial

from holdfast.model.errors import FormatError, HoldfastError, IntegrityError, LockedError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING, Protocol, TypeVar
from holdfast.model.log import Log
from holdfast.store.database import sqlite_wal_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Again = Callable[[Callable[[], Any]], Any]
    """Calls what it is given, once more while the connection is lost and nothing was committed."""
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, TypeAlias

Row: TypeAlias = "tuple[Any, ...]"
Statement = tuple[str, "Sequence[object]"]
"""An SQL text, and its parameters."""
_T = TypeVar("_T")

_LOG = Log(__name__)
_BEGIN = "BEGIN"
_DENIED = (errno.EACCES, errno.EPERM)
_BUSY_STEP = 0.25
"""Seconds that SQLite itself waits for a lock before we look at our own limit."""
_SILENT = 1.0
"""Seconds of waiting after which it is logged."""
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED_HINT = "`holdfast doctor --repair` brings it back from its newest spare and the saved objects"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Transaction(Protocol):
    """One open transaction."""

    def all(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Every row that the statement gives."""
        ...

    def one(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        """The first row that the statement gives, or None."""
        ...

    def together(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """The rows that each of several statements gives, which are run in this order; none waits for what another
        gives.
        """
        ...

    def unawaited(self) -> AbstractContextManager[None]:
        """A block of statements whose rows and counts are not used; an error of one may be raised at its end."""
        ...

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        """The rows one by one; use them up, or leave the transaction, before the next statement."""
        ...

    def run(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; how many rows it changed."""
        ...

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        """Run a changing statement for each of ``rows``; how many rows were changed in all."""
        ...


class Database(Protocol):
    """Transactions on one catalog. For several threads (one at a time) and, each with its own, several processes.

    Both methods raise `LockedError` when the wait for another process runs out, `StorageError` for errors of the disk
    and `IntegrityError` for a damaged database. A remote one raises `ConnectionLostError` if nothing of the transaction
    was kept, and `StorageError` with the code ``commit_unknown`` if that is unknown.
    """

    @property
    def read_only(self) -> bool:
        """True if nothing can be written: `writing` then raises `StorageError`, and no process need be kept from it."""
        ...

    def reading(self, *, once: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction that sees one state throughout. Inside another transaction of this thread it is that one.

        With ``once`` it is for one statement, or one call of `together`; with a remote database, that is one round trip
        instead of two.
        """
        ...

    def writing(self) -> AbstractContextManager[Transaction]:
        """A transaction that is the only writer, of its tenant at least. Left normally it is committed, durably (I4);
        else undone.
        """
        ...

    def save_space(self) -> None:
        """Take as little space on the side as possible from now on, however slow that is."""
        ...

    def save_memory(self) -> None:
        """Free the memory of cached pages, which must then be read again."""
        ...

    def size(self) -> int:
        """Bytes that the database takes."""
        ...

    def check(self) -> list[str]:
        """The damage that the database finds in itself; empty if there is none."""
        ...

    def close(self) -> None:
        """Give up the connection. Harmless a second time."""
        ...


class Migration(Protocol):
    """One step from a schema version to the next."""

    def __call__(self, transaction: Transaction) -> None:
        """Change the schema inside the given transaction."""
        ...


class _SqliteTransaction:
    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Sequence[object] = ()) -> Row | None:
        cursor = self._connection.execute(sql, parameters)
        row = cursor.fetchone()
        cursor.close()
        return row

    def together(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return [self.all(sql, parameters) for sql, parameters in statements]

    def unawaited(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stream(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        return iter(self._connection.execute(sql, parameters))

    def run(self, sql: str, parameters: Sequence[object] = ()) -> int:
        return self._connection.execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        return max(0, self._connection.executemany(sql, rows).rowcount)


class SqliteDatabase:
    """`Database` in one SQLite file (mode 0600): write-ahead log, every commit synced, foreign keys on.

    ``migrations[n]`` leads from schema version n to n + 1; opening upgrades an older file in one transaction. A file of
    a newer version, or of another program, raises `FormatError` and is not changed. ``check_new`` is called before a
    file without a schema gets one, and may raise its own error; ``before_upgrade`` before an upgrade, while others may
    still use the file. ``timeout`` is in seconds and limits every wait for another process. It can be read on a
    read-only file system, and on a disk that is too full for SQLite's additional files.
    """

    def __init__(
        self,
        path: bytes,
        migrations: Sequence[Migration],
        *,
        application_id: int,
        timeout: float = 30.0,
        check_new: Callable[[], None] | None = None,
        before_upgrade: Callable[[], None] | None = None,
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._lock = threading.RLock()
        self._current: _SqliteTransaction | None = None
        self._version: int | None = None
        """The schema's, once it is known to be ours."""
        self._alone = False
        """True while the disk is too full: each transaction then has its own connection, which keeps the log's index in
        memory and excludes all others meanwhile (https://sqlite.org/wal.html#noshm).
        """
        denied = False
        try:
            # One that exists is not opened here: to close it again would let go of the locks that another connection
            # of this process has on it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _DENIED or not os.path.exists(path):
                raise StorageError(
                    f"cannot open the catalog {os.fsdecode(path)}: {error.strerror}", hint=room_hint(error)
                ) from error
            denied = True  # as for processes under `run`
        self.read_only = denied or bool(os.statvfs(os.path.dirname(path)).f_flag & os.ST_RDONLY)
        self._prepare_schema = partial(self._prepare, migrations, application_id, check_new, before_upgrade)
        self._open(to_write=False)
        self._version = len(migrations)

    def _open(self, *, to_write: bool) -> None:
        """Connect as usual; if the disk is too full for that, for one transaction that only reads."""
        try:
            self._connect(alone=False)
        except sqlite_wal_index.NoRoomError:
            if to_write:
                self._alone = True
                raise
            self._connect(alone=True)

    def _connect(self, *, alone: bool) -> None:
        self._alone = alone
        if not self.read_only and not alone:
            sqlite_wal_index.check_room(self._path)
            sqlite_wal_index.make(self._path)
        with _translated(self._path):
            self._connection = sqlite3.connect(
                _read_only_address(self._path) if self.read_only else self._path,
                timeout=min(_BUSY_STEP, self._timeout),
                isolation_level=None,
                check_same_thread=False,
                uri=self.read_only,
            )
        try:
            self._prepare_schema()
        except BaseException:
            self._connection.close()
            self._alone = True  # the next transaction connects again
            raise

    def _prepare(
        self,
        migrations: Sequence[Migration],
        application_id: int,
        check_new: Callable[[], None] | None,
        before_upgrade: Callable[[], None] | None,
    ) -> None:
        with _translated(self._path):
            if self._alone:
                self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            # NORMAL would leave a commit that has returned to the next checkpoint of the log: lost with the power (I4).
            for pragma in ("synchronous=FULL", "foreign_keys=ON", "cache_size=-32768", "wal_autocheckpoint=4000"):
                self._connection.execute(f"PRAGMA {pragma}")
            # In this order: another process may make the catalog in between, and sets both at once.
            version = self._retry(lambda: self._pragma("user_version"))
            found = self._retry(lambda: self._pragma("application_id"))
        if not self.read_only and not self._alone:
            sqlite_wal_index.hold(self._path)
        if found not in (0, application_id) or (found == 0 and version):
            raise FormatError(f"{os.fsdecode(self._path)} is a database of another program, not a catalog")
        if version == len(migrations):
            return
        self._refuse_newer(version, len(migrations))
        self._refuse_read_only()
        if self._alone:
            raise sqlite_wal_index.no_room(self._path)
        with _translated(self._path):
            self._retry(lambda: self._connection.execute("PRAGMA journal_mode=WAL").fetchone())
            self._retry(lambda: self._pragma("user_version"))
        sqlite_wal_index.hold(self._path)
        if version and before_upgrade is not None:
            before_upgrade()
        with self.writing() as transaction:
            version = self._pragma("user_version")  # another process may have been first
            self._refuse_newer(version, len(migrations))
            if version == 0 and transaction.one("SELECT 1 FROM sqlite_master LIMIT 1"):
                raise FormatError(f"{os.fsdecode(self._path)} is a database of another program, not a catalog")
            if version == 0 and check_new is not None:
                check_new()
            for number in range(version, len(migrations)):
                _LOG.info("catalog %s: schema version %d to %d", os.fsdecode(self._path), number, number + 1)
                migrations[number](transaction)
            transaction.run(f"PRAGMA user_version={len(migrations)}")
            transaction.run(f"PRAGMA application_id={application_id}")

    def _refuse_read_only(self) -> None:
        if self.read_only:
            raise StorageError(
                f"the catalog {os.fsdecode(self._path)} cannot be written to: it is on a read-only file system, "
                "or closed to this process",
                hint="log, diff, cat and export still work; to change anything, "
                "make it writable, or work outside the run",
                code="read_only",
            )

    def _refuse_newer(self, version: int, known: int) -> None:
        if version > known:
            raise FormatError(
                f"the catalog {os.fsdecode(self._path)} has schema version {version}; this program knows up to {known}",
                hint="use the newer version of Holdfast that wrote it, and end what older ones are still running",
            )

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _retry(self, attempt: Callable[[], _T]) -> _T:
        """Call ``attempt`` until it no longer finds the database locked by another process; then `LockedError`."""
        begun = time.monotonic()
        told = False
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                waited = time.monotonic() - begun
                if error.sqlite_errorcode & 0xFF not in _BUSY or waited >= self._timeout:
                    raise
                if waited >= _SILENT and not told:
                    told = True
                    path = os.fsdecode(self._path)
                    _LOG.warning("another process holds the catalog %s; waiting at most %g s", path, self._timeout)
                # BUSY_RECOVERY and the change to WAL return at once, whatever the busy timeout: pause between tries.
                time.sleep(0.005)

    @contextlib.contextmanager
    def reading(self, *, once: bool = False) -> Generator[Transaction]:  # noqa: ARG002 - nothing is to be saved here
        """See `Database.reading`."""
        with self._lock:
            if self._current is not None:
                yield self._current
                return
            with self._transaction(_BEGIN) as transaction:
                yield transaction

    @contextlib.contextmanager
    def writing(self) -> Generator[Transaction]:
        """See `Database.writing`."""
        with self._lock:
            if self._current is not None:
                raise RuntimeError("a writing transaction inside another transaction")
            self._refuse_read_only()
            with self._transaction("BEGIN IMMEDIATE") as transaction:
                if self._version is not None:
                    # A newer program may have brought the file forward while this process had it open.
                    self._refuse_newer(self._pragma("user_version"), self._version)
                yield transaction

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Generator[Transaction]:
        if self._alone:
            self._connection.close()
            self._open(to_write=begin != _BEGIN)
        with _translated(self._path):
            self._retry(lambda: self._connection.execute(begin))
            self._current = _SqliteTransaction(self._connection)
            try:
                yield self._current
                self._connection.execute("COMMIT")
            except BaseException:
                # After some errors (disk full) SQLite has undone the transaction by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._current = None
                if self._alone:
                    self._connection.close()

    def save_space(self) -> None:
        """See `Database.save_space`. The log is brought into the database after every few commits."""
        with self._lock, _translated(self._path):
            if self._alone:
                self._connection.close()
                self._open(to_write=True)
            self._connection.execute("PRAGMA wal_autocheckpoint=32")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def overwrite_deleted(self) -> None:
        """From now on, overwrite deleted data with zeros in the file."""
        with self._lock, _translated(self._path):
            self._connection.execute("PRAGMA secure_delete=ON").fetchone()

    def write_anew(self) -> None:
        """Rewrite the file without deleted data, and truncate its log. Needs as much space again."""
        with self._lock, _translated(self._path):
            self._retry(lambda: self._connection.execute("VACUUM"))
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def save_memory(self) -> None:
        """See `Database.save_memory`."""
        with self._lock:
            if self._current is None and not self._alone:
                with _translated(self._path):
                    self._connection.execute("PRAGMA shrink_memory")

    def size(self) -> int:
        """See `Database.size`."""
        total = 0
        for suffix in (b"", b"-wal"):
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(self._path + suffix).st_size
        return total

    def check(self) -> list[str]:
        """See `Database.check`."""
        with self.reading() as transaction:
            # quick_check would not compare tables with their indexes.
            found = [str(row[0]) for row in transaction.all("PRAGMA integrity_check(20)")]
            found += [
                f"a row of {row[0]} refers to no row of {row[2]}" for row in transaction.all("PRAGMA foreign_key_check")
            ]
        return [text for text in found if text != "ok"]

    def close(self) -> None:
        """See `Database.close`."""
        with self._lock:
            self._connection.close()


def _read_only_address(path: bytes) -> str:
    """The address by which SQLite opens a file read-only.

    A log that was left by a killed process, or belongs to a writer on another mount, is read as well. Without one
    SQLite would try to make it, unless the address declares the file immutable.
    """
    from urllib.parse import quote

    immutable = "" if os.path.lexists(path + b"-wal") else "&immutable=1"
    return f"file:{quote(path)}?mode=ro{immutable}"


@contextlib.contextmanager
def _translated(path: bytes) -> Generator[None]:
    """Turn what SQLite raises into our own errors: its words are for us, not for a user."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, os.fsdecode(path)) from error


def _translate(error: sqlite3.Error, path: str) -> HoldfastError:
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in _BUSY:
        return LockedError(
            f"another process is holding the catalog {path}", hint="try again when the other command has finished"
        )
    # Text that is no UTF-8 is not ours; Python reports it without a code.
    if code in _DAMAGED or "Could not decode to UTF-8" in str(error):
        return IntegrityError(f"the catalog {path} is damaged: {error}", hint=DAMAGED_HINT)
    if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return sqlite_wal_index.no_room(os.fsencode(path))
    return StorageError(
        f"the catalog {path} cannot be used: {error}",
        hint="see that its disk is sound and has space, and that its directory may be written; nothing was changed",
    )


# Calling again what a lost connection has cut short, for catalogs on other machines ----------------------------------


def repeat(part: object, methods: Iterable[str], again: Again) -> None:
    """Have ``again`` call these methods of ``part``. Each is one transaction, or does no harm when it is done twice."""

    def call(method: Callable[..., Any], *values: object, **named: object) -> Any:
        return again(lambda: method(*values, **named))

    for name in methods:
        setattr(part, name, partial(call, getattr(part, name)))
