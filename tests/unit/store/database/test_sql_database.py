from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest

from holdfast.model.errors import FormatError, IntegrityError, LockedError, StorageError
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase

APPLICATION = 0x1234


def make(session):
    session.run("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")


def grow(session):
    session.run("ALTER TABLE t ADD COLUMN c TEXT DEFAULT 'new'")


@pytest.fixture
def path(tmp_path):
    return os.fsencode(tmp_path / "db")


def opened(path, migrations=(make,), timeout=5.0):
    return SqliteDatabase(path, migrations, application_id=APPLICATION, timeout=timeout)


@pytest.fixture
def database(path):
    found = opened(path)
    yield found
    found.close()


def _delete_all_and_fail(database):
    with database.writing() as transaction:
        assert transaction.run("DELETE FROM t") == 3
        raise KeyError


def test_transactions(database):
    with database.writing() as transaction:
        assert transaction.run("INSERT INTO t VALUES (?, ?)", (1, "x")) == 1
        assert transaction.many("INSERT INTO t VALUES (?, ?) ON CONFLICT DO NOTHING", [(1, "y"), (2, "y")]) == 1
    with database.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (3, 'z')")
    with pytest.raises(StorageError), database.writing() as transaction:
        transaction.run("DELETE FROM t WHERE a = 3 RETURNING no_such_column")
    with pytest.raises(KeyError):
        _delete_all_and_fail(database)
    with database.reading() as transaction:
        assert transaction.all("SELECT a, b FROM t ORDER BY a") == [(1, "x"), (2, "y"), (3, "z")]
        assert transaction.one("SELECT a FROM t WHERE a = ?", (4,)) is None
        assert list(transaction.stream("SELECT a FROM t ORDER BY a DESC")) == [(3,), (2,), (1,)]
        with database.reading() as inner:
            assert inner is transaction
    assert database.size() > 0
    assert database.check() == []


def test_a_commit_is_private_and_durable_by_its_settings(database, path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with database.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (1, 'x')")
    assert stat.S_IMODE(os.stat(path + b"-wal").st_mode) == 0o600
    with database.reading() as transaction:
        assert transaction.one("PRAGMA journal_mode") == ("wal",)
        assert transaction.one("PRAGMA synchronous") == (2,)
        assert transaction.one("PRAGMA foreign_keys") == (1,)


def test_a_reader_sees_one_state_while_another_writes(database, path):
    other = opened(path)
    with database.reading() as transaction:
        assert transaction.all("SELECT * FROM t") == []
        with other.writing() as writer:
            writer.run("INSERT INTO t VALUES (1, 'x')")
        assert transaction.all("SELECT * FROM t") == []
    with database.reading() as transaction:
        assert transaction.all("SELECT * FROM t") == [(1, "x")]
    other.close()


def test_a_wait_is_said_once(database, path, caplog, monkeypatch):
    monkeypatch.setattr("holdfast.store.database.sql_database._SILENT", 0)
    other = opened(path, timeout=0.6)
    with database.writing(), pytest.raises(LockedError), other.writing():
        pass
    assert caplog.messages == [f"another process holds the catalog {os.fsdecode(path)}; waiting at most 0.6 s"]
    other.close()


def test_a_second_writer_waits_with_a_limit_and_then_says_so(database, path):
    other = opened(path, timeout=0.05)
    with database.writing(), pytest.raises(LockedError) as refused, other.writing():
        pass
    assert "database is locked" not in str(refused.value)
    with other.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (1, 'x')")
    other.close()


def test_threads_take_turns(database):
    def add(number):
        with database.writing() as transaction:
            seen = transaction.one("SELECT count(*) FROM t")[0]
            transaction.run("INSERT INTO t VALUES (?, ?)", (number, str(seen)))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as transaction:
        assert sorted(int(row[0]) for row in transaction.all("SELECT b FROM t")) == list(range(16))


def test_a_writing_transaction_holds_no_other(database):
    with database.writing(), pytest.raises(RuntimeError), database.writing():
        pass


def test_an_older_schema_is_brought_forward(path):
    first = opened(path)
    with first.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (1, 'x')")
    first.close()
    second = opened(path, (make, grow))
    with second.reading() as transaction:
        assert transaction.all("SELECT * FROM t") == [(1, "x", "new")]
    second.close()


def test_a_migration_that_fails_changes_nothing(path):
    def fails(session):
        grow(session)
        raise StorageError("no")

    opened(path).close()
    with pytest.raises(StorageError):
        opened(path, (make, fails))
    found = opened(path)
    with found.reading() as session:
        assert [row[1] for row in session.all("PRAGMA table_info(t)")] == ["a", "b"]
    found.close()


def test_a_newer_schema_is_refused_and_named(path):
    opened(path, (make, grow)).close()
    with pytest.raises(FormatError, match=r"version 2; this program knows up to 1"):
        opened(path)
    opened(path, (make, grow)).close()


def test_a_process_that_was_overtaken_by_a_newer_one_writes_no_more(database, path):
    opened(path, (make, grow)).close()
    with pytest.raises(FormatError, match=r"version 2; this program knows up to 1"), database.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (1, 'x')")
    with database.reading() as transaction:
        assert transaction.all("SELECT a FROM t") == []


def test_the_database_of_another_program_is_left_alone(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(FormatError, match="another program"):
        opened(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.execute("PRAGMA application_id=77")
    connection.close()
    with pytest.raises(FormatError, match="another program"):
        opened(path)


def test_a_file_that_is_no_database_is_damage(path):
    with open(path, "wb") as file:
        file.write(b"hello, this is no database" * 100)
    with pytest.raises(IntegrityError):
        opened(path)


def test_damage_is_found(path):
    database = opened(path)
    with database.writing() as transaction:
        transaction.many("INSERT INTO t VALUES (?, ?)", [(number, "x" * 100) for number in range(2000)])
    database.close()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    database = opened(path)
    try:
        assert database.check() != []
    except IntegrityError:
        pass
    database.close()


def test_a_missing_folder_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot open"):
        opened(os.fsencode(tmp_path / "nowhere" / "db"))


def test_a_full_disk_is_a_storage_error_that_loses_nothing(database):
    with database.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (1, 'x')")
        pages = transaction.one("PRAGMA page_count")[0]
    with database.reading() as transaction:
        transaction.run(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(StorageError, match="no space"), database.writing() as transaction:
        transaction.many("INSERT INTO t VALUES (?, ?)", [(number, "y" * 1000) for number in range(2, 200)])
    with database.reading() as transaction:
        assert transaction.all("SELECT * FROM t") == [(1, "x")]
        transaction.run("PRAGMA max_page_count=1000000")
    with database.writing() as transaction:
        transaction.run("INSERT INTO t VALUES (2, 'y')")


def test_one_that_another_process_makes_between_two_looks_is_no_other_programs(path, monkeypatch):
    look = SqliteDatabase._pragma
    looks = []

    def then_made(self, name):
        found = look(self, name)
        looks.append(name)
        if len(looks) == 1:
            SqliteDatabase(path, MIGRATIONS, application_id=APPLICATION_ID).close()
        return found

    monkeypatch.setattr(SqliteDatabase, "_pragma", then_made)
    SqliteDatabase(path, MIGRATIONS, application_id=APPLICATION_ID).close()
    assert len(looks) > 2


def test_processes_that_open_a_new_file_at_once_all_succeed(path):
    code = (
        "import sys, os; from holdfast.store.database.sql_database import SqliteDatabase\n"
        "from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS\n"
        "SqliteDatabase(os.fsencode(sys.argv[1]), MIGRATIONS, application_id=APPLICATION_ID).close()"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, os.fsdecode(path)]) for _ in range(6)]
    assert [child.wait(60) for child in children] == [0] * 6
