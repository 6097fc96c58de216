"""Servers that are killed, stopped, slow, or several: what was answered holds, and nothing is half done."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ..sampling import some
from ..waiting import wait_until
from .rest import Client, Place, Server, together, watched

MANY = 1000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home of its own, whose store is sound afterwards."""
    place = Place(tmp_path)
    yield place
    assert json.loads(place.holdfast("--json", "verify", "--read-data"))["ok"]


@contextmanager
def held(place: Place, client: Client, export: str) -> Generator[None]:
    """Keep the workspace of an export from being changed: what changes it waits."""
    folder = place.home / "workspaces" / client.get(f"/api/exports/{export}")["workspace"]
    with open(folder / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def in_flight(place: Place) -> int:
    """How many requests with a key are being worked on."""
    with closing(sqlite3.connect(place.home / "catalog.db")) as catalog:
        return catalog.execute("SELECT count(*) FROM answers WHERE status IS NULL").fetchone()[0]


def begun(place: Place, work: Any) -> Thread:
    """Do it on a thread, once a request with a key is being worked on."""

    def quietly() -> None:
        try:
            work()
        except OSError:
            pass  # the server was killed

    thread = Thread(target=quietly)
    thread.start()
    wait_until(lambda: in_flight(place) == 1, "the request")
    return thread


@pytest.mark.parametrize("what", some(["undo", "checkpoint", "restore", "write-files", "fork"], 3))
def test_i3_what_was_cut_short_by_a_kill_is_done_once(place: Place, what: str) -> None:
    path = place.directory("shop", a="1")
    token = place.token()
    fork = {"name": "copy", "checkpoint": "first"}
    body = {
        "checkpoint": {"label": "second"},
        "restore": {"checkpoint": "first"},
        "write-files": {"writes": [{"path": "c", "content": "3"}]},
        "fork": fork,
        "undo": {},
    }[what]
    with place.server("--no-upkeep") as server:
        client = server.client(token)
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports/shop/checkpoint", {"label": "first"})
        (path / "b").write_text("2")
        asked = (f"/api/exports/shop/{what}", body)
        with held(place, client, "shop"):
            if what == "fork":
                client.post(*asked)  # (it needs no lock: the killed one is made up in the catalog)
                with closing(sqlite3.connect(place.home / "catalog.db")) as catalog:
                    assert catalog.execute("SELECT count(*) FROM exports").fetchone() == (2,)
                answer = client.ask("POST", *asked, Idempotency_Key="k")
                assert answer.code == "export_exists"
                server.process.kill()
                server.process.wait()
                forget_the_answer(place)
            else:
                thread = begun(place, lambda: client.ask("POST", *asked, Idempotency_Key="k"))
                server.process.kill()
                thread.join()
        assert in_flight(place) == 1
    with place.server("--no-upkeep") as server:
        client = server.client(token)
        answer = client.ask("POST", *asked, Idempotency_Key="k")
        if what == "undo":
            # What counts from where the tree stands is not done again by guess.
            assert answer.code == "interrupted"
            assert (path / "b").exists()
            return
        assert answer.status == 200, answer
        again = client.ask("POST", *asked, Idempotency_Key="k")
        assert (again.content, again.headers["idempotent-replayed"]) == (answer.content, "true")
        assert in_flight(place) == 0
        files = {"checkpoint": "ab", "restore": "a", "write-files": "abc", "fork": "ab"}[what]
        assert sorted(os.listdir(path)) == list(files)
        if what == "fork":
            assert answer.json["export"]["name"] == "copy"
            assert os.listdir(answer.json["export"]["path"]) == ["a"]


def forget_the_answer(place: Place) -> None:
    """As if the server had been killed after the work, and before its answer was kept."""
    from holdfast.engine.opening.opener import Opener
    from holdfast.store.catalog.row_checksums import ANSWERS, changing

    opener = Opener(home=os.fsencode(place.home))
    catalog = opener.store().catalog
    with catalog.database.writing() as session:
        (name,) = session.all("SELECT name FROM answers")[0]
        with changing(session, ANSWERS, catalog.tenant, [name]):
            session.run("UPDATE answers SET status = NULL, body = ?, owner = ''", (b"",))
    opener.close()


@pytest.mark.parametrize("what", some(["restore", "write-files"], 1))
def test_i3_what_a_kill_cut_short_in_the_middle_is_finished_by_its_key(place: Place, what: str) -> None:
    path = place.directory("shop")
    for number in range(MANY):
        (path / f"f{number}").write_text(str(number))
    token = place.token()
    plan = {"writes": [{"path": f"f{number}", "content": str(number)} for number in range(MANY)]}
    asked = (f"/api/exports/shop/{what}", {"checkpoint": "full"} if what == "restore" else plan)
    with place.server("--no-upkeep") as server:
        client = server.client(token)
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports/shop/checkpoint", {"label": "full"})
        for number in range(MANY):
            (path / f"f{number}").write_text("changed")
        journal = place.home / "workspaces" / client.get("/api/exports/shop")["workspace"] / "operation"
        thread = begun(place, lambda: client.ask("POST", *asked, Idempotency_Key="k"))
        wait_until(lambda: journal.exists() or not thread.is_alive(), "the restore")
        server.process.kill()
        thread.join()
    assert journal.exists(), "it was not cut short"
    with place.server("--no-upkeep") as server:
        client = server.client(token)
        assert client.ask("POST", *asked).code == "unfinished_restore"
        assert client.ask("POST", *asked, Idempotency_Key="k").status == 200
        assert all((path / f"f{number}").read_text() == str(number) for number in range(MANY))
        assert client.get("/api/exports/shop/status")["unfinished_restore"] is None


def test_a_key_is_refused_while_it_is_being_worked_on(place: Place) -> None:
    path = place.directory("shop", a="1")
    with place.server("--no-upkeep") as server, place.server("--no-upkeep") as other:
        token = place.token()
        client = server.client(token)
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        asked = ("/api/exports/shop/checkpoint", {})
        found: list[Any] = []
        with held(place, client, "shop"):
            thread = begun(place, lambda: found.append(client.ask("POST", *asked, Idempotency_Key="k")))
            elsewhere = other.client(token).ask("POST", *asked, Idempotency_Key="k")
            assert (elsewhere.status, elsewhere.code) == (409, "in_flight")
            assert elsewhere.headers["retry-after"] == "1"
        thread.join()
        assert other.client(token).ask("POST", *asked, Idempotency_Key="k").content == found[0].content


def test_a_signal_lets_what_is_worked_on_come_to_its_end_and_saves_the_rest(place: Place) -> None:
    path = place.directory("shop", a="1")
    other = place.directory("other", a="1")
    with place.server(watch_debounce="1h", watch_max_interval="1h") as server:
        client = server.client(place.token())
        for name, tree in (("shop", path), ("other", other)):
            client.post("/api/exports", {"name": name, "path": str(tree)})
            client.post(f"/api/exports/{name}/checkpoint")
            watched(client, name)
        (path / "b").write_text("2")
        (other / "unsaved").write_text("2")
        found: list[Any] = []
        with client.events("other") as events:
            with held(place, client, "shop"):
                body = {"checkpoint": "@"}
                thread = begun(
                    place,
                    lambda: found.append(client.ask("POST", "/api/exports/shop/restore", body, Idempotency_Key="k")),
                )
                server.process.send_signal(signal.SIGTERM)
                wait_until(lambda: not listens(server), "the end of listening")
                assert server.process.poll() is None
            thread.join()
            assert {event["event"] for event in events} <= {"changed"}  # (it ends)
        assert server.process.wait(60) == 0
        assert found[0].status == 200
        assert all("exception" not in line for line in server.logged())
    log = json.loads(place.holdfast("--json", "-w", str(other), "log"))
    assert log["checkpoints"][0]["changes"]["added"] == 1
    assert os.listdir(path) == ["a"]


def listens(server: Server) -> bool:
    """Whether it takes anybody in."""
    try:
        socket.create_connection(("127.0.0.1", server.port), 5).close()
    except OSError:
        return False
    return True


def test_who_goes_away_stops_nothing(place: Place) -> None:
    path = place.directory("shop", a="1")
    with place.server("--no-upkeep") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        with held(place, client, "shop"):
            connection = client.connection()
            head = client.headers(Content_Type="application/json", Idempotency_Key="k")
            connection.request("POST", "/api/exports/shop/checkpoint", b"{}", head)
            wait_until(lambda: in_flight(place) == 1, "the request")
            connection.close()
        wait_until(lambda: in_flight(place) == 0, "its end")
        assert client.get("/api/exports/shop/checkpoints")["checkpoints"]


def test_what_takes_too_long_is_answered_so_and_goes_on(place: Place) -> None:
    path = place.directory("shop", a="1")
    with place.server("--no-upkeep", serve_request_timeout="1s") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        with held(place, client, "shop"):
            slow = client.ask("POST", "/api/exports/shop/checkpoint", {}, Idempotency_Key="k")
            assert (slow.status, slow.code) == (504, "still_running")
            # Who waits for their turn is told so as well, and holds up nobody else.
            assert client.ask("POST", "/api/exports/shop/checkpoint", {}).code == "locked"
            assert client.get("/api/exports")["exports"]
        wait_until(lambda: in_flight(place) == 0, "its end")
        assert client.ask("POST", "/api/exports/shop/checkpoint", {}, Idempotency_Key="k").json["created"]


def test_of_two_servers_one_sees_to_the_exports_and_the_other_takes_over(place: Place) -> None:
    path = place.directory("shop", a="1")
    token = place.token()
    with place.server(watch_debounce="100ms") as first:
        one = first.client(token)
        one.post("/api/exports", {"name": "shop", "path": str(path)})
        watched(one, "shop")
        with place.server(watch_debounce="100ms") as second:
            two = second.client(token)
            assert two.get("/api/exports/shop")["upkeep"]["state"] == "elsewhere"
            # Both answer, also what changes something, at once.
            done = together(
                *(
                    lambda client=client, n=n: client.ask(
                        "POST", "/api/exports/shop/write-files", {"writes": [{"path": f"w{n}", "content": "x"}]}
                    )
                    for n, client in enumerate((one, two, one, two))
                )
            )
            assert {answer.status for answer in done} <= {200, 409}
            assert {answer.code for answer in done if answer.status == 409} <= {
                "changed_meanwhile",
                "moved",
                "locked",
                "paused",
            }
            first.process.kill()
            first.process.wait()
            watched(two, "shop")
            before = len(two.get("/api/exports/shop/checkpoints")["checkpoints"])
            (path / "after").write_text("2")
            wait_until(
                lambda: len(two.get("/api/exports/shop/checkpoints")["checkpoints"]) > before, "a checkpoint by itself"
            )
            assert second.stop() == 0


def test_a_directory_that_is_gone_is_told_of_at_once_and_one_moved_far_away_is_found_by_upkeep(place: Place) -> None:
    path = place.directory("shop", a="1")
    with place.server(watch_debounce="100ms") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports/shop/checkpoint", {"label": "base"})
        for number in range(2500):
            (path.parent / f"beside{number}").touch()
        (path.parent / "deeper").mkdir()
        moved = path.rename(path.parent / "deeper/shop")
        wait_until(lambda: client.ask("GET", "/api/exports/shop/status").status == 200, "upkeep, which looks further")
        assert client.get("/api/exports/shop")["path"] == str(moved)
        shutil.rmtree(moved)
        for method, what in (("GET", "status"), ("POST", "checkpoint")):
            answer = client.ask(method, f"/api/exports/shop/{what}", {} if method == "POST" else None)
            assert (answer.status, answer.code) == (404, "workspace_gone")
        client.post("/api/exports/shop/undo", {})
        assert (moved / "a").read_text() == "1"


def test_a_command_beside_the_server_and_the_server_respect_each_other(place: Place) -> None:
    path = place.directory("shop", a="1")
    with place.server(watch_debounce="100ms") as server:
        client = server.client(place.token())
        client.post("/api/exports", {"name": "shop", "path": str(path)})
        client.post("/api/exports/shop/checkpoint", {"label": "first"})
        watched(client, "shop")
        status = json.loads(place.holdfast("--json", "-w", str(path), "status"))
        assert status["watching"]
        (path / "b").write_text("2")
        place.holdfast("-w", str(path), "restore", "first")
        assert os.listdir(path) == ["a"]
        place.holdfast("-w", str(path), "watch", "--yes", code=4)
        assert server.stop(signal.SIGINT) == 0


def test_who_says_nothing_or_does_so_slowly_is_let_go(place: Place) -> None:
    with place.server("--no-upkeep", serve_request_timeout="1s") as server:
        token = place.token(rights="write")
        with socket.create_connection(("127.0.0.1", server.port), 60) as slow:
            head = f"POST /api/exports HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
            assert b"403" in slow.recv(4096).partition(b"\r\n")[0]  # (it is not read for who may not ask)
        token = place.token()
        with socket.create_connection(("127.0.0.1", server.port), 60) as slow:
            head = f"POST /api/exports HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
            assert b"408" in slow.recv(4096).partition(b"\r\n")[0]
        for garbage in (b"\x00" * 1000 + b"\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"X" * 200_000):
            with socket.create_connection(("127.0.0.1", server.port), 60) as wild:
                wild.sendall(garbage)
                assert b" 400 " in wild.recv(4096) or wild.recv(1) == b""
        assert server.client().ask("GET", "/api/health").status == 200
        assert all("exception" not in line for line in server.logged())
