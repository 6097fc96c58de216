"""I11: counts that drifted are settled from the full mark: exactly, beside savers, never against what may be needed."""

from __future__ import annotations

import os
import random
from contextlib import suppress

import pytest

from holdfast.model.errors import IntegrityError
from holdfast.model.ids import WorkspaceId, hash_bytes
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.collection import count_correction
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

FILES = {b"%03d" % number: b"some text %d\n" % number * 9 for number in range(100)}
EDITED = {**FILES, b"050": FILES[b"050"] * 40}
LONG = b"".join(b"%d lines of some length\n" % number for number in range(400))
DAY = 24 * 3600


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    database = SqliteDatabase(os.fsencode(tmp_path / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    found = Store(open_objects(str(tmp_path / "objects")), Catalog(database, "local", clock))
    yield found
    found.close()


@pytest.fixture
def saver(store, clock):
    saver = Saver(store, WorkspaceId("1" * 16), clock, random.Random(1).randbytes)
    saver.create(b"/x")
    return saver


@pytest.fixture
def names(store, saver):
    names = [saver.save({**FILES, b"long": LONG}), saver.save({**EDITED, b"long": LONG + b"and one more\n"})]
    store.collector().settle()
    return names


def run(store, statement, *values):
    with store.catalog.database.writing() as transaction:
        assert transaction.run(statement, values) > 0


def problems(store):
    return store.verifier().verify(read_data=True).problems


def recount(store, grace=DAY):
    return list(store.collector().collect(grace, recount="now").corrected)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blobs SET refs = refs + 3 WHERE kind = 0",
        "UPDATE blobs SET refs = 0 WHERE kind = 0",
        "UPDATE blobs SET refs = refs + 1 WHERE kind = 1",
        "UPDATE blobs SET refs = refs - 1 WHERE kind = 1",
        "UPDATE blobs SET deltas = deltas + 2",
        "UPDATE blobs SET deltas = 0",
        # What settling makes of a wrong mark is a wrong count below.
        "UPDATE blobs SET counted = 0 WHERE kind = 1",
    ],
)
@pytest.mark.parametrize("settled", [False, True])
def test_a_count_that_drifted_is_what_it_should_be_again(store, names, statement, settled):
    sound = problems(store)
    run(store, statement)
    if settled:
        with suppress(IntegrityError):  # that finds some of them
            store.collector().settle()
    wrong = problems(store)
    assert wrong != sound == []
    corrected = recount(store)
    assert len(corrected) > 0
    assert problems(store) == []
    assert recount(store) == []
    store.collector().collect(0)
    assert load(store, names[0]) == {**FILES, b"long": LONG}
    assert load(store, names[1]) == {**EDITED, b"long": LONG + b"and one more\n"}


def test_what_was_counted_too_low_is_corrected_before_anything_is_deleted(store, names):
    run(store, "UPDATE blobs SET refs = 0, dead_since = 0 WHERE hash = ?", hash_bytes(FILES[b"007"]))
    done = store.collector().collect(0, recount="now")
    assert [(one.hash, one.counted, one.was, one.now) for one in done.corrected] == [
        (hash_bytes(FILES[b"007"]), "references", 0, 1)
    ]
    assert load(store, names[0])[b"007"] == FILES[b"007"]


def test_what_was_counted_too_high_is_freed_after_the_grace_time(store, saver, names, clock):
    lost = hash_bytes(b"in one only")
    old = saver.save({b"alone": b"in one only"})
    saver.save(FILES)
    store.collector().settle()
    run(store, "UPDATE blobs SET refs = refs + 1 WHERE hash = ?", lost)
    store.catalog.forget([old])
    clock.advance(9 * DAY)
    store.collector().collect(0)
    assert store.catalog.known([lost]) == {lost}, "it is counted still"
    assert len(recount(store)) == 1
    assert store.catalog.known([lost]) == {lost}, "the grace time begins now"
    clock.advance(DAY)
    store.collector().collect(DAY)
    assert store.catalog.known([lost]) == set()
    assert problems(store) == []


@pytest.mark.parametrize("drift", ["refs = refs + 5", "refs = 0"])
def test_what_is_saved_and_forgotten_between_the_mark_and_the_correction_counts(store, saver, names, clock, drift):
    run(store, f"UPDATE blobs SET {drift} WHERE kind = 0")
    mark = store.verifier().mark_counts()
    third = saver.save({**FILES, b"new": b"and of a page that the mark did not see"})
    store.catalog.forget([names[0]])
    assert count_correction.correct(store.catalog.database, store.catalog.tenant, mark, clock.now, 7)
    store.collector().settle()
    assert problems(store) == []
    store.collector().collect(0)
    assert load(store, third) == {**FILES, b"new": b"and of a page that the mark did not see"}


def test_nothing_is_corrected_by_a_mark_since_which_rows_were_taken_away(store, saver, names, clock):
    mark = store.verifier().mark_counts()
    saver.save(FILES)
    store.catalog.forget([names[0], names[1]])
    store.collector().collect(0)
    mark = mark._replace(drifts=[count_correction.CountDrift(hash_bytes(FILES[b"007"]), "references", 2, 1)])
    assert count_correction.correct(store.catalog.database, store.catalog.tenant, mark, clock.now, 7) is None
    assert problems(store) == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM blobs WHERE hash = ?",
        "UPDATE blobs SET kind = 0 WHERE hash = ?",
        "UPDATE blobs SET place = place + 1 WHERE hash = ?",
    ],
)
def test_while_the_store_is_damaged_counts_are_only_raised(store, names, damage, caplog):
    run(store, "UPDATE blobs SET refs = refs + 1 WHERE hash = ?", hash_bytes(FILES[b"007"]))
    run(store, "UPDATE blobs SET refs = 0 WHERE hash = ?", hash_bytes(EDITED[b"050"]))
    run(store, damage, store.catalog.checkpoint(names[0]).root)
    mark = store.verifier().mark_counts()
    assert not mark.is_whole
    assert len(mark.drifts) >= 1
    assert {(one.hash, one.was, one.now) for one in mark.sure} >= {(hash_bytes(EDITED[b"050"]), 0, 1)}
    assert all(one.was < one.now for one in mark.sure)


def test_a_pin_whose_root_is_damaged_keeps_counts_from_being_lowered(store, names):
    store.catalog.pin(store.catalog.checkpoint(names[1]).root, reason="a test")
    run(store, "UPDATE pins SET root = ?", b"\x01" * 16)
    mark = store.verifier().mark_counts()
    assert [(one.was, one.now) for one in mark.drifts] == [(2, 1)]
    assert not mark.is_whole
    assert mark.sure == []


def test_counts_are_compared_every_thirty_days(store, names, clock):
    wrong = "UPDATE blobs SET refs = refs + 1 WHERE hash = ?"
    run(store, wrong, hash_bytes(FILES[b"007"]))
    assert len(store.collector().collect(DAY, recount="due").corrected) == 1
    run(store, wrong, hash_bytes(FILES[b"008"]))
    clock.advance(30 * DAY - 1)
    assert store.collector().collect(DAY, recount="due").corrected == ()
    clock.advance(1)
    assert len(store.collector().collect(DAY, recount="due").corrected) == 1
    clock.advance(-90 * DAY)
    run(store, wrong, hash_bytes(FILES[b"009"]))
    assert len(store.collector().collect(DAY, recount="due").corrected) == 1, "the clock was set right"


def test_a_preview_says_what_would_be_corrected_and_changes_nothing(store, names):
    run(store, "UPDATE blobs SET refs = refs + 1 WHERE hash = ?", hash_bytes(FILES[b"007"]))
    before = problems(store)
    assert len(store.collector().preview(DAY, recount=True).corrected) == 1
    assert store.collector().preview(DAY).corrected == ()
    assert problems(store) == before != []


def test_a_page_that_is_counted_too_low_no_longer_stops_collection(store, names):
    # Its last page lets go of what is not counted any more: settling cannot tell what is wrong.
    run(store, "UPDATE blobs SET refs = 0 WHERE kind = 0")
    store.catalog.forget([names[0]])
    with pytest.raises(IntegrityError, match="does not know"):
        store.collector().collect(DAY)
    assert recount(store)
    assert problems(store) == []
