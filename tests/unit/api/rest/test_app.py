"""The application by itself, and answers that no client waits for."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from litestar import Request, Response, get
from litestar.types import ASGIApp

from holdfast.api.rest._app import Server, ServerThreads, _close_answer, create_app
from holdfast.api.rest._authorization import Authorizer, Origins, Rates
from holdfast.api.rest._event_stream import EventHub
from holdfast.api.rest._metrics import Metrics
from holdfast.api.rest._request_execution import HttpAnswer
from holdfast.api.rest._store_pool import OpenedStore, StorePool
from holdfast.engine.exports.maintenance import Maintenance, MaintenanceLimits
from holdfast.engine.opening.opener import Opener
from holdfast.engine.promotion.build_isolation import find_isolation
from holdfast.engine.promotion.job_process import PromotionProcesses


def test_an_answer_that_nobody_waits_for_any_more_is_closed() -> None:
    async def ended() -> None:
        content = io.BytesIO(b"a part of a file")
        done: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_close_answer)
        done.set_result(HttpAnswer(200, content, 16, {}))
        cancelled: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()
        cancelled.add_done_callback(_close_answer)
        cancelled.cancel()
        await asyncio.wait((done, cancelled))
        assert content.closed

    asyncio.run(ended())


@get("/ui/hello", media_type="text/html")
async def hello(request: Request[Any, Any, Any]) -> Response[str]:
    """A page of another part, which finds the server."""
    assert isinstance(request.app.state.server, Server)
    return Response("<p>hello</p>", media_type="text/html", headers={"cache-control": "private"})


@get("/ui/broken")
async def broken() -> None:
    """One that has a mistake."""
    raise ValueError("a mistake")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[ASGIApp]:
    """The application with handlers of another part."""
    opener = Opener(home=os.fsencode(tmp_path / "home"))
    stores = StorePool(lambda _: Opener(home=opener.home), 1)
    settings, hub = opener.settings(None).serve, EventHub(opener.clock, "0000000a")
    caretaker = Maintenance(
        lambda _, **__: Opener(home=opener.home), hub, opener.clock, MaintenanceLimits(workers=1, collect_interval=1.0)
    )
    caretaker.start()
    threads = [ThreadPoolExecutor(1) for _ in ServerThreads._fields]
    server = Server(
        settings=settings,
        stores=stores,
        admission=Authorizer(
            OpenedStore(opener), Origins(["localhost"], [], any_host=False), Rates(60), Rates(6), opener.clock
        ),
        threads=ServerThreads(*threads),
        hub=hub,
        caretaker=caretaker,
        metrics=Metrics(),
        outside=PromotionProcesses(opener.home, find_isolation("none", "none")),
    )
    yield create_app(server, [hello, broken])
    caretaker.stop()
    for thread in threads:
        thread.shutdown()
    stores.close()
    opener.close()


class Answered(NamedTuple):
    """What was answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def code(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.content)["code"]


def ask(app: ASGIApp, method: str, path: str, host: str = "localhost") -> Answered:
    """Ask the application itself, without a socket."""
    sent: list[Any] = []
    scope: Any = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1),
        "headers": [(b"host", host.encode())], "server": ("localhost", 1),
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answered(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def test_handlers_of_another_part_are_served_beside_the_api_and_need_no_token_of_it(app: ASGIApp) -> None:
    page = ask(app, "GET", "/ui/hello")
    assert (page.status, page.content) == (200, b"<p>hello</p>")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "private", "a handler says so itself"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert len(page.headers["x-request-id"]) == 16
    assert ask(app, "GET", "/ui/hello", host="evil.example").code == "foreign_host"
    assert ask(app, "GET", "/ui/none").code == "no_such_route"
    assert ask(app, "GET", f"/api/exports/{'x' * 5000}").code == "not_found"
    assert ask(app, "POST", "/ui/hello").code == "bad_method"
    assert ask(app, "GET", "/api/exports").code == "unauthorized"
    assert ask(app, "GET", "/api/health").status == 200


def test_where_there_is_nothing_a_person_is_told_where_to_go(app: ASGIApp) -> None:
    answered = ask(app, "GET", "/")
    assert (answered.status, answered.code) == (404, "no_such_route")
    problem = json.loads(answered.content)
    assert "/api/openapi.json" in problem["hint"]
    assert "`holdfast ui`" in problem["detail"]


def test_a_mistake_is_a_problem_that_tells_nothing_and_is_logged(
    app: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(app, "GET", "/ui/broken")
    assert (answer.status, answer.code) == (500, "bug")
    assert b"a mistake" not in answer.content
    assert "a mistake" in caplog.text
