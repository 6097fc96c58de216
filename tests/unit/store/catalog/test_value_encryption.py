"""Values of content in the catalog: encrypted with the store's key, bound to their rows, the old ones too."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from holdfast.engine.opening.opener import Opener
from holdfast.model.checkpoint import HistoryEvent, Provenance
from holdfast.model.errors import ConfigError, IntegrityError, StorageError
from holdfast.model.ids import WorkspaceId, hash_bytes
from holdfast.store import catalog_spare
from holdfast.store.catalog.answer_rows import AnswerRows
from holdfast.store.catalog.reapply_rows import ReapplyRow, ReapplyRows
from holdfast.store.catalog.text_encryption import UNREADABLE, TextCipher, is_encrypted
from holdfast.store.catalog.value_encryption import ValueCipher, encrypt_stored
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects import sealed_values
from holdfast.testing.clocks import ManualClock
from holdfast.testing.crash_points import count_steps, run_killed
from holdfast.testing.dict_saver import Saver, load

pytest.importorskip("cryptography")

KEYS = {name: random.Random(name).randbytes(32).hex() for name in ("one", "two")}
SECRETS = [random.Random(number).randbytes(300) for number in range(3)]
WORKSPACE = WorkspaceId("1" * 16)


@pytest.fixture
def opened(home, monkeypatch):
    """Opens the home's store with a key, or none."""
    openers = []

    def open_it(key=None, old=(), folder=home):
        for name, digits in KEYS.items():
            monkeypatch.setenv(f"KEY_{name}", digits)
        flags: dict[str, object] = {"store.encryption_key": f"env:KEY_{key}"} if key else {}
        if old:
            flags["store.old_keys"] = [f"env:KEY_{one}" for one in old]
        opener = Opener(home=os.fsencode(folder), flags=flags, clock=ManualClock())
        openers.append(opener)
        return opener.store()

    yield open_it
    for opener in openers:
        opener.close()


def fill(catalog):
    waiting, now, before, after = ReapplyRows(catalog), *SECRETS
    waiting.ask(ReapplyRow("q" * 32, WORKSPACE, b"path", "{}", now, before, after, deadline=1 << 60))
    waiting.ask(ReapplyRow("r" * 32, WORKSPACE, b"path", "{}", before, None, None, deadline=1 << 60))
    answers = AnswerRows(catalog, catalog.clock)
    assert answers.begin("token/key", hash_bytes(b"request"), 60) is None
    answers.end("token/key", 200, SECRETS[0])


def check(catalog):
    found = ReapplyRows(catalog).get("q" * 32)
    assert found is not None
    assert (found.now, found.before, found.after, found.answer) == (*SECRETS, None)
    answer = AnswerRows(catalog, catalog.clock).begin("token/key", hash_bytes(b"request"), 60)
    assert answer is not None
    assert (answer.status, answer.body) == (200, SECRETS[0])


PROMPT, MESSAGE, COMMAND = "asked for privately", "prompt: asked for", "deploy --token private"
TEXTS = "SELECT text FROM history UNION ALL SELECT message FROM checkpoints UNION ALL SELECT command FROM checkpoints"


def say(catalog, saver):
    """What an agent's prompt and a run leave."""
    saver.create(b"/somewhere")
    name = saver.save({b"f": b"1"})
    catalog.claim(name, (), Provenance("me", MESSAGE, COMMAND))
    for event in (
        HistoryEvent(0, 5, "prompt", name, None, text=PROMPT),
        HistoryEvent(0, 6, "run", name, None, text=COMMAND),
    ):
        catalog.record_event(WORKSPACE, event, expected=catalog.cursor(WORKSPACE), head=name)


def said(catalog):
    """The texts as they are read, the newest first."""
    events = [event.text for event in catalog.events(WORKSPACE)]
    return [*events, *catalog.checkpoints()[0].provenance[1:]]


def stored_texts(home):
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        return [text for (text,) in database.execute(TEXTS) if text]


def telling(home):
    """The files of a home in which any of the texts can be found."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return [path.name for path in files if any(one.encode() in path.read_bytes() for one in (PROMPT, MESSAGE, COMMAND))]


ALL = [COMMAND, PROMPT, "", MESSAGE, COMMAND]


def test_prompts_messages_and_commands_are_encrypted_and_come_back(opened, home):
    store = opened("one")
    say(store.catalog, Saver(store, WORKSPACE, ManualClock(), os.urandom))
    assert said(store.catalog) == ALL
    assert all(is_encrypted(text) for text in stored_texts(home))
    assert telling(home) == []
    assert store.verifier().verify().problems == []


def test_texts_of_an_earlier_version_are_encrypted_by_the_first_start(opened, home):
    store = opened("one")
    store.catalog.keys = None  # (the objects are encrypted, as that version's)
    say(store.catalog, Saver(store, WORKSPACE, ManualClock(), os.urandom))
    catalog_spare.take(os.fsencode(home), os.fsencode(home / "catalog.db"), 1)
    store.close()
    note = home / "objects.url"
    note.write_bytes(note.read_bytes().replace(b" rows texts", b" rows"))
    assert len(telling(home)) >= 2
    store = opened("one")
    assert said(store.catalog) == ALL
    assert all(is_encrypted(text) for text in stored_texts(home))
    assert telling(home) == []
    assert store.verifier().verify().problems == []
    assert note.read_bytes().endswith(b" rows texts\n")


def test_a_text_that_cannot_be_decrypted_hides_no_content_and_is_named(opened, home):
    store = opened("one")
    saver = Saver(store, WORKSPACE, ManualClock(), os.urandom)
    say(store.catalog, saver)
    store.close()
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        database.execute("UPDATE history SET text = (SELECT message FROM checkpoints) WHERE operation = 'prompt'")
        database.execute("UPDATE history SET text = 'as it is' WHERE operation = 'run'")
        database.execute("UPDATE checkpoints SET message = substr(message, 1, 30)")
        database.commit()
    store = opened("one")
    assert said(store.catalog) == ["as it is", UNREADABLE, "", UNREADABLE, COMMAND]
    named = {problem.object for problem in store.verifier().verify().problems if problem.kind == "format"}
    assert named == {"event 2", "event 3", store.catalog.checkpoints()[0].id}
    assert load(store, store.catalog.checkpoints()[0].id) == {b"f": b"1"}


@pytest.mark.parametrize("key", [None, "one"])
def test_a_text_that_looks_like_an_encrypted_one_comes_back(opened, key):
    texts = TextCipher(opened(key).catalog)
    for text in ("SEZST1c", "SEZST1cA", "SEZST1cBAAAA", "SEZST1", "x", "é\n", ""):
        assert texts.open("history", "text", "w/1", texts.seal("history", "text", "w/1", text)) == text


def stored(home):
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        values = "SELECT now, before, after FROM reapplies UNION ALL SELECT body, NULL, NULL FROM answers"
        return [value for row in database.execute(values) for value in row if value]


def leaking(home):
    """The files of a home in which any of the secrets can be found."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return [path.name for path in files if any(one[:64] in path.read_bytes() for one in SECRETS)]


def test_what_is_written_is_encrypted_and_comes_back(opened, home):
    store = opened("one")
    fill(store.catalog)
    check(store.catalog)
    assert all(sealed_values.is_sealed(value) for value in stored(home))
    assert leaking(home) == []
    waiting = ReapplyRows(store.catalog)
    taken = waiting.take(1, 9, "me")
    assert taken is not None
    assert taken.now in SECRETS
    waiting.settle("q" * 32, "me", 2, "answered", b"the answer", "")
    answered = waiting.get("q" * 32)
    assert answered is not None
    assert answered.answer == b"the answer"
    assert store.verifier().verify().problems == []


def test_without_a_key_nothing_changes(opened, home):
    store = opened()
    fill(store.catalog)
    check(store.catalog)
    assert sorted(stored(home)) == sorted([*SECRETS, SECRETS[1], SECRETS[0]])


def test_what_begins_like_an_encrypted_value_is_told_from_one(opened):
    values = ValueCipher(opened().catalog)
    for value in (b"HFROW", b"HFROW\x00", b"HFROW\x01" + b"x" * 60, b"HFRO", b"x"):
        kept = values.seal("reapplies", "now", "id", value)
        assert kept is not None
        assert not sealed_values.is_sealed(kept)
        assert values.open("reapplies", "now", "id", kept) == value
    with pytest.raises(IntegrityError, match="newer"):
        values.open("reapplies", "now", "id", b"HFROW\x02...")


def test_what_is_there_is_encrypted_by_the_first_start_with_a_key(opened, home):
    store = opened()
    fill(store.catalog)
    for days in (1, 2):
        catalog_spare.take(os.fsencode(home), os.fsencode(home / "catalog.db"), days)
    store.close()
    assert len(leaking(home)) == 3
    (home / "objects.url").unlink()
    store = opened("one")
    check(store.catalog)
    assert all(sealed_values.is_sealed(value) for value in stored(home))
    assert store.verifier().verify().problems == []
    assert leaking(home) == []
    assert len(catalog_spare.spares(os.fsencode(home))) == 1
    assert (home / "objects.url").read_bytes().endswith(b" rows texts\n")
    store.close()
    check(opened("one").catalog)


def test_a_value_of_another_row_column_or_key_is_refused(opened, home):
    store = opened("one")
    fill(store.catalog)
    store.close()
    for change in (
        "UPDATE reapplies SET now = before WHERE after IS NOT NULL",
        "UPDATE reapplies SET now = (SELECT b.now FROM reapplies b WHERE b.after IS NULL) WHERE after IS NOT NULL",
        "UPDATE reapplies SET now = CAST(substr(now, 1, 200) AS BLOB)",
        "UPDATE reapplies SET now = CAST(substr(now, 1, 40) AS BLOB)",
        "UPDATE reapplies SET now = x'00' WHERE after IS NOT NULL",
    ):
        shutil.copytree(home, home.with_name("copy"))
        with closing(sqlite3.connect(home.with_name("copy") / "catalog.db")) as database:
            assert database.execute(change).rowcount
            database.commit()
        catalog = opened("one", folder=home.with_name("copy")).catalog
        with pytest.raises(IntegrityError):
            ReapplyRows(catalog).get("q" * 32)
        shutil.rmtree(home.with_name("copy"))


def test_without_its_key_a_value_cannot_be_read_and_the_key_is_named(opened):
    store = opened("one")
    fill(store.catalog)
    name = store.catalog.keys.current.id.hex()
    store.close()
    for key in (None, "two"):
        with pytest.raises(IntegrityError, match=name) as error:
            ReapplyRows(opened(key).catalog).get("q" * 32)
        assert error.value.code == "unknown_key"
        assert "store.encryption_key" in (error.value.hint or "")
    both = opened("two", old=["one"]).catalog
    check(both)
    waiting = ReapplyRows(both)
    waiting.ask(ReapplyRow("s" * 32, WORKSPACE, b"path", "{}", b"new", None, None, deadline=1 << 60))
    with pytest.raises(IntegrityError, match="not known"):
        ReapplyRows(opened("one").catalog).get("s" * 32)


def test_with_objects_there_the_store_itself_says_that_the_key_is_missing(opened):
    store = opened("one")
    store.objects.put(f"packs/{store.tenant}/{'a' * 32}", (b"an object",))
    with store.catalog.database.writing() as transaction:
        transaction.run(
            "INSERT INTO packs (tenant, id, key, size, created_at, spared_until) VALUES (?, ?, ?, 9, 0, 0)",
            (store.catalog.tenant, "a" * 32, f"packs/{store.tenant}/{'a' * 32}"),
        )
    store.close()
    with pytest.raises(ConfigError, match=r"encrypted, and store\.encryption_key is not set"):
        opened()


def test_rows_that_are_damaged_stay_named(opened, home):
    store = opened()
    fill(store.catalog)
    store.close()
    with closing(sqlite3.connect(home / "catalog.db")) as database:
        database.execute("UPDATE reapplies SET now = x'aabb' WHERE after IS NOT NULL")
        database.commit()
    (home / "objects.url").unlink()
    store = opened("one")
    assert [(one.kind, one.object) for one in store.verifier().verify().problems] == [("damaged", "q" * 32)]


def test_without_room_it_is_tried_again(opened, home, monkeypatch, caplog):
    store = opened()
    fill(store.catalog)
    store.close()
    (home / "objects.url").unlink()

    def full(_):
        raise StorageError("no room")

    monkeypatch.setattr(SqliteDatabase, "write_anew", full)
    store = opened("one")
    check(store.catalog)
    assert "tries again" in caplog.text
    caplog.clear()
    assert not (home / "objects.url").exists()
    store.close()
    monkeypatch.undo()
    store = opened("one")
    assert leaking(home) == []
    check(store.catalog)


def test_killed_anywhere_the_next_start_goes_on(opened, home):
    store = opened()
    fill(store.catalog)
    catalog_spare.take(os.fsencode(home), os.fsencode(home / "catalog.db"), 1)
    store.close()
    (home / "objects.url").unlink()
    place = home.with_name("killed")

    def start():
        opened("one", folder=place).close()

    def anew():
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(home, place)

    anew()
    steps = count_steps(start)
    assert {"commit", "rename", "unlink"} <= set(steps)
    for fatal in range(1, len(steps) + 1):
        anew()
        assert run_killed(start, fatal).killed
        store = opened("one", folder=place)
        check(store.catalog)
        assert store.verifier().verify().problems == [], steps[fatal - 1]
        store.close()
        assert leaking(place) == [], steps[fatal - 1]


def test_two_at_once_do_it_once_over(opened, home):
    store = opened()
    fill(store.catalog)
    one, two = opened("one"), opened("one")
    encrypt_stored(one.catalog)
    encrypt_stored(two.catalog)
    check(one.catalog)
    check(two.catalog)
