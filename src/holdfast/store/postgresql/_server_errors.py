"""Errors of PostgreSQL and psycopg as our own: their messages are for us, not for a user."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import (
    ConnectionLostError,
    HoldfastError,
    IntegrityError,
    LockedError,
    StorageError,
)

if TYPE_CHECKING:
    import psycopg

    from holdfast.store.postgresql.catalog_url import CatalogAddress

_DAMAGED: Final = ("XX001", "XX002", "58P01", "42P01", "42703", "22P02", "22021", "3F000")
"""Data, an index or a file is damaged or missing; a table or a column is; bytes that are no text."""
_FULL: Final = ("53100",)
_WAITED: Final = ("55P03",)
_GIVEN_UP: Final = ("40001", "40P01", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300")
"""Serialization failures and deadlocks; the server is stopped, starts, ends a connection, or has too many of them."""
_READ_ONLY: Final = ("25006",)
_DENIED: Final = ("42501", "28000", "28P01", "3D000", "42P12", "0P000", "22023")
_HOPELESS: Final = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "certificate",
    "SSL",
    "invalid ",
    "permission denied",
)
"""Parts of libpq's messages about failed connections (it gives no code) that no waiting would cure."""


def is_lost(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    """True if a connection is of no more use."""
    return connection.closed or connection.broken


def is_permanent(error: psycopg.Error) -> bool:
    """True of a failure to connect that will be the same in a moment."""
    if error.sqlstate:
        return error.sqlstate in _DENIED
    text = str(error)
    return any(word in text for word in _HOPELESS) and "starting up" not in text


def read_only(address: CatalogAddress) -> StorageError:
    """The error of a write where nothing can be written."""
    return StorageError(
        f"the catalog {address.shown} cannot be written to from here: the server is a standby, or the home is closed "
        "to this process",
        hint="log, diff, cat and export still work; to change anything, name the primary in store.catalog, or work "
        "outside the run",
        code="read_only",
    )


def unreachable(address: CatalogAddress, error: psycopg.Error) -> StorageError:
    """The error of a catalog to which there is no connection."""
    # One line for each server that was tried; advice follows each, set off by a tab.
    lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
    return StorageError(
        f"the catalog {address.shown} cannot be reached: {address.scrub('; '.join(lines))}",
        hint="see that the server runs, and that user, password and database in store.catalog are right; "
        "nothing was changed",
        code="unreachable",
    )


def translate(error: psycopg.Error, address: CatalogAddress, *, lost: bool) -> HoldfastError:
    """Our own error for one of a statement. ``lost``: the connection is gone with it."""
    state = error.sqlstate or ""
    text = address.scrub(error.diag.message_primary or str(error))
    if state in _WAITED:
        return lock_timeout(address)
    if lost or state in _GIVEN_UP or state.startswith("08"):
        return ConnectionLostError(
            f"the connection to the catalog {address.shown} was lost, or it gave up a transaction: {text}",
            hint="nothing of that was changed; run the command again",
        )
    if state in _READ_ONLY:
        return read_only(address)
    if state in _FULL:
        found = StorageError(
            f"the disk of the catalog {address.shown} is full: {text}",
            hint="free some space on the server and try again; nothing that was saved is affected",
        )
        found.__cause__ = OSError(errno.ENOSPC, text)
        return found
    if state in _DAMAGED:
        return IntegrityError(f"the catalog {address.shown} is damaged: {text}")
    return StorageError(
        f"the catalog {address.shown} cannot be used: {text}",
        hint="see what the server's log says, and that the user may write to the schema holdfast; nothing was changed",
    )


def lock_timeout(address: CatalogAddress) -> LockedError:
    """The error of a wait for others that has run out."""
    return LockedError(
        f"another process is holding the catalog {address.shown}", hint="try again when the other command has finished"
    )
