"""Connections to PostgreSQL: a bounded pool for the threads of one process, which a forked child never shares."""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg

from holdfast.model.errors import LockedError, StorageError, UnsupportedError
from holdfast.model.log import Log
from holdfast.store.postgresql import _server_errors as server_errors
from holdfast.store.postgresql._value_types import ValueAdapters

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.database.sql_database import Row
    from holdfast.store.postgresql.catalog_url import CatalogAddress

_LOG = Log(__name__)
_T = TypeVar("_T")

OLDEST_SERVER: Final = 140000
_SILENT: Final = 1.0
"""Seconds of waiting after which it is logged."""
_PAUSE: Final = 0.05, 1.0
"""Seconds between two tries to connect: the first, which doubles up to the second."""
_ONE_TRY: Final = 10
"""Seconds that one try may take, in whole ones as libpq wants them."""
_DEFAULTS: Final = {
    # A cable that was pulled is noticed in some 30 seconds, not in two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}

_inherited: list[psycopg.Connection[Row]] = []
"""Of a parent process. To close one would end it for the parent, so they are kept until this process ends."""


class ServerConnection:
    """One connection. ``name`` is its own, here and on the server; ``commits`` counts the marks that it has set."""

    __slots__ = ("_process", "commits", "connection", "name")

    def __init__(self, connection: psycopg.Connection[Row], name: bytes) -> None:
        self._process = os.getpid()
        self.connection = connection
        self.name = name
        self.commits = 0

    @property
    def writable(self) -> bool:
        """False of a standby, as far as the server has said."""
        # From version 14 on the server reports this by itself, and every change.
        said = self.connection.info.parameter_status
        return said("in_hot_standby") != "on" and said("default_transaction_read_only") != "on"

    @property
    def inherited(self) -> bool:
        """True in a child of the process that made it: a word on it would end, or spoil, what the parent does."""
        return os.getpid() != self._process

    @property
    def lost(self) -> bool:
        """True if it is of no more use."""
        return server_errors.is_lost(self.connection)

    def close(self) -> None:
        """Give it up."""
        with suppress(psycopg.Error):
            self.connection.close()


class Connections:
    """At most ``most`` connections to ``address``, made when they are wanted. For any number of threads.

    ``timeout`` is in seconds, and limits each wait: for a connection of the pool, and for the server. While that is not
    there, as during a failover, `take` tries again and again.
    """

    def __init__(self, address: CatalogAddress, *, most: int, timeout: float) -> None:
        self.address = address
        self._most = most
        self._timeout = timeout
        self._values = ValueAdapters()
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[ServerConnection] = []
        self._out = 0
        self._orphans: list[bytes] = []
        """Names of connections that were lost in a writing transaction: the server may not know yet, and keep it."""

    def take(self) -> ServerConnection:
        """A connection for one transaction; `put` it back. Raises `StorageError` or `LockedError` after the timeout."""
        if os.getpid() != self._process:
            _inherited.extend(link.connection for link in self._idle)
            self._begin()
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._out < self._most, self._timeout):
                raise LockedError(
                    f"all {self._most} connections to the catalog {self.address.shown} are in use",
                    hint="try again; store.connections allows for more",
                )
            self._out += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect()
        except BaseException:
            self._returned(None)
            raise

    def take_new(self) -> ServerConnection:
        """One beyond the limit, for the thread whose own was lost."""
        with self._changed:
            self._out += 1
        try:
            return self._connect()
        except BaseException:
            self._returned(None)
            raise

    def put(self, link: ServerConnection) -> None:
        """Give back what `take` gave. One that is lost, or not in order, is closed."""
        if link.inherited:
            _inherited.append(link.connection)
            return
        sound = not link.lost and link.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if not sound:
            link.close()
        self._returned(link if sound else None)

    def orphan(self, name: bytes) -> None:
        """Say that the connection of this name was lost in the middle of a writing transaction."""
        self._orphans.append(name)

    def close(self) -> None:
        """Close all that no thread uses just now. Harmless a second time; `take` connects again."""
        if os.getpid() != self._process:
            return
        with self._changed:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _returned(self, link: ServerConnection | None) -> None:
        with self._changed:
            self._out -= 1
            if link is not None:
                self._idle.append(link)
            self._changed.notify()

    def _connect(self) -> ServerConnection:
        def connect() -> ServerConnection:
            link = self._connect_once()
            self._end_orphans(link)
            return link

        return self._until(connect)

    def _until(self, connect: Callable[[], _T]) -> _T:
        begun = time.monotonic()
        pause, longest = _PAUSE
        told = False
        while True:
            try:
                return connect()
            except psycopg.Error as error:
                waited = time.monotonic() - begun
                if server_errors.is_permanent(error) or waited + pause > self._timeout:
                    raise server_errors.unreachable(self.address, error) from None
                if waited >= _SILENT and not told:
                    told = True
                    _LOG.warning(
                        "the catalog %s does not answer; waiting at most %g s", self.address.shown, self._timeout
                    )
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _parameters(self) -> dict[str, str]:
        parameters = {**_DEFAULTS, **self.address.parameters}
        parameters.setdefault("connect_timeout", str(max(2, min(_ONE_TRY, int(self._timeout)))))
        if "," in parameters.get("host", "") + parameters.get("hostaddr", ""):
            parameters.setdefault("target_session_attrs", "read-write")
        return parameters

    def _connect_once(self) -> ServerConnection:
        name = secrets.token_bytes(16)
        connection: psycopg.Connection[Row] = psycopg.connect(
            **self._parameters(),  # pyright: ignore[reportArgumentType] - all are texts, as libpq has them
            autocommit=True,
            context=self._values,
            cursor_factory=psycopg.RawCursor,
            application_name=_application(name),
        )
        try:
            self._check_server(connection)
        except BaseException:
            connection.close()
            raise
        return ServerConnection(connection, name)

    def _check_server(self, connection: psycopg.Connection[Row]) -> None:
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise UnsupportedError(
                f"the catalog {self.address.shown} is on PostgreSQL {version // 10000}; it has to be 14 or newer"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StorageError(
                f"the database of the catalog {self.address.shown} has the encoding {encoding}, which cannot hold "
                "every text",
                hint="make one with ENCODING 'UTF8', and name it in store.catalog",
            )

    def _end_orphans(self, link: ServerConnection) -> None:
        """Let the server end its sessions of lost connections, so that no process waits for them."""
        while self._orphans:
            name = self._orphans.pop()
            end_session(link, name)


def end_session(link: ServerConnection, name: bytes) -> None:
    """End the server's session of the connection with this name; it may still exist when this returns.

    Best effort: a pooler in between may have given its session another name.
    """
    link.connection.execute(
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        b"WHERE application_name = $1 AND usename = current_user AND pid <> pg_backend_pid()",
        (_application(name),),
    )


def _application(name: bytes) -> str:
    return f"holdfast {name.hex()}"
