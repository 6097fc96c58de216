"""Spares of a home's catalog: complete copies, made by SQLite's backup, for the damage or loss of the file.

They are in the home's directory ``spares``; docs/formats/catalog.md specifies them. The upkeep makes one daily, and an
opening that changes the schema makes one before; commands that only save or read make none.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import LockedError, StorageError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

FOLDER: Final = b"spares"
EVERY: Final = 24 * 3600 * 1_000_000
"""Microseconds from one spare to the next."""
DAMAGED: Final = b"damaged-"
"""Begins the names of directories with catalogs that a repair has set aside."""
_KEPT: Final = 2
_LOCK: Final = b"lock"
_SUFFIX: Final = b".db"
_UNFINISHED: Final = b"unfinished"
_DIGITS: Final = 17
_MARGIN: Final = 16 << 20
"""Bytes that must stay free in addition to the size of the catalog."""
_LOG = Log(__name__)


class Spare(NamedTuple):
    """An existing spare."""

    path: bytes
    at: int
    """When the catalog was as it is in there, in microseconds since 1970-01-01 UTC."""


def spares(home: bytes) -> list[Spare]:
    """The spares in a home, the newest first. Their soundness is not checked."""
    folder = os.path.join(home, FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [Spare(os.path.join(folder, name), int(name[:_DIGITS])) for name in names if _is_spare(name)]
    return sorted(found, key=lambda spare: -spare.at)


def _is_spare(name: bytes) -> bool:
    return len(name) == _DIGITS + len(_SUFFIX) and name[:_DIGITS].isdigit() and name.endswith(_SUFFIX)


def was_there(home: bytes) -> bool:
    """Whether the home had a catalog, for all that is left in it: spares, or what a repair has set aside."""
    try:
        names = os.listdir(home)
    except OSError:
        return False
    return any(name.startswith(DAMAGED) for name in names) or bool(spares(home))


def is_due(home: bytes, now: int) -> bool:
    """Whether the newest spare is a day old, or missing. Costs one listing of a small directory."""
    found = spares(home)
    # One from the future was made before the clock was corrected.
    return not found or not now - EVERY < found[0].at <= now + EVERY


def take(home: bytes, catalog: bytes, now: int) -> Spare | None:
    """Make a spare of the database file ``catalog``, if the home has room for it; then keep the newest two.

    The spare appears complete and synced, or not at all. Returns None if there is no room, another process is making
    one, or the catalog is damaged: then the present spares stay. Writers do not wait for it. Raises `StorageError`.
    """
    try:
        with _lock(home) as folder:
            if folder is None:
                return None
            size = os.stat(catalog).st_size
            if _free(home) < 2 * size + _MARGIN:
                _LOG.warning(
                    "the disk has no room for a spare copy of the catalog, from which `doctor --repair` restores it"
                )
                return None
            found = _take(folder, catalog, now)
            if found is not None:
                keep = _KEPT if _free(home) >= size + _MARGIN else 1
                for old in spares(home)[keep:]:
                    os.unlink(old.path)
            return found
    except OSError as error:
        raise StorageError(f"cannot make a spare of the catalog: {error.strerror}") from error


def replace_all(home: bytes, now: int) -> None:
    """Have no spare from before ``now``, if there are any: the catalog's values were encrypted since.

    Raises `StorageError` if a new one cannot be made; then the old ones stay.
    """
    old = spares(home)
    if not old:
        return
    if take(home, os.path.join(home, b"catalog.db"), max(now, old[0].at + 1)) is None:
        raise StorageError("the spares of the catalog cannot be made anew")
    for spare in old:
        with suppress(FileNotFoundError):
            os.unlink(spare.path)


def _take(folder: bytes, catalog: bytes, now: int) -> Spare | None:
    unfinished = os.path.join(folder, _UNFINISHED)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        try:
            _copy(catalog, unfinished)
        except sqlite3.OperationalError as error:
            raise StorageError(f"cannot make a spare of the catalog: {error}") from error
        except sqlite3.DatabaseError as error:
            problems = [str(error)]
        else:
            problems = damage(unfinished)
        if problems:
            _LOG.error(
                "the catalog is damaged (%s): its spares stay as they are; see `holdfast doctor --repair`", problems[0]
            )
            return None
        _sync(unfinished)
        spare = Spare(os.path.join(folder, b"%0*d" % (_DIGITS, now) + _SUFFIX), now)
        os.rename(unfinished, spare.path)
        _sync(folder)
        return spare
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def _copy(catalog: bytes, target: bytes) -> None:
    with closing(sqlite3.connect(catalog)) as source, closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # A copy that is cut short is removed, and one that is whole is synced: neither needs a journal.
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):
            copy.execute(f"PRAGMA {pragma}").fetchone()
        # In one step: as of one moment, and without beginning anew when another process writes in between.
        source.backup(copy, pages=-1)


def damage(path: bytes) -> list[str]:
    """The damage that SQLite finds in a database file without writers; empty if it is intact."""
    from urllib.parse import quote

    try:
        # immutable: it is read as it is, and no log is made beside it.
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)) as database:
            found = [str(row[0]) for row in database.execute("PRAGMA integrity_check(20)")]
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'tenants'").fetchall():
                found.append("it is no catalog")
    except sqlite3.Error as error:
        return [str(error)]
    return [text for text in found if text != "ok"]


@contextmanager
def _lock(home: bytes) -> Generator[bytes | None]:
    """The directory of the spares, while this process alone writes there; None if another one does."""
    folder = os.path.join(home, FOLDER)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    fd = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, _UNFINISHED))  # of a process that was killed
        yield folder
    finally:
        os.close(fd)


@contextmanager
def locked(home: bytes) -> Generator[None]:
    """Keep other processes from making spares, or a repair; raises `LockedError` if one is at it."""
    with _lock(home) as folder:
        if folder is None:
            raise LockedError(
                f"another process is making a spare of the catalog in {display(home)}, or repairs it",
                hint="try again when it has finished",
            )
        yield


def _sync(path: bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _free(home: bytes) -> int:
    about = os.statvfs(home)
    return about.f_bavail * about.f_frsize
