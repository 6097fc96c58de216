"""What there is to be said of the server that a catalog is on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.model.named import NamedTuple

if TYPE_CHECKING:
    from holdfast.store.postgresql import PostgresDatabase


class About(NamedTuple):
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
    """Settings of the server by which what was said to be kept may be lost with its power."""
    clock: float
    """Seconds by which its clock is ahead of this machine's."""
    guarded: bool
    """False if what is sent to it, or comes from it, can be read and changed on the way."""


def about(database: PostgresDatabase) -> About:
    """Ask the server; raises as `Database.reading`."""
    with database.reading() as session:
        begun = time.perf_counter()
        session.one("SELECT 1")
        took = time.perf_counter() - begun
        rows = dict(session.all("SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes')"))
        row = session.one(
            """SELECT current_setting('server_version'), pg_is_in_recovery(),
            extract(epoch from clock_timestamp())::float8, inet_server_addr() IS NULL, coalesce(s.ssl, false)
            FROM (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) s"""
        )
    assert row is not None
    return About(
        shown=database.address.shown,
        server=str(row[0]),
        milliseconds=took * 1000,
        standby=bool(row[1]),
        forgetful=tuple(sorted(name for name, value in rows.items() if value == "off")),
        clock=row[2] - time.time(),
        guarded=bool(row[3] or row[4]),
    )
