"""Collection, race by race (I11): what may happen between two of its steps, and between two of a commit's."""

from __future__ import annotations

import os
import random

import pytest

from holdfast.model.errors import IntegrityError, LockedError, StorageError
from holdfast.model.ids import WorkspaceId, format_hash, hash_bytes
from holdfast.store.catalog import reference_counts
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.catalog_records import VanishedError, pack_key
from holdfast.store.collection.collector import Collected
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.manifests import manifest
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.objects.remote_store import open_bucket
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

LARGE = b"x" * ((1 << 20) + 1)
FILES = {b"%03d" % number: b"some text %d\n" % number * 9 for number in range(100)}
HOUR = 3600


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    found = Store(open_bucket("memory://"), Catalog(database, "local", clock))
    yield found
    assert found.verifier().verify(read_data=True).problems == []
    found.close()


@pytest.fixture
def saver(store, clock):
    saver = Saver(store, WorkspaceId("1" * 16), clock, random.Random(1).randbytes)
    saver.create(b"/x")
    return saver


def stored(store, content):
    return store.catalog.known([hash_bytes(content)]) != set()


def listed(store):
    return {info.key for info in store.objects.list("")}


def test_nothing_to_do(store, saver):
    assert store.collector().collect(0) == Collected(0, 0, 0, 0)
    name = saver.save(FILES)
    assert store.collector().collect(0) == Collected(0, 0, 0, 0)
    assert load(store, name) == FILES


def test_the_grace_time_runs_from_the_forgetting(store, saver, clock):
    old = saver.save({**FILES, b"only": b"here"})
    saver.save(FILES)
    clock.advance(100 * HOUR)
    store.catalog.forget([old])
    clock.advance(24 * HOUR - 1)
    assert store.collector().collect(24 * HOUR).blobs_deleted == 0
    assert stored(store, b"here")
    clock.advance(1)
    assert store.collector().collect(24 * HOUR).blobs_deleted > 0
    assert not stored(store, b"here")


def test_the_grace_time_also_runs_from_the_forgetting_of_what_was_counted(store, saver, clock):
    old = saver.save({**FILES, b"only": b"here"})
    saver.save(FILES)
    store.collector().settle()
    clock.advance(100 * HOUR)
    store.catalog.forget([old])
    clock.advance(24 * HOUR - 1)
    assert store.collector().collect(24 * HOUR).blobs_deleted == 0
    clock.advance(1)
    assert store.collector().collect(24 * HOUR).blobs_deleted > 0


@pytest.mark.parametrize("settled", [True, False])
def test_a_commit_notices_what_was_collected_since_it_looked(store, saver, settled):
    old = saver.save({**FILES, b"only": b"here"})
    saver.save(FILES)
    if settled:
        store.collector().settle()
    store.catalog.forget([old])
    commit = saver.prepare({**FILES, b"only": b"here"})
    assert hash_bytes(b"here") in commit.relied_on
    store.collector().collect(0)
    with pytest.raises(VanishedError) as vanished:
        store.catalog.commit(commit)
    assert hash_bytes(b"here") in vanished.value.hashes
    assert load(store, saver.save({**FILES, b"only": b"here"}))[b"only"] == b"here"


def test_a_commit_notices_what_is_collected_between_its_own_transactions(store, saver, monkeypatch):
    monkeypatch.setattr(
        "holdfast.store.catalog._checkpoint_commit.HASHES_PER_QUERY", 0
    )  # a smaller one has a single transaction
    old = saver.save({**FILES, b"only": b"here"})
    saver.save(FILES)
    store.catalog.forget([old])
    # Another root page: that one is looked at in any case.
    commit = saver.prepare({**FILES, b"only": b"here", b"more": b"there"})
    committer = store.catalog._committer
    monkeypatch.setattr("holdfast.store.catalog._checkpoint_commit.HASHES_PER_QUERY", 0)  # as if it were large
    check = type(committer)._check_alive
    calls = []

    def then_collect(self, session, hashes):
        check(self, session, hashes)
        calls.append(len(calls))

    monkeypatch.setattr(type(committer), "_check_alive", then_collect)
    writing = store.catalog.database.writing

    def collect_first():
        if calls == [0]:
            calls.append("collected")
            store.collector().collect(0)
        return writing()

    monkeypatch.setattr(store.catalog.database, "writing", collect_first)
    with pytest.raises(VanishedError) as vanished:
        store.catalog.commit(commit)
    assert hash_bytes(b"here") in vanished.value.hashes
    assert "collected" in calls


@pytest.mark.parametrize("when", ["sweep_pages_step", "dead_blobs", "sweep_blobs_step"])
def test_what_is_named_again_between_two_steps_stays(store, saver, monkeypatch, when):
    files = {**FILES, b"only": b"here"}
    old = saver.save(files)
    saver.save(FILES)
    store.collector().settle()
    store.catalog.forget([old])
    real = getattr(reference_counts, when)
    saved = []

    def first_save(*arguments):
        before = real(*arguments) if when == "dead_blobs" else None
        if not saved:
            saved.append(saver.save(files))
        return real(*arguments) if before is None else before

    monkeypatch.setattr(reference_counts, when, first_save)
    store.collector().collect(0)
    assert load(store, saved[0]) == files


def test_a_page_that_died_uncounted_takes_its_children_along(store, saver, clock):
    """Else they would go before it, and whoever found the page would find it hollow."""
    first = saver.save({b"c": b"content"})
    second = saver.save({b"d": b"other"})
    store.collector().settle()
    store.catalog.forget([first])
    store.collector().settle()
    clock.advance(10 * HOUR)
    again = saver.save({b"c": b"content", b"e": b"new"})
    saver.save({b"d": b"other"})
    store.catalog.forget([again])
    clock.advance(HOUR)
    store.collector().collect(5 * HOUR)  # long enough for the content's first death, not for the page's
    assert stored(store, b"content")
    assert store.verifier().verify().problems == []
    assert load(store, second) == {b"d": b"other"}


def test_settling_names_the_page_that_names_what_is_not_there(store, saver):
    """Though it takes many pages at once, and undoes all of them together."""
    root = store.catalog.checkpoint(saver.save(FILES)).root
    victim = hash_bytes(FILES[b"050"])
    leaves = [found for found in manifest.reachable(store.pages, root, lambda _: False) if not found.level]
    (guilty,) = (found.page for found in leaves if victim in found.children)
    assert len(leaves) > 1
    database = store.catalog.database
    with database.writing() as transaction:
        row = transaction.one("SELECT * FROM blobs WHERE hash = ?", (victim,))
        transaction.run("DELETE FROM blobs WHERE hash = ?", (victim,))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=format_hash(guilty)):
            store.collector().settle()
    with database.writing() as transaction:
        transaction.run(f"INSERT INTO blobs VALUES {reference_counts.slots(len(row))}", row)
    store.collector().settle()


def test_a_clock_that_is_set_back_does_not_change_the_order_of_deaths(store, saver, clock):
    names = []
    for number in range(6):
        names.append(saver.save({**FILES, b"a": b"%d" % (number % 2), b"b": b"%d" % (number % 3)}))
        store.collector().settle()
        if number:
            store.catalog.forget([names[number - 1]])
        clock.advance((7 * HOUR, -20 * HOUR, -60)[number % 3])
        store.collector().collect(HOUR)
        assert store.verifier().verify().problems == []
    clock.advance(40 * HOUR)
    store.collector().collect(HOUR)
    assert load(store, names[-1])[b"a"] == b"1"
    assert store.catalog.stats().checkpoints == 1
    assert not stored(store, b"0")


def test_what_died_while_the_clock_was_far_ahead_is_not_kept_until_then(store, saver, clock):
    clock.advance(10 * 365 * 24 * HOUR)
    old = saver.save({**FILES, b"only": b"here"})
    saver.save(FILES)
    store.collector().settle()
    store.catalog.forget([old])
    store.collector().settle()
    clock.advance(-10 * 365 * 24 * HOUR)
    store.collector().collect(24 * HOUR)
    assert stored(store, b"here")
    clock.advance(24 * HOUR)
    store.collector().collect(24 * HOUR)
    assert not stored(store, b"here")


def test_a_base_outlives_its_checkpoint_but_its_children_do_not(store, saver):
    """A page that is only the base of a delta is bytes, no page: what it named is free."""
    old = saver.save({**FILES, b"only": b"here"})
    root = store.catalog.checkpoint(old).root
    saver.save({**FILES, b"another": b"there"})
    store.catalog.forget([old])
    store.collector().collect(0)
    assert not stored(store, b"here")
    with store.catalog.database.reading() as transaction:
        bases = {row[0] for row in transaction.all("SELECT base FROM blobs WHERE kind = 1 AND base IS NOT NULL")}
        kinds = dict(transaction.all("SELECT hash, kind FROM blobs"))
    assert bases, "pages are stored as differences"
    assert all(kinds[base] == 2 for base in bases)
    assert store.catalog.known([root, *bases]) == set()
    assert load(store, saver.save({**FILES, b"only": b"here"})) == {**FILES, b"only": b"here"}
    store.collector().collect(0)


def test_a_page_that_is_also_a_files_content_keeps_what_it_names(store, saver):
    name = saver.save({b"f": b"inner content"})
    page = store.reader.read(store.catalog.checkpoint(name).root)
    both = saver.save({b"page": page})
    store.catalog.forget([name])
    store.collector().collect(0)
    assert load(store, both) == {b"page": page}
    # The other way round: known as content first, then needed as a page.
    again = saver.save({b"f": b"inner content"})
    store.catalog.forget([both])
    store.collector().collect(0)
    assert load(store, again) == {b"f": b"inner content"}


def test_a_mostly_dead_pack_is_rewritten(store, saver):
    old = saver.save({b"%d" % number: random.Random(number).randbytes(3000) for number in range(50)})
    rest = {b"%d" % number: random.Random(number).randbytes(3000) for number in range(10)}
    new = saver.save(rest)
    before = listed(store)
    used = store.catalog.used_bytes()
    store.catalog.forget([old])
    done = store.collector().collect(0)
    assert done.packs_rewritten == 1
    assert done.bytes_freed == used - store.catalog.used_bytes() > 100_000
    assert load(store, new) == rest
    assert len(listed(store)) == len(before) - 1, "the first one's pages are gone, its pack is replaced"
    assert store.collector().collect(0) == Collected(0, 0, 0, 0)


def test_a_pack_of_tiny_blobs_is_not_rewritten_for_ever(store, saver):
    files = {b"%03d" % number: b"%d" % number for number in range(200)}
    name = saver.save(files)
    assert store.collector().collect(0).packs_rewritten == 0
    assert load(store, name) == files


def test_orphans_go_after_the_grace_time(store, saver, clock):
    commit = saver.prepare({**FILES, b"large": LARGE})
    keys = {pack.key for pack in commit.packs}
    assert len(listed(store)) == len(keys) + 1
    clock.advance(100 * 365 * 24 * HOUR)  # objects carry the time of the machine
    store.collector().collect(200 * 365 * 24 * HOUR)
    assert listed(store) >= keys
    store.collector().collect(0)
    assert listed(store) == set()


def test_an_object_that_comes_back_after_its_deletion_is_deleted_again(store, saver, clock):
    """A deletion that a power loss undid, or an upload that was slower than collection."""
    name = saver.save({b"large": LARGE})
    key = store.catalog.locate([hash_bytes(LARGE)])[hash_bytes(LARGE)].key
    data = store.objects.get(key)
    saver.save({})
    store.catalog.forget([name])
    store.collector().collect(0)
    store.objects.put(key, [data])
    clock.advance(100 * 365 * 24 * HOUR)
    store.collector().collect(0)
    assert key not in listed(store)


def test_what_a_killed_collection_condemned_is_deleted_by_the_next(store, saver, monkeypatch):
    name = saver.save({b"large": LARGE})
    saver.save({})
    store.catalog.forget([name])

    def fails(key):
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "delete", fails)
        with pytest.raises(StorageError):
            store.collector().collect(0)
    assert not stored(store, LARGE)
    assert any(key.startswith("blobs/") for key in listed(store))
    again = saver.save({b"large": LARGE})
    store.collector().collect(0)
    assert load(store, again) == {b"large": LARGE}
    assert len([key for key in listed(store) if key.startswith("blobs/")]) == 1


def test_foreign_objects_of_other_prefixes_are_left_alone(store, clock):
    store.objects.put("packs/other/x", [b"theirs"])
    store.objects.put("notes", [b"mine"])
    store.objects.put(pack_key("local", "0" * 32), [b"an orphan"])  # type: ignore[arg-type]
    store.objects.put("blobs/local/zz/odd-name", [b"an orphan"])
    clock.advance(100 * 365 * 24 * HOUR)
    store.collector().collect(0)
    assert listed(store) == {"packs/other/x", "notes"}


def test_one_collection_at_a_time(store, saver, monkeypatch):
    saver.save(FILES)
    collector = store.collector()
    refused = []

    def another(*_):
        with pytest.raises(LockedError):
            store.collector().collect(0)
        refused.append(True)

    collector.collect(0, progress=another)
    assert refused
    store.collector().collect(0)


def test_unfinished_uploads_are_cleaned_after_a_day(tmp_path, clock):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    store = Store(open_objects(str(tmp_path / "objects")), Catalog(database, "local", clock))
    upload = store.objects.upload()
    upload.write(b"half")
    assert len(list((tmp_path / "objects" / "tmp").iterdir())) == 1
    store.collector().collect(0)
    assert len(list((tmp_path / "objects" / "tmp").iterdir())) == 1, "someone may still be writing it"
    clock.advance(100 * 365 * 24 * HOUR)
    store.collector().collect(0)
    assert list((tmp_path / "objects" / "tmp").iterdir()) == []
    upload.abort()
    store.close()
