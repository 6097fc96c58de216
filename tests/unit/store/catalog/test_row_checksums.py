"""A value of the catalog that nobody changed for a reason is found: by a row's checksum, or by what contradicts it."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3

import pytest

from holdfast.model.checkpoint import HistoryEvent, Provenance
from holdfast.model.entries import NotCaptured
from holdfast.model.errors import IntegrityError
from holdfast.model.ids import CheckpointId, WorkspaceId, hash_bytes
from holdfast.model.session_types import SessionCheckpoint, SessionHash, SessionId, SessionRef, State, TreeEvent
from holdfast.store.catalog._version_5_tables import SESSIONS_4, WORKSPACES_1
from holdfast.store.catalog.answer_rows import AnswerRows
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.export_rows import ExportRow, ExportRows
from holdfast.store.catalog.promotion_rows import PromotionRow, PromotionRows
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows
from holdfast.store.catalog.row_checksums import HISTORY, set_checksum
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog.session_records import (
    JournalRow,
    RefChange,
    SessionCommit,
    SessionRecord,
    StoredCheckpoint,
    ref_name,
)
from holdfast.store.catalog.session_rows import SessionRows
from holdfast.store.catalog.token_rows import TokenRow, TokenRows
from holdfast.store.catalog_records import MergeParent
from holdfast.store.codecs.session_format import encode_checkpoint, encode_journal
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.identity import store_identity
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.store.verification.session_check import session_key
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

from ....sampling import moments

LARGE = b"x" * ((1 << 20) + 1)
LINES = b"".join(b"line %d of a text\n" % number for number in range(300))

UNSEEN = {
    "tenants": {"swept", "latest"},
    "blobs": {"dead_since"},
    "packs": {"id", "created_at", "spared_until"},
    "tombstones": {"key", "size", "deleted_at"},
    "pins": {"number", "checkpoint", "reason", "expires_at", "machine"},
}
"""What docs/formats/catalog.md says is not found: it costs at worst some space, a second try, or the grace time."""

TABLES = (
    "tenants",
    "workspaces",
    "checkpoints",
    "changesets",
    "not_captured",
    "packs",
    "blobs",
    "tombstones",
    "history",
    "pins",
    "sessions",
    "session_journals",
    "session_checkpoints",
    "session_refs",
    "stores",
    "merges",
    "reapplies",
    "promotions",
    "exports",
    "tokens",
    "answers",
)


def opened(tmp_path, migrations=MIGRATIONS):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), migrations, application_id=APPLICATION_ID)
    try:
        return Store(open_objects(str(tmp_path / "objects")), Catalog(database, "local", ManualClock()))
    except BaseException:
        database.close()
        raise


def fill(store):
    """Something in every table, and every kind of blob; the names of the checkpoints."""
    saver = Saver(store, WorkspaceId("1" * 16), ManualClock(), random.Random(1).randbytes)
    saver.create(b"/first")
    names = [saver.save({b"a": LINES, b"large": LARGE}, label="first")]
    commit = saver.prepare({b"a": LINES + b"more", b"b": b"new"}, label="second")
    missed = [NotCaptured(b"fifo", "a fifo"), NotCaptured(b"secret", "unreadable")]
    commit = commit._replace(checkpoint=commit.checkpoint._replace(not_captured=2), not_captured=missed)
    store.catalog.commit(commit)
    names += [commit.checkpoint.id, saver.save({b"a": LINES, b"c": b"3"}), saver.save({b"gone": b"x" * (2 << 20)})]
    last = saver.save({b"a": LINES})
    store.catalog.forget([names.pop()])
    store.collector().collect(0)
    fork = Saver(store, WorkspaceId("2" * 16), ManualClock(), random.Random(2).randbytes)
    fork.create(b"/second", names[0])
    store.catalog.pin(store.catalog.checkpoint(last).root, "a mount", checkpoint=last, expires_at=1 << 60)
    begin_session(store, names[0], last)
    store_identity.make(store.catalog, random.Random(3).randbytes)
    begin_merge(store, names[0], last)
    row = PromotionRow("0" * 16, WorkspaceId("1" * 16), "building", "", "fork", last, "{}", "{}")
    PromotionRows(store.catalog).add(row)
    begin_serving(store)
    return [*names, last]


def begin_merge(store, other, checkpoint):
    """A second parent, and a change that waits."""
    store.catalog.add_merge_parents(checkpoint, MergeParent(other, other, '{"files": []}'))
    waits = ReapplyRow("0" * 32, WorkspaceId("1" * 16), b"a", "{}", b"now", b"before", b"after", deadline=1 << 60)
    ReapplyRows(store.catalog).ask(waits)


def begin_serving(store):
    """An export, a token that is for it, and an answer that was kept."""
    rows, at = ExportRows(store.catalog), ManualClock().now()
    rows.add(ExportRow("shop", "directory", WorkspaceId("1" * 16), "web", True, "development", at))
    TokenRows(store.catalog).add(TokenRow("0" * 16, b"d" * 32, "write", ("shop",), (b"/srv",), "me", at, 1 << 60))
    answers = AnswerRows(store.catalog, ManualClock())
    answers.begin("token/key", hash_bytes(b"request"), 1e6)
    answers.end("token/key", 200, b"{}")


def begin_session(store, first, tree):
    """A session with a state that is warm, one that is hot, and something in its journal."""
    rows = SessionRows(store.catalog)
    name, workspace, at = SessionId("one"), WorkspaceId("1" * 16), ManualClock().now()
    record = SessionRecord(
        name, None, "me", ("you",), workspace, None, "", "in-place", "", None, "session", "making", at
    )
    rows.add(record)
    journal, expected = JournalRow(encode_journal([]), 0, 0, 0, ()), None
    for seq, held in enumerate((first, tree)):
        state = State(
            id=name, parent=None, created_at=at, updated_at=at, cwd=".", env={"A": "b"}, unset=(), tree=held, seq=seq
        )
        point = SessionCheckpoint(
            hash=SessionHash(""),
            session=name,
            parent=expected,
            kind="auto",
            message="m",
            created_at=at + seq,
            state=state,
            history=(),
        )
        called, size, data = encode_checkpoint(point)
        stored = StoredCheckpoint(
            called, name, expected, "auto", "m", at + seq, seq, held, True, "hot", size, len(data)
        )
        head = SessionRef(
            name=ref_name("head", name),
            type="head",
            session=name,
            checkpoint=called,
            updated_at=at,
            metadata={"a": "b"},
        )
        commit = SessionCommit(stored, data, [RefChange(head, expected)], journal, record._replace(status="live"))
        journal, expected = rows.commit(name, commit), called
        if not seq:
            store.objects.put(session_key("local", called), (data,))
            assert rows.move(called, "hot", "warm")
    found = [TreeEvent(tree=tree, at=at)]
    rows.write_journal(name, journal._replace(data=encode_journal(found), entries=1, trees=(tree,)))


def another(value, declared):
    """``value`` with one bit changed; something for nothing."""
    if value is None:
        return {"TEXT": "x", "BLOB": bytes(16), "INTEGER": 1}[declared]
    if isinstance(value, int):
        return value ^ 1 << 8
    return another(value.encode(), "BLOB").decode() if isinstance(value, str) else value[:-1] + flipped(value[-1:])


def flipped(byte):
    return bytes((byte[0] ^ 1,)) if byte else b"x"


def test_every_table_but_those_that_cost_nothing_is_tried(tmp_path):
    with opened(tmp_path) as store, store.catalog.database.reading() as transaction:
        tables = transaction.all("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    assert {table for (table,) in tables} == {*TABLES, "leases", "object_places"}


@pytest.mark.parametrize("table", TABLES)
def test_a_changed_value_is_found(tmp_path, table):
    """Case 5 for rows: the value of each column, changed by one bit."""
    with opened(tmp_path) as store:
        fill(store)
    assert is_sound(tmp_path)
    sound = (tmp_path / "catalog.db").read_bytes()
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        declared = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    assert rows, "every table has a row"
    unseen = set()
    for row in moments(rows, 2):
        where = " AND ".join(f"{column} IS ?" for column in declared)
        for column, value in zip(declared, row, strict=True):
            with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
                changed = another(value, declared[column])
                done = connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed, *row))
                assert done.rowcount == 1
                connection.commit()
            if is_sound(tmp_path):
                unseen.add(column)
            (tmp_path / "catalog.db").write_bytes(sound)
    assert unseen == UNSEEN.get(table, set())


def is_sound(tmp_path):
    try:
        with opened(tmp_path) as store:
            return not store.verifier().verify(read_data=True).problems
    except IntegrityError:
        return False


def test_damage_is_still_named_after_the_row_was_changed_for_good_reason(tmp_path):
    with opened(tmp_path) as store:
        names = fill(store)
        with store.catalog.database.writing() as transaction:
            transaction.run("UPDATE checkpoints SET message = 'x' WHERE id = ?", (names[2],))
            transaction.run("UPDATE workspaces SET device = 7 WHERE id = ?", ("1" * 16,))
        store.catalog.claim(names[2], ["named"], Provenance())
        store.catalog.forget([names[1]])
        Saver(store, WorkspaceId("1" * 16), ManualClock(), random.Random(3).randbytes).save({})
        found = {(problem.kind, problem.object) for problem in store.verifier().verify().problems}
        assert found == {("damaged", names[2]), ("damaged", "1" * 16)}


def test_a_pack_that_no_object_can_be_called_is_as_good_as_lost(tmp_path):
    with opened(tmp_path) as store:
        names = fill(store)
        with store.catalog.database.writing() as transaction:
            transaction.run("UPDATE packs SET key = '../elsewhere' WHERE number = 1")
        found = {(problem.kind, problem.object) for problem in store.verifier().verify(read_data=True).problems}
        assert {("damaged", "pack 1"), ("damaged", names[0])} <= found
        with pytest.raises(IntegrityError):
            load(store, names[0])


def test_text_that_is_no_utf_8_is_damage(tmp_path):
    with opened(tmp_path) as store:
        names = fill(store)
        with store.catalog.database.writing() as transaction:
            transaction.run("UPDATE checkpoints SET label = CAST(x'ff' AS TEXT) WHERE id = ?", (names[0],))
        with pytest.raises(IntegrityError, match="UTF-8"):
            store.catalog.checkpoint(names[0])
        with pytest.raises(IntegrityError, match="UTF-8"):
            store.verifier().verify()


def test_a_tenant_whose_name_was_damaged_does_not_begin_anew(tmp_path):
    """All of its objects would be nobody's, and collected."""
    with opened(tmp_path) as store:
        names = fill(store)
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as connection:
        connection.execute("UPDATE tenants SET name = 'locam'")
        with pytest.raises(IntegrityError, match="tenant"):
            opened(tmp_path)
        connection.execute("UPDATE tenants SET name = 'local'")
    with opened(tmp_path) as store:
        assert load(store, names[0]) == {b"a": LINES, b"large": LARGE}


def test_a_catalog_of_version_1_is_brought_forward(tmp_path):
    with opened(tmp_path) as store:
        names = fill(store)
        before = store.catalog.checkpoints()
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        without_version_5(connection)
        without_sessions(connection)
        for column in ("ahead", "steps", "run"):
            connection.execute(f"ALTER TABLE history DROP COLUMN {column}")
        for table in ("tenants", "checkpoints", "workspaces", "history"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        connection.execute("PRAGMA user_version = 1")
        first = SqliteDatabase(os.fsencode(tmp_path / "1.db"), MIGRATIONS[:1], application_id=APPLICATION_ID)
        with first.reading() as transaction:
            schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
            assert without_space(connection.execute(schema)) == without_space(transaction.all(schema)), (
                "it is version 1"
            )
        first.close()
    with opened(tmp_path) as store:
        assert store.catalog.checkpoints() == before
        assert load(store, names[0]) == {b"a": LINES, b"large": LARGE}
        assert store.verifier().verify(read_data=True).problems == []
        store.catalog.claim(names[0], ["still"], Provenance())
        assert store.verifier().verify(read_data=True).problems == []
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_catalog_of_version_2_is_brought_forward_and_damage_stays_damage(tmp_path):
    path = tmp_path / "catalog.db"
    opened(tmp_path, MIGRATIONS[:2]).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO workspaces VALUES (1, 'w', x'61', 1, 1, 1, NULL, 1, NULL, NULL, NULL, NULL)")
        row = "INSERT INTO history VALUES (?, 1, 'w', 5, 'undo', 'c', NULL, NULL)"
        connection.executemany(row, [(1,), (2,)])
    version_2 = SqliteDatabase(os.fsencode(path), MIGRATIONS[:2], application_id=APPLICATION_ID)
    with version_2.writing() as transaction:
        set_checksum(transaction, WORKSPACES_1, 1, "w")
        covered = HISTORY._replace(columns="seq, tenant, workspace, at, operation, checkpoint, previous")
        set_checksum(transaction, covered, 1, 1)
        set_checksum(transaction, covered, 1, 2)
        transaction.run("UPDATE history SET at = 6 WHERE seq = 2")
    version_2.close()
    with opened(tmp_path) as store:
        found = store.verifier().verify(read_data=True).problems
        assert [(problem.kind, problem.object) for problem in found] == [("damaged", "event 2")]
        assert store.catalog.event(1) == HistoryEvent(1, 5, "undo", CheckpointId("c"), None)


def test_a_catalog_of_version_3_is_brought_forward(tmp_path):
    with opened(tmp_path) as store:
        names = fill(store)
        before = store.catalog.checkpoints()
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        without_version_5(connection)
        without_sessions(connection)
        connection.execute("PRAGMA user_version = 3")
        third = SqliteDatabase(os.fsencode(tmp_path / "3.db"), MIGRATIONS[:3], application_id=APPLICATION_ID)
        with third.reading() as transaction:
            schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
            assert without_space(connection.execute(schema)) == without_space(transaction.all(schema)), (
                "it is version 3"
            )
        third.close()
    with_checksums_of(path, 3, WORKSPACES_1, HISTORY_3)
    with opened(tmp_path) as store:
        assert store.catalog.checkpoints() == before
        begin_session(store, names[0], names[-1])
        begin_merge(store, names[0], names[-1])
        assert store.verifier().verify(read_data=True).problems == []


def test_a_catalog_of_version_4_is_brought_forward_and_damage_stays_damage(tmp_path):
    with opened(tmp_path) as store:
        fill(store)
        before = store.catalog.workspaces()
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        without_version_5(connection)
        connection.execute("PRAGMA user_version = 4")
        fourth = SqliteDatabase(os.fsencode(tmp_path / "4.db"), MIGRATIONS[:4], application_id=APPLICATION_ID)
        with fourth.reading() as transaction:
            schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
            assert without_space(connection.execute(schema)) == without_space(transaction.all(schema)), (
                "it is version 4"
            )
        fourth.close()
    with_checksums_of(path, 4, WORKSPACES_1, SESSIONS_4, HISTORY_3)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE sessions SET owner = 'mallory'")
    with opened(tmp_path) as store:
        assert store.catalog.workspaces() == before
        found = store.verifier().verify(read_data=True).problems
        assert [(problem.kind, problem.object) for problem in found] == [("damaged", "one")]


def test_a_catalog_of_version_5_is_brought_forward_and_damage_stays_damage(tmp_path):
    with opened(tmp_path) as store:
        fill(store)
        before = store.catalog.events(WorkspaceId("1" * 16))
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        without_version_6(connection)
        connection.execute("PRAGMA user_version = 5")
        fifth = SqliteDatabase(os.fsencode(tmp_path / "5.db"), MIGRATIONS[:5], application_id=APPLICATION_ID)
        with fifth.reading() as transaction:
            schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
            assert without_space(connection.execute(schema)) == without_space(transaction.all(schema)), (
                "it is version 5"
            )
        fifth.close()
    with_checksums_of(path, 5, HISTORY_3)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE history SET at = 6 WHERE seq = 2")
    with opened(tmp_path) as store:
        assert [event.undo_seq for event in before] == [None] * len(before)
        assert store.catalog.events(WorkspaceId("1" * 16))[0] == before[0]
        found = store.verifier().verify(read_data=True).problems
        assert [(problem.kind, problem.object) for problem in found] == [("damaged", "event 2")]


def test_a_catalog_of_version_6_is_brought_forward_and_damage_stays_damage(tmp_path):
    with opened(tmp_path) as store:
        fill(store)
        before = store.catalog.events(WorkspaceId("1" * 16))
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        without_version_7(connection)
        connection.execute("PRAGMA user_version = 6")
        sixth = SqliteDatabase(os.fsencode(tmp_path / "6.db"), MIGRATIONS[:6], application_id=APPLICATION_ID)
        with sixth.reading() as transaction:
            schema = "SELECT name, sql FROM sqlite_master ORDER BY name"
            assert without_space(connection.execute(schema)) == without_space(transaction.all(schema)), (
                "it is version 6"
            )
        sixth.close()
    with_checksums_of(path, 6, HISTORY_6)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE history SET at = 6 WHERE seq = 2")
    with opened(tmp_path) as store:
        assert [(event.author, event.text) for event in before] == [("", "")] * len(before)
        assert store.catalog.events(WorkspaceId("1" * 16))[0] == before[0]
        found = store.verifier().verify(read_data=True).problems
        assert [(problem.kind, problem.object) for problem in found] == [("damaged", "event 2")]


def with_checksums_of(path, version, *tables):
    """As a program of that version would have written them."""
    database = SqliteDatabase(os.fsencode(path), MIGRATIONS[:version], application_id=APPLICATION_ID)
    with database.writing() as transaction:
        for covered in tables:
            for tenant, key in transaction.all(f"SELECT tenant, {covered.key} FROM {covered.table}"):
                set_checksum(transaction, covered, tenant, key)
    database.close()


OF_VERSION_5 = ("object_places", "stores", "merges", "reapplies", "promotions", "exports", "tokens", "answers")


HISTORY_3 = HISTORY._replace(columns="seq, tenant, workspace, at, operation, checkpoint, previous, ahead, steps, run")


HISTORY_6 = HISTORY._replace(columns=f"{HISTORY_3.columns}, undo_seq")


def without_version_7(connection):
    """What version 7 brought is taken away."""
    connection.execute("DROP INDEX checkpoints_labels")
    for column in ("author", "text"):
        connection.execute(f"ALTER TABLE history DROP COLUMN {column}")


def without_version_6(connection):
    """What version 6 brought is taken away."""
    without_version_7(connection)
    connection.execute("ALTER TABLE history DROP COLUMN undo_seq")


def without_version_5(connection):
    """What version 5 brought is taken away."""
    without_version_6(connection)
    connection.execute("DROP INDEX workspaces_path")
    for table in ("workspaces", "sessions", "pins"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN machine")
    for table in OF_VERSION_5:
        connection.execute(f"DROP TABLE {table}")
    connection.execute("CREATE UNIQUE INDEX workspaces_path ON workspaces (tenant, path) WHERE live = 1")


def without_sessions(connection):
    for table in ("session_refs", "session_journals", "session_checkpoints", "sessions"):
        connection.execute(f"DROP TABLE {table}")


def without_space(rows):
    return [(name, sql and "".join(sql.split())) for name, sql in rows]
