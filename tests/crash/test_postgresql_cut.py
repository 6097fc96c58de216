"""A catalog on PostgreSQL whose connection breaks: nothing that was said to be kept is lost, and nothing is there
twice (I3, I4); collection takes nothing that is needed, whatever happens to its connection (I11).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.ids import WorkspaceId
from holdfast.store._shared_catalog import retry_lost_connections
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load
from holdfast.testing.session_contract import SessionRowsContract

from ..postgresql_server import Server, open_catalog
from ..proxies import Cut, Proxy
from ..sampling import some

FIRST = {b"a": b"one", b"b/c": b"two", b"text": b"".join(b"line %d\n" % number for number in range(200))}
SECOND = {**FIRST, b"a": b"three", b"text": FIRST[b"text"] + b"more\n", b"new": b"four"}


@pytest.fixture
def proxy(postgresql_server: Server, catalog_url: str) -> Iterator[Proxy]:
    found = Proxy(postgresql_server.folder, catalog_url.partition("@/")[2].partition("?")[0])
    yield found
    found.close()


@contextmanager
def opened(url: str, place: Path, *, repeating: bool = True) -> Generator[Store]:
    database = open_catalog(url, timeout=20)
    with closing(database):
        catalog = Catalog(database, "local", ManualClock())
        if repeating:
            retry_lost_connections(catalog, database)
        yield Store(open_objects(str(place / "objects")), catalog)


def begun(store: Store) -> Saver:
    saver = Saver(store, WorkspaceId("1" * 16), store.catalog.clock, random.Random(4).randbytes)
    saver.create(b"/work")
    saver.save(FIRST)
    return saver


class Cutting:
    """Cuts the connection at the message of this number, once."""

    def __init__(self, at: int, when: Cut) -> None:
        self.at = at
        self.when: Cut = when
        self.seen = 0
        self.messages: list[bytes] = []

    def __call__(self, message: bytes) -> Cut | None:
        if message[:1] == b"X":
            return None  # a goodbye
        self.seen += 1
        self.messages.append(message)
        return self.when if self.seen == self.at else None


def check(url: str, place: Path, expected: dict[bytes, dict[bytes, bytes]]) -> None:
    """Everything is there once, whole, and every count is what a full mark finds."""
    with opened(url, place) as store:
        points = store.catalog.checkpoints()
        assert sorted(point.id.encode() for point in points) == sorted(expected)
        for point in points:
            assert load(store, point.id) == expected[point.id.encode()]
        assert len(store.catalog.events(WorkspaceId("1" * 16))) == len(points)
        assert store.verifier().verify(read_data=True).problems == []


MESSAGES = 78
"""More than saving sends; what lies beyond its end cuts nothing."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(range(1, MESSAGES + 1), 14))
def test_a_save_whose_connection_is_cut_is_kept_once(
    proxy: Proxy, catalog_url: str, tmp_path: Path, at: int, when: Cut
) -> None:
    """I4: the caller is told the truth, whichever message was the last."""
    with opened(proxy.url, tmp_path) as store:
        saver = begun(store)
        first = store.catalog.checkpoints()[0].id.encode()
        proxy.judge = Cutting(at, when)
        second = saver.save(SECOND).encode()
    check(catalog_url, tmp_path, {first: FIRST, second: SECOND})


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", some(range(1, 40), 4))
def test_a_session_s_rows_whose_connection_is_cut_are_there_once(
    proxy: Proxy, catalog_url: str, tmp_path: Path, at: int, when: Cut
) -> None:
    contract = SessionRowsContract()
    with opened(proxy.url, tmp_path) as store:
        contract.prepare(store, ManualClock())
        proxy.judge = Cutting(at, when)
        contract.rows.add(contract.record())
        first, journal = contract.commit(contract.trees[0])
        proxy.judge = lambda _: None
        assert contract.rows.journal(contract.record().id) == journal
        assert contract.rows.checkpoints(contract.record().id) == [first]
        assert len(contract.rows.refs(contract.record().id)) == 1
        assert store.verifier().verify(read_data=True).problems == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_commit_itself_is_cut(proxy: Proxy, catalog_url: str, tmp_path: Path, when: Cut) -> None:
    """I4: not guessed, but read back. Also without any trying again: an answer is never wrong."""
    cuts = 0

    def judge(message: bytes) -> Cut | None:
        nonlocal cuts
        if cuts == 0 and b"commit_marks" in message and b"COMMIT" in message:
            cuts += 1
            return when
        return None

    with opened(proxy.url, tmp_path, repeating=False) as store:
        saver = begun(store)
        expected = {store.catalog.checkpoints()[0].id.encode(): FIRST}
        proxy.judge = judge
        if when == "after":
            expected[saver.save(SECOND).encode()] = SECOND
        else:
            with pytest.raises(StorageError) as lost:
                saver.save(SECOND)
            assert lost.value.code == "connection_lost"
        assert cuts == 1
    check(catalog_url, tmp_path, expected)


def test_a_commit_that_is_on_its_way_still_does_not_come_true_later(
    proxy: Proxy, catalog_url: str, tmp_path: Path
) -> None:
    """I4: the network may hold a message for a while, and the server its session. Whoever asks has it ended first."""
    cuts = 0

    def judge(message: bytes) -> Cut | None:
        nonlocal cuts
        if cuts == 0 and b"commit_marks" in message and b"COMMIT" in message:
            cuts += 1
            return "late"
        return None

    with opened(proxy.url, tmp_path) as store:
        saver = begun(store)
        expected = {store.catalog.checkpoints()[0].id.encode(): FIRST}
        proxy.judge = judge
        expected[saver.save(SECOND).encode()] = SECOND
        assert cuts == 1
        proxy.deliver.set()
        expected[saver.save(FIRST).encode()] = FIRST
    check(catalog_url, tmp_path, expected)


def test_a_commit_that_nobody_can_be_asked_about_is_said_to_be_unknown(
    proxy: Proxy, catalog_url: str, tmp_path: Path
) -> None:
    def judge(message: bytes) -> Cut | None:
        if b"commit_marks" in message and b"COMMIT" in message:
            proxy.refusing = True
            return "after"
        return None

    database = open_catalog(proxy.url, timeout=1)
    with closing(database):
        store = Store(open_objects(str(tmp_path / "objects")), Catalog(database, "local", ManualClock()))
        saver = begun(store)
        proxy.judge = judge
        with pytest.raises(StorageError) as unknown:
            saver.save(SECOND)
        assert unknown.value.code == "commit_unknown"
        assert "holdfast log" in (unknown.value.hint or "")
        proxy.refusing = False
        proxy.judge = lambda _: None
        assert len(store.catalog.checkpoints()) == 2, "it was kept, as one sees now"


def test_a_server_that_is_killed_in_the_middle_of_a_save_and_comes_back(
    postgresql_server: Server, catalog_url: str, tmp_path: Path
) -> None:
    """I3, I4"""
    with opened(catalog_url, tmp_path) as store:
        saver = begun(store)
        expected = {store.catalog.checkpoints()[0].id.encode(): FIRST}

        def fail() -> None:
            postgresql_server.kill()
            postgresql_server.start()

        expected[saver.save(SECOND, before_commit=fail).encode()] = SECOND
        database = store.catalog.database
        with pytest.raises(StorageError) as lost, database.writing() as session:  # noqa: PT012
            session.run("UPDATE checkpoints SET label = 'lost'")
            fail()
            session.one("SELECT 1")
        assert lost.value.code == "connection_lost"
    check(catalog_url, tmp_path, expected)


@pytest.mark.parametrize("at", some(range(1, 102, 3), 8))
def test_collection_whose_connection_is_cut_goes_on_the_next_time(
    proxy: Proxy, catalog_url: str, tmp_path: Path, at: int
) -> None:
    """I11"""
    with opened(proxy.url, tmp_path) as store:
        saver = begun(store)
        old = store.catalog.checkpoints()[0].id
        new = saver.save(SECOND)
        store.catalog.forget([old])
        proxy.judge = Cutting(at, "before" if at % 2 else "after")
        try:
            store.collector().collect(0)
        except HoldfastError as error:
            assert error.code == "connection_lost"
        proxy.judge = lambda _: None
        store.collector().collect(0)
        assert load(store, new) == SECOND
        assert store.verifier().verify(read_data=True).problems == []
        kept = list(store.objects.list("packs/"))
        store.collector().collect(0)
        assert list(store.objects.list("packs/")) == kept, "nothing was left for later"
