"""Spares of the catalog: whole or not there, the newest two, never in the place of a better one."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing

import pytest

from holdfast.store import catalog_spare
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.testing.clocks import ManualClock

DAY = 24 * 3600 * 1_000_000


@pytest.fixture
def home(tmp_path):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    Catalog(database, "t", ManualClock()).close()
    return os.fsencode(tmp_path)


def take(home, now):
    return catalog_spare.take(home, os.path.join(home, b"catalog.db"), now)


def names(home):
    return sorted(os.listdir(os.path.join(home, b"spares")))


def test_a_spare_is_whole_and_nothing_else_is_left(home):
    spare = take(home, DAY)
    assert spare is not None
    assert spare == catalog_spare.spares(home)[0] == (os.path.join(home, b"spares/00000086400000000.db"), DAY)
    assert names(home) == [b"00000086400000000.db", b"lock"]
    assert {stat.S_IMODE(os.stat(os.path.join(home, b"spares", one)).st_mode) for one in names(home)} == {0o600}
    assert stat.S_IMODE(os.stat(os.path.join(home, b"spares")).st_mode) == 0o700
    assert catalog_spare.damage(spare.path) == []
    with closing(sqlite3.connect(spare.path)) as database:
        assert database.execute("SELECT name FROM tenants ORDER BY number").fetchall() == [("t",)]


def test_the_newest_two_stay(home):
    for number in range(1, 5):
        take(home, number * DAY)
    assert [spare.at // DAY for spare in catalog_spare.spares(home)] == [4, 3]


def test_it_is_due_once_a_day(home):
    assert catalog_spare.is_due(home, 9 * DAY)
    take(home, 9 * DAY)
    assert not catalog_spare.is_due(home, 10 * DAY - 1)
    assert catalog_spare.is_due(home, 10 * DAY)
    assert catalog_spare.is_due(home, 7 * DAY), "the clock that made it was ahead"


def test_what_others_have_committed_and_not_brought_into_the_file_is_in_it(home):
    with closing(sqlite3.connect(os.path.join(home, b"catalog.db"), isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint=0")
        other.execute("INSERT INTO tenants (name, swept, latest) VALUES ('late', 0, 0)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO tenants (name, swept, latest) VALUES ('never', 0, 0)")
        spare = take(home, DAY)
        other.execute("ROLLBACK")
    assert spare is not None
    with closing(sqlite3.connect(spare.path)) as database:
        assert database.execute("SELECT name FROM tenants ORDER BY number").fetchall() == [("t",), ("late",)]


def test_a_damaged_catalog_takes_no_good_spares_place(home, caplog):
    take(home, DAY)
    take(home, 2 * DAY)
    with open(os.path.join(home, b"catalog.db"), "r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 9000)
    assert take(home, 3 * DAY) is None
    assert "doctor --repair" in caplog.text
    caplog.clear()
    assert [spare.at // DAY for spare in catalog_spare.spares(home)] == [2, 1]
    assert names(home)[-1:] == [b"lock"]


def test_without_room_there_is_none(home, monkeypatch, caplog):
    take(home, DAY)
    monkeypatch.setattr(catalog_spare, "_free", lambda _: (16 << 20) + os.path.getsize(home + b"/catalog.db"))
    assert take(home, 2 * DAY) is None
    assert "no room" in caplog.text
    caplog.clear()
    assert [spare.at // DAY for spare in catalog_spare.spares(home)] == [1]


def test_with_little_room_the_newest_stays(home, monkeypatch):
    take(home, DAY)
    left = iter([1 << 40, 1 << 20])
    monkeypatch.setattr(catalog_spare, "_free", lambda _: next(left))
    take(home, 2 * DAY)
    assert [spare.at // DAY for spare in catalog_spare.spares(home)] == [2]


def test_what_a_killed_process_left_is_removed_and_another_at_work_is_let_be(home):
    with catalog_spare.locked(home):
        assert take(home, DAY) is None
    with open(os.path.join(home, b"spares/unfinished"), "wb") as file:
        file.write(b"half of it")
    assert take(home, DAY)
    assert names(home) == [b"00000086400000000.db", b"lock"]


def test_one_is_made_before_the_schema_changes(tmp_path):
    path = os.fsencode(tmp_path / "catalog.db")
    SqliteDatabase(path, MIGRATIONS[:-1], application_id=APPLICATION_ID).close()
    called = []

    def before():
        with closing(sqlite3.connect(path)) as database:
            called.append(database.execute("PRAGMA user_version").fetchone()[0])

    for _ in range(2):
        SqliteDatabase(path, MIGRATIONS, application_id=APPLICATION_ID, before_upgrade=before).close()
    assert called == [len(MIGRATIONS) - 1]
    SqliteDatabase(os.fsencode(tmp_path / "new.db"), MIGRATIONS, application_id=APPLICATION_ID, before_upgrade=before)
    assert len(called) == 1
