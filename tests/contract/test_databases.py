"""What the catalog relies on of its database, over SQLite and PostgreSQL: values, order, counts, transactions."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import HoldfastError, LockedError, StorageError
from holdfast.store.database.sql_database import Database, SqliteDatabase, Transaction

from ..postgresql_server import Server, open_catalog

_TABLES = (
    """
-- A table? with 'quotes' and a ? in its comment
CREATE TABLE things (
  number INTEGER PRIMARY KEY AUTOINCREMENT,  -- it's INTEGER
  name TEXT NOT NULL,
  data BLOB,
  size INTEGER NOT NULL DEFAULT 0,
  UNIQUE (name)
)""",
    "CREATE TABLE pairs (a INTEGER NOT NULL, b BLOB NOT NULL, c TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID",
    "CREATE TABLE blobs (tenant INTEGER, hash BLOB, refs INTEGER NOT NULL, PRIMARY KEY (tenant, hash))",
    "CREATE INDEX things_size ON things (size) WHERE size > 0",
    "ALTER TABLE things ADD COLUMN note TEXT NOT NULL DEFAULT '' /* what's TEXT? */",
)


def _create(transaction: Transaction) -> None:
    for statement in _TABLES:
        transaction.run(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Opens the database once more, as another process would."""
    opened: list[Any] = []
    server: Server | None = None
    name = url = ""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgresql_server")
        assert server is not None
        name = server.new_database()
        url = server.url(name)

    def connect(timeout: float = 20.0) -> Database:
        if not url:
            path = os.fsencode(tmp_path / "db")
            opened.append(SqliteDatabase(path, (_create,), application_id=7, timeout=timeout))
        else:
            opened.append(open_catalog(url, migrations=(_create,), timeout=timeout))
        return opened[-1]

    yield connect
    for database in opened:
        database.close()
    if server is not None:
        server.drop_database(name)


@pytest.fixture
def database(connect: Callable[..., Database]) -> Database:
    return connect()


def test_values_come_back_as_they_were(database: Database) -> None:
    texts = ["", "plain", "Grüße", "a\0b", "\x1a", "\x1a0", "\x1a1\0\x1a", "\\x00", "%s ? $1 '", "\U0001f980"]
    with database.writing() as transaction:
        for at, text in enumerate(texts):
            data = text.encode() + b"\0\xff\\x?"
            transaction.run("INSERT INTO things (name, data, size) VALUES (?, ?, ?)", (text, data, at - (1 << 62)))
        transaction.run("INSERT INTO things (name, data) VALUES (?, ?)", ("nothing", None))
    with database.reading() as transaction:
        rows = transaction.all("SELECT name, data, size, note FROM things ORDER BY number")
        assert rows[:-1] == [(text, text.encode() + b"\0\xff\\x?", at - (1 << 62), "") for at, text in enumerate(texts)]
        assert rows[-1] == ("nothing", None, 0, "")
        assert [type(value) for value in rows[0]] == [str, bytes, int, str]
        for text in texts:
            assert transaction.one("SELECT name FROM things WHERE name = ?", (text,)) == (text,)
        assert transaction.one("SELECT 1 FROM things WHERE data = ?", (b"",)) is None
    with pytest.raises(UnicodeEncodeError), database.writing() as transaction:
        transaction.run("INSERT INTO things (name) VALUES (?)", ("\udcff",))


def test_whole_numbers_stay_whole(database: Database) -> None:
    with database.writing() as transaction:
        transaction.many("INSERT INTO pairs (a, b) VALUES (?, ?)", [(1, b"a"), (2, b"b"), ((1 << 55) + 1, b"c")])
    with database.reading() as transaction:
        row = transaction.one(
            """SELECT sum(a), count(*), coalesce(sum(a), 0), max(a) > 2, c IS NULL, 7, sum(a) * ? < 1e30
            FROM pairs GROUP BY 5""",
            (0.5,),
        )
        assert row == ((1 << 55) + 4, 3, (1 << 55) + 4, 1, 1, 7, 1)
        assert row is not None
        assert not any(isinstance(value, float) for value in row)
        assert transaction.one("SELECT sum(a) FROM pairs WHERE a < 0") == (None,)


def test_texts_and_bytes_are_ordered_byte_by_byte(database: Database) -> None:
    names = ["Z", "a", "B", "é", "_", "-", "a-b", "ab", "a b", "A", "\U0001f980", "ﬀ", "aa"]
    with database.writing() as transaction:
        transaction.many("INSERT INTO things (name, data) VALUES (?, ?)", ((name, name.encode()) for name in names))
    with database.reading() as transaction:
        ordered = [row[0] for row in transaction.all("SELECT name FROM things ORDER BY name")]
        assert ordered == sorted(names, key=str.encode)
        assert ordered == [row[0] for row in transaction.all("SELECT name FROM things ORDER BY data")]
        found = transaction.all("SELECT name FROM things WHERE name >= ? AND name < ? ORDER BY 1", ("a", "b"))
        assert [row[0] for row in found] == [name for name in ordered if "a" <= name < "b"]


def test_question_marks_stand_for_parameters_only_where_they_do(database: Database) -> None:
    with database.reading() as transaction:
        assert transaction.one(
            "SELECT '?', '%s', 'it''s ?', ? /* ? */, \"?\" FROM (SELECT 1 AS \"?\") t -- ?", (5,)
        ) == (
            "?",
            "%s",
            "it's ?",
            5,
            1,
        )


def test_how_many_rows_were_changed(database: Database) -> None:
    with database.writing() as transaction:
        insert = "INSERT INTO pairs (a, b) VALUES (?, ?) ON CONFLICT DO NOTHING"
        assert transaction.many(insert, ((n, b"x") for n in range(1234))) == 1234
        assert transaction.many(insert, ((n, b"x") for n in range(1200, 1300))) == 66
        assert transaction.many(insert, [(5000, b"x"), (5000, b"x")]) == 1
        assert transaction.many(insert, []) == 0
        assert transaction.run("UPDATE pairs SET c = 'y' WHERE a < ?", (10,)) == 10
        assert transaction.run("UPDATE pairs SET c = 'y' WHERE a < ?", (10,)) == 10, "also those that were so before"
        assert transaction.many("UPDATE pairs SET c = ? WHERE a = ?", (("z", n) for n in (1, 2, 9999))) == 2
        assert transaction.many("DELETE FROM pairs WHERE a = ?", ((n,) for n in range(5, 9))) == 4
        assert transaction.run("DELETE FROM pairs WHERE a = ?", (77_777,)) == 0
        replace = "INSERT INTO pairs (a, b, c) VALUES (?, ?, ?) ON CONFLICT (a, b) DO UPDATE SET c = excluded.c"
        assert transaction.many(replace, [(1, b"x", "one"), (1, b"x", "two"), (-1, b"x", "new")]) == 3
        assert transaction.one("SELECT c FROM pairs WHERE a = 1") == ("two",)


def test_many_hashes_are_counted_each_as_often_as_named(database: Database) -> None:
    names = [bytes((n,)) * 16 for n in range(200)]
    with database.writing() as transaction:
        transaction.many("INSERT INTO blobs (tenant, hash, refs) VALUES (?, ?, 0)", ((1, name) for name in names))
        transaction.run("INSERT INTO blobs (tenant, hash, refs) VALUES (2, ?, 0)", (names[0],))
        count = "UPDATE blobs SET refs = refs + 1 WHERE tenant = ? AND hash = ?"
        assert transaction.many(count, ((1, name) for name in names)) == 200
        assert transaction.many(count, [(1, names[0]), (1, names[0]), (1, names[1])]) == 3, "twice is twice"
        assert transaction.many(count, [(1, names[2]), (1, b"unknown"), (1, names[3])]) == 2
        assert transaction.many(count, [(1, names[4]), (2, names[0])]) == 2, "of two tenants"
        put = "UPDATE blobs SET refs = ? WHERE tenant = ? AND hash = ? AND refs > ?"
        assert transaction.many(put, [(7, 1, names[5], 0), (7, 1, names[6], 0), (7, 1, names[7], 0)]) == 3
        assert transaction.many(put, [(8, 1, names[5], 0), (9, 1, names[6], 0), (9, 1, names[6], 50)]) == 2
        assert transaction.many("DELETE FROM blobs WHERE tenant = ? AND hash = ?", ((1, n) for n in names[100:])) == 100
    with database.reading() as transaction:
        rows = transaction.all("SELECT hash, refs FROM blobs WHERE tenant = 1 ORDER BY hash LIMIT 8")
        assert [row[1] for row in rows] == [3, 2, 2, 2, 2, 8, 9, 7]
        assert transaction.all("SELECT refs FROM blobs WHERE tenant = 2") == [(1,)]
        assert transaction.one("SELECT count(*) FROM blobs") == (101,)


def test_statements_go_together_and_in_their_order(database: Database) -> None:
    with database.writing() as transaction:
        answers = transaction.together(
            [
                ("INSERT INTO things (name, size) VALUES (?, ?) RETURNING number, size", ("a", 5)),
                ("UPDATE things SET size = size + ? WHERE name = ?", (1, "a")),
                ("SELECT size FROM things WHERE name = ?", ("a",)),
                ("SELECT size FROM things WHERE name = ?", ("b",)),
            ]
        )
        assert answers == [[(1, 5)], [], [(6,)], []]
        assert transaction.together([]) == []
        with transaction.unawaited():
            transaction.run("UPDATE things SET size = 7 WHERE name = 'a'")
            transaction.many("INSERT INTO things (name, size) VALUES (?, ?)", ((f"n{n}", n) for n in range(1200)))
            transaction.many("UPDATE things SET size = size + ? WHERE name = ?", [(1, "n1"), (2, "n2")])
        assert transaction.one("SELECT size FROM things WHERE name = 'a'") == (7,)
        assert transaction.all("SELECT size FROM things WHERE name IN (?, ?) ORDER BY 1", ("n1", "n2")) == [(2,), (4,)]
    with database.reading(once=True) as transaction:
        asked = [("SELECT count(*) FROM things", ()), ("SELECT name FROM things WHERE size = ?", (1199,))]
        assert transaction.together(asked) == [[(1201,)], [("n1199",)]]
    with database.reading(once=True) as transaction:
        assert transaction.together([]) == []
    with database.reading():
        pass
    with database.reading() as transaction, database.reading(once=True) as inner:
        assert inner.one("SELECT 1") == transaction.one("SELECT 1") == (1,)


def test_an_error_among_statements_that_nobody_waits_for_undoes_all_of_them(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(StorageError), database.writing() as transaction:  # noqa: PT012
            transaction.run("INSERT INTO things (name) VALUES ('first')")
            with transaction.unawaited():
                transaction.run("INSERT INTO things (name) VALUES ('second')")
                transaction.run("INSERT INTO things (name) VALUES ('second')")
                transaction.run("INSERT INTO things (name) VALUES ('third')")
        with pytest.raises(StorageError), database.writing() as transaction:
            transaction.together([("INSERT INTO things (name) VALUES ('a')", ())] * 2)
        with pytest.raises(HoldfastError), database.reading(once=True) as transaction:
            transaction.one("SELECT nothing FROM things")
    with pytest.raises(ZeroDivisionError), database.writing() as transaction, transaction.unawaited():  # noqa: PT012
        transaction.run("INSERT INTO things (name) VALUES ('fourth')")
        raise ZeroDivisionError
    with database.reading(once=True) as transaction:
        assert transaction.all("SELECT name FROM things") == []


@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_list_of_hashes(database: Database, count: int) -> None:
    hashes = [number.to_bytes(16, "big") for number in range(count)]
    with database.writing() as transaction:
        rows = [(number % 2, name, 5) for number, name in enumerate(hashes)]
        transaction.many("INSERT INTO blobs VALUES (?, ?, ?)", rows)
        listed = f"hash IN ({', '.join('?' * count)})"
        asked = f"SELECT hash FROM blobs WHERE tenant = ? AND {listed} AND refs = ? ORDER BY 1"
        assert transaction.all(asked, (0, *hashes, 5)) == [(name,) for name in hashes[::2]]
        assert transaction.all(asked, (0, *hashes, 6)) == []
        assert transaction.run(f"DELETE FROM blobs WHERE {listed}", hashes) == count


def test_numbers_grow_and_are_never_used_again(database: Database) -> None:
    insert = "INSERT INTO things (name) VALUES (?) RETURNING number"
    with database.writing() as transaction:
        first = transaction.one(insert, ("a",))
        second = transaction.one(insert, ("b",))
        assert first is not None
        assert second is not None
        transaction.run("DELETE FROM things WHERE number = ?", second)
    with suppress(KeyError), database.writing() as transaction:
        transaction.one(insert, ("undone",))
        raise KeyError
    with database.writing() as transaction:
        third = transaction.one(insert, ("c",))
        assert third is not None
        assert first[0] < second[0] < third[0]


def test_a_stream_gives_every_row_and_can_be_left(database: Database) -> None:
    with database.writing() as transaction:
        transaction.many("INSERT INTO pairs (a, b) VALUES (?, ?)", ((n, b"%d" % n) for n in range(5000)))
    with database.reading() as transaction:
        assert list(transaction.stream("SELECT a, b FROM pairs WHERE a < ? ORDER BY a", (4500,))) == [
            (n, b"%d" % n) for n in range(4500)
        ]
        rows = transaction.stream("SELECT a FROM pairs ORDER BY a")
        assert next(rows) == (0,)
    with database.reading() as transaction:
        del rows  # only now
        gc.collect()
        assert transaction.one("SELECT count(*) FROM pairs") == (5000,)


def test_a_line_of_ancestors(database: Database) -> None:
    with database.writing() as transaction:
        transaction.many(
            "INSERT INTO things (name, note) VALUES (?, ?)", [("c", "b"), ("b", "a"), ("a", ""), ("x", "y")]
        )
    with database.reading() as transaction:
        rows = transaction.all(
            """WITH RECURSIVE line (name, parent, depth) AS (
                SELECT name, note, 0 FROM things WHERE name = ?
                UNION ALL SELECT t.name, t.note, line.depth + 1 FROM line JOIN things t ON t.name = line.parent
                WHERE line.name <> ?
            ) SELECT name FROM line ORDER BY depth""",
            ("c", ""),
        )
        assert rows == [("c",), ("b",), ("a",)]


def test_a_transaction_that_fails_is_undone(database: Database) -> None:
    with pytest.raises(KeyError), database.writing() as transaction:  # noqa: PT012
        transaction.run("INSERT INTO things (name) VALUES ('x')")
        raise KeyError
    with database.reading() as transaction:
        assert transaction.all("SELECT * FROM things") == []
        with database.reading() as inner:
            assert inner is transaction
        with pytest.raises(RuntimeError), database.writing():
            pass


def test_a_statement_that_is_refused_undoes_the_transaction_and_no_more(database: Database) -> None:
    rows = [(1, b"a"), (2, b"b"), (1, b"a")]
    for statement in ("INSERT INTO pairs (a, b) VALUES (?, ?)", "INSERT INTO pairs (a, b) VALUES (?, ?) RETURNING a"):
        with pytest.raises(StorageError), database.writing() as transaction:  # noqa: PT012
            transaction.run("INSERT INTO things (name) VALUES ('x')")
            transaction.many(statement, rows)
    with database.writing() as transaction:
        assert transaction.all("SELECT name FROM things") == []
        assert transaction.many("INSERT INTO pairs (a, b) VALUES (?, ?)", rows[:2]) == 2


def test_a_reader_sees_one_state_and_a_writer_the_latest(connect: Callable[..., Database]) -> None:
    one, two = connect(), connect()
    count = "SELECT count(*) FROM things"
    with one.reading() as transaction:
        assert transaction.one(count) == (0,)
        with two.writing() as other:
            other.run("INSERT INTO things (name) VALUES ('x')")
        assert transaction.one(count) == (0,)
    with one.writing() as transaction:
        assert transaction.one(count) == (1,)


def test_one_writer_at_a_time(connect: Callable[..., Database]) -> None:
    """Each adds one to what it has read: none is lost."""
    with connect().writing() as transaction:
        transaction.run("INSERT INTO things (name) VALUES ('counter')")
    failed: list[BaseException] = []

    def work() -> None:
        database = connect()
        try:
            for _ in range(25):
                with database.writing() as transaction:
                    row = transaction.one("SELECT size FROM things WHERE name = 'counter'")
                    assert row is not None
                    transaction.run("UPDATE things SET size = ? WHERE name = 'counter'", (row[0] + 1,))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with connect().reading() as transaction:
        assert transaction.one("SELECT size FROM things") == (100,)


def test_waiting_has_an_end(connect: Callable[..., Database]) -> None:
    one, two = connect(), connect(timeout=0.2)
    with one.writing():
        with pytest.raises(LockedError) as locked, two.writing():
            pass
        assert "another process" in locked.value.message
        with two.reading() as transaction:
            assert transaction.one("SELECT count(*) FROM things") == (0,)
    with two.writing() as transaction:
        transaction.run("INSERT INTO things (name) VALUES ('now')")


def test_memory_is_given_back_and_nothing_else(database: Database) -> None:
    with database.writing() as transaction:
        transaction.many("INSERT INTO things (name, data) VALUES (?, ?)", ((f"n{n}", b"x" * 1000) for n in range(4000)))
        database.save_memory()  # in the middle of something: not now
    with database.reading() as transaction:
        assert len(transaction.all("SELECT data FROM things")) == 4000
    gc.collect()
    before = _allocated()
    database.save_memory()
    if isinstance(database, SqliteDatabase):
        assert before - _allocated() > 2_000_000
    with database.reading() as transaction:
        assert transaction.one("SELECT count(*), sum(size) FROM things") == (4000, 0)


class _Allocated(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used"]
    ] + [
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


def _allocated() -> int:
    """Bytes that this process has from the C library."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this C library does not tell how much memory it has given out (mallinfo2)")
    library.mallinfo2.restype = _Allocated
    found = library.mallinfo2()
    return found.used + found.hblkhd


def test_what_it_says_of_itself(database: Database) -> None:
    assert database.check() == []
    assert database.size() > 0
    assert not database.read_only
    database.save_space()
    database.close()
    database.close()
