"""Several control planes over one catalog on PostgreSQL and one bucket, encrypted; and what is promoted there."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

from ..buckets import Answer, Service, refuse
from ..promoted import PAGES, Ground, make_app
from ..proxies import Proxy
from ..sampling import moments
from ..stored import configured, new_key
from ..waiting import wait_until
from .rest import Client, Place, Server, together, watched

if TYPE_CHECKING:
    from ..postgresql_server import Server as Postgres

pytest.importorskip("cryptography", reason="needs cryptography (extra dev)")
pytest.importorskip("psycopg", reason="needs psycopg (extra server)")

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture
def proxy(postgresql_server: Postgres, catalog_url: str) -> Iterator[Proxy]:
    """Before the catalog's server, with connections that can be cut."""
    found = Proxy(postgresql_server.folder, catalog_url.partition("@/")[2].partition("?")[0])
    yield found
    found.close()


@pytest.fixture
def places(tmp_path: Path, service: Service, proxy: Proxy) -> Iterator[list[Place]]:
    """Two homes that share everything; their stores are sound afterwards."""
    key = new_key(tmp_path / "key")
    url = f"s3://{service.bucket()}/p"
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name)
        configured(place.home, service, url=url, catalog=proxy.url, encryption_key=key)
        found.append(place)
    yield found
    proxy.judge = lambda _: None
    proxy.refusing = False
    service.proxy.reset()
    for place in found:
        assert json.loads(place.holdfast("--json", "verify", "--read-data"))["ok"]


@contextmanager
def running(*places: Place) -> Generator[list[Server]]:
    """A server for each."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(place.server(watch_debounce="100ms", serve_requests_per_minute="100000"))
            for place in places
        ]


def saved_itself(client: Client, export: str, path: Path) -> None:
    """Wait until a change is saved that nobody has asked to save."""

    def count() -> int:
        return len(client.get(f"/api/exports/{export}/checkpoints")["checkpoints"])

    before = count()
    (path / f"changed {before}").write_text("by hand")
    wait_until(lambda: count() > before, "a checkpoint by itself")


def test_two_homes_serve_what_is_their_own_each(places: list[Place]) -> None:
    paths = [place.directory("shop", a="1") for place in places]
    with running(*places) as servers:
        clients = [server.client(place.token()) for server, place in zip(servers, places, strict=True)]
        for number, client in enumerate(clients):
            client.post("/api/exports", {"name": f"shop{number}", "path": str(paths[number])})
        for number, client in enumerate(clients):
            assert [found["name"] for found in client.get("/api/exports")["exports"]] == [f"shop{number}"]
            other = f"/api/exports/shop{1 - number}"
            for asked in (
                client.ask("GET", other),
                client.ask("DELETE", other),
                client.ask("POST", f"{other}/checkpoint", {}),
                client.ask("POST", f"{other}/write-files", {"writes": [{"path": "a", "content": "2"}]}),
            ):
                assert (asked.status, asked.code) == (404, "no_export")
            taken = client.ask("POST", "/api/exports", {"name": f"shop{1 - number}"})
            assert (taken.status, taken.code) == (409, "export_exists")
        for number, client in enumerate(clients):
            watched(client, f"shop{number}")
            saved_itself(client, f"shop{number}", paths[number])
        # What one of them saves the other can compare, and nothing of it is written there.
        assert [(path / "a").read_text() for path in paths] == ["1", "1"]


def test_of_two_servers_of_one_home_one_sees_to_it_though_the_other_asks_the_same(places: list[Place]) -> None:
    place = places[0]
    path = place.directory("shop", a="1")
    token = place.token()
    with running(place, place) as (first, second):
        one, two = first.client(token), second.client(token)
        # Both are asked the same at once, with one key: it is done once.
        done = together(
            *(
                lambda client=client: client.ask(
                    "POST", "/api/exports", {"name": "shop", "path": str(path)}, Idempotency_Key="made"
                )
                for client in (one, two)
            )
        )
        assert sorted(answer.status for answer in done) in ([200, 200], [200, 409]), done

        def states() -> list[str]:
            return sorted(client.get("/api/exports/shop")["upkeep"]["state"] for client in (one, two))

        wait_until(lambda: states() == ["elsewhere", "watching"], "the upkeep by one of them")
        saved_itself(one, "shop", path)
        saved_itself(two, "shop", path)
        first.process.kill()
        first.process.wait()
        watched(two, "shop")
        saved_itself(two, "shop", path)
        assert second.stop() == 0, second.log.read_text()


def test_servers_come_through_a_database_and_a_bucket_that_are_cut_off_and_back(
    places: list[Place], proxy: Proxy, service: Service
) -> None:
    """I3, I4: what was answered with 200 is there; what was not is an error with a code, and no failure of ours."""
    paths = [place.directory("shop", a="1") for place in places]
    with running(*places) as servers:
        clients = [server.client(place.token()) for server, place in zip(servers, places, strict=True)]
        for number, client in enumerate(clients):
            client.post("/api/exports", {"name": f"shop{number}", "path": str(paths[number])})
        stop = threading.Event()
        answered: list[list[tuple[int, int, str]]] = [[], []]

        def work(number: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                write = {"path": f"w{turn}", "content": f"{number} {turn}"}
                asked = clients[number].ask("POST", f"/api/exports/shop{number}/write-files", {"writes": [write]})
                answered[number].append((turn, asked.status, "" if asked.status == 200 else asked.code))

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()

        def goes_on() -> None:
            before = [len(each) for each in answered]
            wait_until(
                lambda: all(len(each) > count for each, count in zip(answered, before, strict=True)), "further answers"
            )

        for _ in moments(range(4), 2):
            goes_on()
            proxy.cut_all()
            goes_on()
            proxy.refusing = True
            proxy.cut_all()
            stop.wait(0.2)
            proxy.refusing = False
            service.proxy.before = refuse(0, "", 4)
            goes_on()
            service.proxy.before = lambda _: Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            goes_on()
            service.proxy.reset()
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for number in (0, 1):
            done = [turn for turn, status, _ in answered[number] if status == 200]
            assert len(done) > 2, answered[number]
            strange = {(status, code) for _, status, code in answered[number] if status not in (200, 409, 503)}
            assert strange == set(), strange
            for turn in done:
                assert (paths[number] / f"w{turn}").read_text() == f"{number} {turn}"
            watched(clients[number], f"shop{number}")
            clients[number].post(f"/api/exports/shop{number}/checkpoint", {"label": "after"})
        for server in servers:
            assert server.stop() == 0, server.log.read_text()
            assert "exception" not in server.log.read_text()


def test_a_fork_is_promoted_over_a_shared_catalog_while_the_other_home_collects(places: list[Place]) -> None:
    place, other = places
    ground = Ground(place.base, isolation="none")
    make_app(ground.root, sys.executable)
    ground.begin()
    with holdfast.init(other.directory("its", a="1"), home=other.home) as workspace:
        workspace.checkpoint()
        one, broken = ground.fork("one"), ground.fork("broken")
        (one / "src/pages.py").write_text(PAGES.replace('"one"', '"ONE"'))
        (broken / "src/other.py").write_text("VALUE = (\n")
        before = ground.content()
        ground.promote(broken, "build_failed")
        assert ground.content() == before
        workspace.gc(grace=0)
        done = ground.promote(one)
        workspace.gc(grace=0)
        assert workspace.verify(read_data=True).problems == []
    assert b"ONE" in (ground.root / "src/pages.py").read_bytes()
    with ground.opened() as workspace:
        assert workspace.log().head == done.answer.checkpoint
        workspace.undo()
        assert b"ONE" not in (ground.root / "src/pages.py").read_bytes()
    assert ground.leftovers() == []
