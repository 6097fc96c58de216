"""The catalog's contract over SQLite and PostgreSQL: alone, and beside a tenant that holds much the same (I10)."""

from __future__ import annotations

import os
import random

import pytest

from holdfast.model.errors import IntegrityError
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog.session_rows import SessionRows
from holdfast.store.catalog.value_encryption import encrypt_stored
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects._encryption_format import tenant_key
from holdfast.store.objects._encryption_keys import EncryptionKeys
from holdfast.store.objects.remote_store import open_bucket
from holdfast.store.store import Store
from holdfast.testing.catalog_contract import CatalogContract
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load
from holdfast.testing.session_contract import SessionRowsContract

FILES = {b"a": b"one", b"b/c": b"two", b"b/d": b"three", b"large": b"x" * ((1 << 20) + 1)}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        found = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    else:
        from ..postgresql_server import open_catalog

        found = open_catalog(request.getfixturevalue("catalog_url"))
    yield found
    found.close()


class TestAlone(CatalogContract):
    @pytest.fixture
    def store(self, database, clock):
        return Store(open_bucket("memory://"), Catalog(database, "local", clock))


class TestBesideAnotherTenant(CatalogContract):
    @pytest.fixture
    def store(self, database, clock):
        """The other tenant's checkpoints are untouched by whatever a test does."""
        objects = open_bucket("memory://")
        other = Store(objects, Catalog(database, "other", clock))
        saver = Saver(other, WorkspaceId(f"{0:016x}"), clock, random.Random(2).randbytes)
        saver.create(b"/a")
        names = [saver.save(FILES, label="good"), saver.save({b"f": b"1"})]
        rows = other.catalog.stats()
        yield Store(objects, Catalog(database, "local", clock))
        assert load(other, names[0]) == FILES
        assert load(other, names[1]) == {b"f": b"1"}
        assert other.catalog.stats()._replace(catalog_bytes=0) == rows._replace(catalog_bytes=0)
        assert other.verifier().verify(read_data=True).problems == []


class TestSessionsAlone(SessionRowsContract):
    @pytest.fixture
    def store(self, database, clock):
        return Store(open_bucket("memory://"), Catalog(database, "local", clock))


class TestSessionsBesideAnotherTenant(SessionRowsContract):
    @pytest.fixture
    def store(self, database, clock):
        """The other tenant has a session of the same name, of which nothing is seen or changed (I10)."""
        objects = open_bucket("memory://")
        theirs = SessionRowsContract()
        theirs.prepare(Store(objects, Catalog(database, "other", clock)), clock)
        theirs.rows.add(theirs.record())
        first, journal = theirs.commit(theirs.trees[0])
        mine = Store(objects, Catalog(database, "local", clock))
        assert SessionRows(mine.catalog).list() == []
        assert SessionRows(mine.catalog).by_prefix(first.hash) == []
        assert SessionRows(mine.catalog).ref("sessions/one/HEAD") is None
        yield mine
        assert theirs.rows.journal(theirs.record().id) == journal
        assert theirs.rows.checkpoints(theirs.record().id) == [first]
        assert len(theirs.rows.refs(theirs.record().id)) == 1
        assert theirs.store.verifier().verify(read_data=True).problems == []


def test_a_tenant_does_not_reach_a_blob_of_another_by_its_hash(database, tmp_path):
    """I10"""
    from holdfast.testing.clocks import ManualClock

    clock = ManualClock()
    objects = open_bucket("memory://")
    mine, theirs = (Store(objects, Catalog(database, name, clock)) for name in ("mine", "theirs"))
    saver = Saver(theirs, WorkspaceId("1" * 16), clock, random.Random(3).randbytes)
    saver.create(b"/x")
    name = saver.save(FILES)
    point = theirs.catalog.checkpoint(name)
    assert theirs.catalog.known([point.root]) == {point.root}
    assert mine.catalog.known([point.root]) == set()
    assert mine.catalog.locate([point.root]) == {}
    assert mine.catalog.checkpoints() == mine.catalog.workspaces() == mine.catalog.by_prefix(name) == []
    assert mine.catalog.changeset(name) is None
    assert mine.catalog.protections() == {}
    assert mine.catalog.forget([name]) == []
    assert mine.collector().collect(0).blobs_deleted == 0
    assert load(theirs, name) == FILES


def test_values_are_encrypted_where_there_is_a_key(database):
    pytest.importorskip("cryptography")
    catalog = Catalog(database, "local", ManualClock())
    store = Store(open_bucket("memory://"), catalog)
    waiting = ReapplyRows(catalog)
    asked = ReapplyRow("a" * 32, WorkspaceId("1" * 16), b"p", "{}", b"now" * 9, b"before", None, deadline=99)
    waiting.ask(asked)
    key = tenant_key(b"k" * 32)
    catalog.keys = EncryptionKeys(key, {key.id: key})
    encrypt_stored(catalog)
    catalog.accepts_plain = False
    assert waiting.get("a" * 32) == asked
    with database.reading() as transaction:
        (row,) = transaction.all("SELECT now, before, after FROM reapplies WHERE tenant = ?", (catalog.tenant,))
    assert [value and value[:6] for value in row] == [b"HFROW\x01", b"HFROW\x01", None]
    assert store.verifier().verify().problems == []
    catalog.keys = None
    with pytest.raises(IntegrityError, match=key.id.hex()):
        waiting.get("a" * 32)
