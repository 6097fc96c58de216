"""Damage is named: case 5, a blob, page or pack that was flipped, cut short or lost."""

from __future__ import annotations

import os
import random
import sqlite3

import pytest

from holdfast.model.errors import IntegrityError, LockedError
from holdfast.model.ids import WorkspaceId, format_hash, hash_bytes
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

LARGE = b"x" * ((1 << 20) + 1)
FILES = {b"%03d" % number: b"some text %d\n" % number * 9 for number in range(100)}


@pytest.fixture
def store(tmp_path):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    found = Store(open_objects(str(tmp_path / "objects")), Catalog(database, "local", ManualClock()))
    yield found
    found.close()


@pytest.fixture
def saver(store):
    saver = Saver(store, WorkspaceId("1" * 16), ManualClock(), random.Random(1).randbytes)
    saver.create(b"/x")
    return saver


@pytest.fixture
def names(saver):
    return [saver.save(FILES), saver.save({**FILES, b"large": LARGE}), saver.save({b"alone": b"nothing shared"})]


def problems(store, **options):
    return store.verifier().verify(**options).problems


def file_of(store, tmp_path, content):
    location = store.catalog.locate([hash_bytes(content)])[hash_bytes(content)]
    return tmp_path / "objects" / location.key, location


def overwrite(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_sound_store_has_no_problems(store, names):
    found = store.verifier().verify(read_data=True)
    assert (found.checkpoints, found.problems) == (3, [])
    assert found.blobs == 100 + 1 + 1 + store.catalog.stats().pages
    store.collector().settle()
    assert problems(store, read_data=True) == []


def test_progress_is_told(store, names):
    phases = set()
    store.verifier().verify(read_data=True, progress=lambda phase, done, total: phases.add(phase))
    assert phases == {"objects", "pages", "content"}


def test_a_flipped_byte_of_content_is_found_by_reading(store, names, tmp_path):
    path, location = file_of(store, tmp_path, FILES[b"007"])
    overwrite(path, location.offset + 4, b"\xff\xff")
    assert problems(store) == []
    found = problems(store, read_data=True)
    assert {(problem.kind, problem.object) for problem in found} == {
        ("damaged", location.key),
        ("damaged", names[0]),
        ("damaged", names[1]),
    }
    assert any(format_hash(hash_bytes(FILES[b"007"])) in problem.message for problem in found)


def test_a_flipped_byte_of_a_large_blob_is_found_by_reading(store, names, tmp_path):
    path, location = file_of(store, tmp_path, LARGE)
    overwrite(path, location.length // 2, b"\xff\xff")
    assert problems(store) == []
    assert {problem.object for problem in problems(store, read_data=True)} == {location.key, names[1]}


def test_a_lost_object_is_missing(store, names, tmp_path):
    path, location = file_of(store, tmp_path, LARGE)
    path.unlink()
    assert [(problem.kind, problem.object) for problem in problems(store)] == [
        ("missing", location.key),
        ("damaged", names[1]),
    ]


def test_a_pack_that_is_cut_short_is_damaged(store, names, tmp_path):
    path, location = file_of(store, tmp_path, FILES[b"000"])
    os.truncate(path, path.stat().st_size - 1)
    found = problems(store)
    assert ("damaged", location.key) in {(problem.kind, problem.object) for problem in found}
    assert {problem.object for problem in found} >= {names[0], names[1]}
    assert names[2] not in {problem.object for problem in found}


def test_a_damaged_index_of_a_pack_is_found(store, names, tmp_path):
    path, location = file_of(store, tmp_path, FILES[b"000"])
    overwrite(path, path.stat().st_size - 40, b"\xff\xff\xff")
    assert [(problem.kind, problem.object) for problem in problems(store)] == [("damaged", location.key)]


def test_a_damaged_page_is_found_without_reading_all(store, names, tmp_path):
    root = store.catalog.checkpoint(names[2]).root
    location = store.catalog.locate([root])[root]
    overwrite(tmp_path / "objects" / location.key, location.offset + 3, b"\xff\xff")
    found = {(problem.kind, problem.object) for problem in problems(store)}
    assert found == {("damaged", format_hash(root)), ("damaged", names[2])}


def test_collection_deletes_nothing_while_a_live_page_cannot_be_read(store, names, tmp_path):
    root = store.catalog.checkpoint(names[2]).root
    location = store.catalog.locate([root])[root]
    path = tmp_path / "objects" / location.key
    sound = path.read_bytes()
    overwrite(path, location.offset + 3, b"\xff\xff")
    store.catalog.forget([names[0]])
    with pytest.raises(IntegrityError):
        store.collector().collect(0)
    path.write_bytes(sound)
    store.collector().collect(0)
    assert load(store, names[2]) == {b"alone": b"nothing shared"}
    assert problems(store) == []


def test_a_dead_page_that_cannot_be_read_holds_nothing_up(store, names, tmp_path):
    store.collector().settle()
    root = store.catalog.checkpoint(names[0]).root
    location = store.catalog.locate([root])[root]
    overwrite(tmp_path / "objects" / location.key, location.offset + 3, b"\xff\xff\xff\xff")
    store.catalog.forget([names[0]])
    assert store.collector().collect(0).blobs_deleted > 0
    assert load(store, names[1]) == {**FILES, b"large": LARGE}
    # What the page counted is unknown: verification says of its children that they are kept for nothing.
    assert {problem.kind for problem in problems(store)} <= {"count"}


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE blobs SET refs = refs + 1 WHERE kind = 0 AND size = 14", "count"),
        ("UPDATE blobs SET refs = refs - 1 WHERE kind = 1 AND refs > 0", "count"),
        ("UPDATE blobs SET deltas = 1 WHERE size = 14", "count"),
        ("UPDATE blobs SET place = place + 1 WHERE size = 14", "reference"),
        ("UPDATE blobs SET pack = 99 WHERE size = 14", "reference"),
        ("UPDATE blobs SET kind = 0 WHERE kind = 1", "reference"),
        ("DELETE FROM blobs WHERE size = 14", "missing"),
        ("DELETE FROM blobs WHERE kind = 1", "missing"),
        ("UPDATE checkpoints SET added = 3", "catalog"),
        ("UPDATE checkpoints SET kind = 'odd'", "catalog"),
        ("UPDATE checkpoints SET not_captured = 3", "catalog"),
        ("UPDATE checkpoints SET parent = 'ffffffffffffffffffffffff' WHERE parent IS NOT NULL", "reference"),
        ("UPDATE workspaces SET head = 'ffffffffffffffffffffffff'", "reference"),
        ("UPDATE workspaces SET position = 99", "reference"),
        ("UPDATE workspaces SET redo_tip = 99", "reference"),
        ("UPDATE workspaces SET source = 'ffffffffffffffffffffffff'", "reference"),
        ("UPDATE history SET previous = seq", "reference"),
        ("UPDATE changesets SET data = x'00'", "format"),
        ("UPDATE checkpoints SET tenant = 7 WHERE parent IS NULL", "catalog"),
        ("UPDATE checkpoints SET label = 'another'", "damaged"),
    ],
)
def test_a_catalog_that_lies_is_found_out(store, names, tmp_path, statement, kind):
    store.collector().settle()
    connection = sqlite3.connect(tmp_path / "catalog.db")
    assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()
    assert kind in {problem.kind for problem in problems(store)}


def test_verification_and_collection_exclude_each_other(store, names):
    seen = []

    def meanwhile(*_):
        with pytest.raises(LockedError):
            store.collector().collect(0)
        seen.append(True)

    store.verifier().verify(progress=meanwhile)
    assert seen
    store.collector().collect(0)
