"""The parts of the REST API by themselves: events, rates, origins, turns, lent stores, kept answers."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.rest import _event_stream as event_stream
from holdfast.api.rest._app import _close_answer
from holdfast.api.rest._authorization import Origins, Rates, bearer, hosts_of
from holdfast.api.rest._event_stream import Hub
from holdfast.api.rest._export_locks import Turns
from holdfast.api.rest._problems import WebError, problem, status_of
from holdfast.api.rest._request_context import decode_cursor, encode_cursor
from holdfast.api.rest._request_execution import Answer
from holdfast.api.rest._response_writer import pass_on
from holdfast.api.rest._store_pool import Doors
from holdfast.engine.exports import tokens
from holdfast.engine.opening.opener import Opener
from holdfast.model.errors import (
    HoldfastError,
    LockedError,
    NotFoundError,
    QuotaError,
    RefusedError,
    StorageError,
    UsageError,
)
from holdfast.model.ids import hash_bytes
from holdfast.store.catalog.answer_rows import AnswerRows
from holdfast.store.catalog.catalog import Catalog
from holdfast.testing.clocks import ManualClock


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(home=os.fsencode(tmp_path / "home"))
    yield opener
    opener.close()


@pytest.fixture
def catalog(opener: Opener) -> Catalog:
    return opener.store().catalog


# -- events ------------------------------------------------------------------------------------------------------


async def heard(hub: Hub, last: str | None, until: int, meanwhile: Callable[[], object] = lambda: None) -> bytes:
    """What a listener gets until there are so many events."""
    stream = hub.listen("t", "e", last)
    said = await anext(stream)
    said += await anext(stream)
    meanwhile()
    while said.count(b"event:") < until:
        said += await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    return said


def run(work: Awaitable[bytes]) -> list[str]:
    """The names and ids of what was heard."""
    said = asyncio.run(asyncio.wait_for(work, 30))
    return [line for line in said.decode().splitlines() if line.startswith(("id:", "event:"))]


def tell(hub: Hub, count: int, export: str = "e") -> None:
    for number in range(count):
        hub.happened("t", export, f"n{number}", {})


def test_who_was_cut_off_goes_on_behind_the_last_event() -> None:
    hub = Hub(ManualClock(), "0000000a")
    tell(hub, 3)
    assert run(heard(hub, "0000000a-1", 2)) == ["id: 0000000a-2", "event: n1", "id: 0000000a-3", "event: n2"]
    assert run(heard(hub, "0000000a-3", 1, lambda: tell(hub, 1)))[-1] == "event: n0"
    for strange in ("0000000b-1", "nonsense", "", "0000000a-" + "9" * 30):
        assert run(heard(hub, strange, 1)) == ["event: reset"]


def test_what_was_dropped_is_told_and_not_left_out() -> None:
    hub = Hub(ManualClock(), "0000000a")
    tell(hub, event_stream.KEPT + 2)
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert len(run(heard(hub, "0000000a-2", event_stream.KEPT))) == 2 * event_stream.KEPT


def test_an_export_whose_events_others_have_pushed_out_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EXPORTS", 2)
    hub = Hub(ManualClock(), "0000000a")
    tell(hub, 2)
    tell(hub, 1, "second")
    tell(hub, 1, "third")
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert run(heard(hub, "0000000a-2", 1, lambda: tell(hub, 1))) == ["id: 0000000a-5", "event: n0"]
    # By now others have pushed "second" out, and there is something of this one again.
    assert run(heard(hub, "0000000a-1", 1)) == ["event: reset"]
    assert run(heard(hub, "0000000a-4", 1)) == ["id: 0000000a-5", "event: n0"]


def test_a_slow_listener_loses_the_oldest_and_is_told_so() -> None:
    hub = Hub(ManualClock(), "0000000a")
    said = run(heard(hub, None, event_stream.QUEUE + 1, lambda: tell(hub, event_stream.QUEUE + 5)))
    assert said[0] == "event: lost"
    assert said[-1] == f"event: n{event_stream.QUEUE + 4}"
    assert hub.count() == 0


def test_nobody_hears_of_another_tenants_export_or_after_the_end() -> None:
    hub = Hub(ManualClock(), "0000000a")
    hub.happened("other", "e", "theirs", {})
    tell(hub, 1, "another")
    hub.end()

    async def all_of_it() -> bytes:
        return b"".join([piece async for piece in hub.listen("t", "e", "0000000a-0")])

    assert run(all_of_it()) == []


# -- who may ask -------------------------------------------------------------------------------------------------


def test_a_rate_is_held_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("holdfast.api.rest._authorization.time.monotonic", lambda: now)
    rates = Rates(60)
    assert [rates.wait("a") for _ in range(60)] == [0.0] * 60
    assert rates.wait("a") == rates.is_spent("a") == 1.0
    assert rates.wait("b") == 0.0
    now = 1.0
    assert rates.wait("a") == 0.0
    assert rates.wait("a") == 1.0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:7420", "shop.example:443"])
def test_hosts_that_are_ours(host: str) -> None:
    Origins([*hosts_of("127.0.0.1"), "shop.example"], [], any_host=False).check(host, None)


@pytest.mark.parametrize(
    "host", [None, "", "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.2", "[::2]", ":80"]
)
def test_hosts_that_are_not(host: str | None) -> None:
    with pytest.raises(WebError) as caught:
        Origins([*hosts_of("127.0.0.1"), "shop.example"], [], any_host=False).check(host, None)
    assert status_of(caught.value) == 403


def test_origins_that_are_allowed_and_that_are_not() -> None:
    origins = Origins([], ["https://shop.example"], any_host=True)
    origins.check("anything", "https://shop.example")
    for other in ("http://shop.example", "https://shop.example.evil", "null", "", "https://shop.example:444"):
        with pytest.raises(WebError):
            origins.check("anything", other)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_a_header_without_a_token(header: str | None) -> None:
    with pytest.raises(WebError):
        bearer(header)


def test_a_token_is_kept_as_a_hash_and_is_good_until_its_end(catalog: Catalog) -> None:
    clock = ManualClock()
    secret, row = tokens.create(catalog, clock, os.urandom, rights="write", lasts=60)
    assert bearer(f"bearer  {secret}") == secret
    found = tokens.authenticate(catalog.database, secret, clock.now())
    assert found == ("local", row)
    for wrong in (secret[:-1] + ("0" if secret[-1] != "0" else "1"), secret + "0", secret.upper(), secret[:20]):
        assert tokens.authenticate(catalog.database, wrong, clock.now()) is None
    clock.advance(61)
    assert tokens.authenticate(catalog.database, secret, clock.now()) is None
    with catalog.database.reading() as session:
        assert secret.rpartition("_")[2] not in str(session.all("SELECT * FROM tokens"))
    secret, _ = tokens.create(catalog, clock, os.urandom, rights="read")
    with catalog.database.writing() as session:
        session.run("UPDATE tokens SET rights = 'admin'")
    assert tokens.authenticate(catalog.database, secret, clock.now()) is None, "the row is damaged"


@pytest.mark.parametrize(
    "wrong",
    [{"rights": "root"}, {"exports": ["../x"]}, {"exports": ["a"], "roots": [b"/a"]}, {"label": "a\nb"}],
)
def test_a_token_that_makes_no_sense_is_refused(catalog: Catalog, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        tokens.create(catalog, ManualClock(), os.urandom, **{"rights": "read", **wrong})  # type: ignore[arg-type]


# -- problems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 400),
        (NotFoundError("x"), 404),
        (LockedError("x"), 409),
        (RefusedError("x"), 409),
        (QuotaError("x"), 507),
        (StorageError("x"), 503),
        (HoldfastError("x"), 500),
    ],
)
def test_every_error_has_a_status(error: HoldfastError, status: int) -> None:
    assert problem(error, "r")["status"] == status


def test_of_a_mistake_nothing_is_told() -> None:
    assert "secret" not in str(problem(HoldfastError("a secret", code="bug"), "r"))


def test_a_full_disk_is_told_apart() -> None:
    error = StorageError("x")
    error.__cause__ = OSError(28, "No space left on device")
    assert status_of(error) == 507


@pytest.mark.parametrize("text", ["", "a", "name/with é", "x" * 1000])
def test_a_cursor_comes_back(text: str) -> None:
    assert decode_cursor(encode_cursor(text)) == text


# -- turns, doors, answers ---------------------------------------------------------------------------------------


def test_one_changes_at_a_time_and_others_may_look() -> None:
    async def turns() -> None:
        found = Turns(2)
        end = await found.take(("t", "e"), 1, changing=True)
        with pytest.raises(LockedError):
            await found.take(("t", "e"), 0.01, changing=True)
        look = await found.take(("t", "e"), 1, changing=False)
        with pytest.raises(LockedError):
            await found.take(("t", "e"), 0.01, changing=False)
        other = await found.take(("t", "f"), 1, changing=True)
        waiting = asyncio.ensure_future(found.take(("t", "e"), 10, changing=True))
        await asyncio.sleep(0)
        end()
        look()
        (await waiting)()
        other()
        assert found._turns == {}

    asyncio.run(turns())


def test_a_store_is_lent_to_one_at_a_time_and_kept(tmp_path: Path) -> None:
    opened: list[Opener] = []

    def open_tenant(tenant: str) -> Opener:
        opened.append(Opener(home=os.fsencode(tmp_path / "home"), flags={"store.tenant": tenant}))
        return opened[-1]

    doors = Doors(open_tenant, 2)
    with doors.of("a") as one, doors.of("a") as two:
        assert one is not two
    with doors.of("a") as again:
        assert again in (one, two)
    with pytest.raises(NotFoundError), doors.of("a"):
        raise NotFoundError("it is the request's")
    assert len(opened) == 2
    with pytest.raises(StorageError), doors.of("a"):
        raise StorageError("it may be about the store")
    with doors.of("b"), doors.of("b"):
        pass
    doors.close()
    with doors.of("a"):
        pass
    assert all(one._store is None for one in opened)


def test_a_key_is_claimed_by_one_of_many_at_once(tmp_path: Path) -> None:
    openers = [Opener(home=os.fsencode(tmp_path / "home")) for _ in range(8)]
    rows = [AnswerRows(opener.store().catalog, opener.clock) for opener in openers]
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(one.begin("t/k", hash_bytes(b"r"), 60))) for one in rows
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(None) == 1
    for opener in openers:
        opener.close()


def test_what_is_known_of_a_key(catalog: Catalog) -> None:
    clock = ManualClock()
    rows = AnswerRows(catalog, clock)
    request, other = hash_bytes(b"r"), hash_bytes(b"o")
    assert rows.begin("t/k", request, 60) is None
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert (found.status, found.lost) == (None, False)
    rows.mark_lost("t/k")
    found = rows.begin("t/k", other, 60)
    assert found is not None
    assert (found.request, found.lost) == (request, True)
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert found.lost, "it is claimed again"
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert not found.lost
    rows.end("t/k", 200, b"{}")
    found = rows.begin("t/k", request, 60)
    assert found is not None
    assert (found.status, found.body) == (200, b"{}")
    clock.advance(61)
    assert rows.begin("t/k", other, 60) is None
    rows.drop("t/k")
    assert rows.begin("t/k", request, 60) is None


def test_a_key_of_a_process_that_is_gone_is_lost(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    rows = AnswerRows(catalog, clock)
    gone = "elsewhere 1 1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.store.catalog.answer_rows.this_process", lambda: gone)
        rows.begin("t/k", hash_bytes(b"r"), 1e6)
    found = rows.begin("t/k", hash_bytes(b"r"), 1e6)
    assert found is not None
    assert not found.lost, "nobody can tell of another machine's process"
    clock.advance(901)
    found = rows.begin("t/k", hash_bytes(b"r"), 1e6)
    assert found is not None
    assert found.lost


# -- answers -----------------------------------------------------------------------------------------------------


def test_an_answer_that_nobody_waits_for_any_more_is_closed() -> None:
    async def ended() -> None:
        content = io.BytesIO(b"a part of a file")
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_close_answer)
        done.set_result(Answer(200, content, 16, {}))
        cancelled: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        cancelled.add_done_callback(_close_answer)
        cancelled.cancel()
        await asyncio.wait((done, cancelled))
        assert content.closed

    asyncio.run(ended())


def test_a_stream_that_fails_ends_and_begins_no_other_answer(caplog: pytest.LogCaptureFixture) -> None:
    """What has been said cannot be taken back: a second head would be an error of the server's."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def broken() -> AsyncIterator[bytes]:
        yield b"data: one\n\n"
        raise ValueError("a mistake")

    async def may_listen() -> bool:
        return True

    asyncio.run(pass_on(broken(), receive, send, may_listen))
    assert [(message["type"], message["body"]) for message in sent] == [
        ("http.response.body", b"data: one\n\n"),
        ("http.response.body", b""),
    ]
    assert "a mistake" in caplog.text
