"""The application, as ASGI has it: who may ask, what is asked for, on a thread with it, and the answer."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers
from starlette.routing import compile_path

from holdfast import __version__
from holdfast.api.rest import endpoints, page
from holdfast.api.rest.endpoints import ENDPOINTS
from holdfast.api.rest.gate import admit, bearer, fingerprint, refuse_often
from holdfast.api.rest.models import NoBody
from holdfast.api.rest.openapi import document
from holdfast.api.rest.problems import WebError
from holdfast.api.rest.turns import Turns
from holdfast.api.rest.working import Answer, Request, check_key, failure, in_flight, is_worked_on, translated, work
from holdfast.model.errors import HoldfastError, NotFoundError, UsageError
from holdfast.model.log import Log, logged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from concurrent.futures import Executor

    from starlette.types import Message, Receive, Scope, Send

    from holdfast.api.rest.doors import Door, Doors
    from holdfast.api.rest.endpoints import Endpoint
    from holdfast.api.rest.events import Hub
    from holdfast.api.rest.gate import Origins, Principal, Rates
    from holdfast.api.rest.metrics import Metrics
    from holdfast.engine.caretaker import Caretaker, Condition
    from holdfast.engine.checkpoint import CheckpointResult
    from holdfast.engine.promotion.outside import Outside
    from holdfast.model.clock import Clock
    from holdfast.model.config import Serve
    from holdfast.model.sinks import Progress

_log = Log(__name__)

_PIECE: Final = 1 << 18
_MOST_QUERY: Final = 32 << 10
_PLAIN = re.compile(r"[ -~]{1,256}")
_SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": "authorization, content-type, idempotency-key, last-event-id",
    "access-control-max-age": "600",
}
"""What a browser asks before it lets a page ask."""


class Route(NamedTuple):
    """One path, and what can be done with it."""

    pattern: re.Pattern[str]
    methods: Mapping[str, Endpoint]


def _routes() -> list[Route]:
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in ENDPOINTS:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(compile_path(path)[0], methods) for path, methods in by_path.items()]


class _Given(NamedTuple):
    """A request, before anything of it was looked at but its head."""

    scope: Scope
    receive: Receive
    headers: Headers
    request_id: str
    more: dict[str, str]
    """Headers of the answer that do not depend on what it is."""


class App:
    """See the module. ``running``: the work that is being done, which outlives whoever asked for it."""

    def __init__(
        self,
        *,
        settings: Serve,
        doors: Doors,
        gate: Door,
        hub: Hub,
        caretaker: Caretaker,
        metrics: Metrics,
        origins: Origins,
        rates: Rates,
        strangers: Rates,
        clock: Clock,
        executor: Executor,
        promoting: Executor,
        outside: Outside,
    ) -> None:
        """``gate`` is a store of its own, for looking up tokens, which one thread of its own does. Promotions have
        threads of their own (``promoting``): builds take nobody else's time.
        """
        from concurrent.futures import ThreadPoolExecutor

        self._settings = settings
        self._doors = doors
        self._gate = gate
        self._hub = hub
        self._caretaker = caretaker
        self._metrics = metrics
        self._origins = origins
        self._rates = rates
        self._strangers = strangers
        self._clock = clock
        self._executor = executor
        self._promoting = promoting
        self._outside = outside
        self._looking_up = ThreadPoolExecutor(1, thread_name_prefix="holdfast-gate")
        self._routes = _routes()
        self._turns = Turns(max(1, settings.threads // 2))
        self._document = document()
        self.running: set[asyncio.Future[Answer]] = set()
        self.ending = False

    # -- what requests have of the server (`holdfast.api.rest.calls.World`) -------------------------------------

    @property
    def outside(self) -> Outside:
        """See `World.outside`."""
        return self._outside

    def look(self) -> None:
        """See `World.look`."""
        self._caretaker.look()

    def condition(self, tenant: str, export: str) -> Condition:
        """See `World.condition`."""
        return self._caretaker.condition(tenant, export)

    def progress(self, tenant: str, export: str, operation: str, request_id: str) -> Progress:
        """See `World.progress`."""
        return self._hub.progress(tenant, export, operation, request_id)

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        """See `World.saved`."""
        self._metrics.counted("checkpoints" if result.created else "checkpoints_unchanged")
        self._hub.saved(tenant, export, result)

    def happened(self, tenant: str, export: str, event: str, data: dict[str, Any]) -> None:
        """See `World.happened`."""
        self._metrics.counted(event)
        self._hub.happened(tenant, export, event, data)

    # -- one request --------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Nothing but HTTP is spoken."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        given = _Given(scope, receive, Headers(scope=scope), secrets.token_hex(8), {})
        begun = time.monotonic()
        endpoint: Endpoint | None = None
        principal: Principal | None = None
        received, sent, status = 0, 0, 500
        self._metrics.in_flight += 1
        with logged(request_id=given.request_id):
            try:
                try:
                    self._origins.check(given.headers.get("host"), given.headers.get("origin"))
                    self._share(given)
                    if scope["method"] == "OPTIONS" and "origin" in given.headers:
                        status = 204
                        await send(_start(204, _PREFLIGHT, given))
                        await send({"type": "http.response.body", "body": b""})
                        return
                    endpoint, params = self._find(scope)
                    principal = await self._admit(given, endpoint)
                    if endpoint is endpoints.EVENTS:
                        status = 200
                        await self._stream(given, _known(principal), params, send)
                        return
                    answer, received = await self._answer(given, endpoint, principal, params)
                except _GoneError:
                    status = 499
                    return
                except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
                    answer = failure(translated(error), given.request_id)
                status, sent = answer.status, answer.size
                await self._send(send, answer, given, head_only=scope["method"] == "HEAD")
            finally:
                self._metrics.in_flight -= 1
                seconds = time.monotonic() - begun
                route = endpoint.path if endpoint else "none"
                self._metrics.answered(route, _method(scope["method"]), status, seconds, received, sent)
                _log.info(
                    "%s %s: %d",
                    _method(scope["method"]),
                    route,
                    status,
                    milliseconds=round(seconds * 1000, 1),
                    tenant=principal.tenant if principal else None,
                    token=principal.token.id if principal else None,
                )

    def _share(self, given: _Given) -> None:
        """Let a page have the answer whose origin may ask."""
        origin = given.headers.get("origin")
        if origin is not None:
            given.more["access-control-allow-origin"] = origin
            given.more["access-control-expose-headers"] = "x-request-id, retry-after, idempotent-replayed"
            given.more["vary"] = "origin"

    def _find(self, scope: Scope) -> tuple[Endpoint, dict[str, str]]:
        path, method = scope["path"], scope["method"]
        for route in self._routes:
            match = route.pattern.match(path)
            if match is None:
                continue
            found = route.methods.get("GET" if method == "HEAD" else method)
            if found is None:
                allowed = ", ".join(sorted(route.methods))
                raise WebError("bad_method", f"this can be asked for with {allowed}", Allow=allowed)
            params = match.groupdict()
            if not all(map(_PLAIN.fullmatch, params.values())):
                raise NotFoundError("there is nothing of that name")
            return found, params
        raise WebError("no_such_route", "there is no such path", hint="/api/docs lists what there is")

    async def _admit(self, given: _Given, endpoint: Endpoint) -> Principal | None:
        """Who asks; None where nobody has to say so."""
        if endpoint.rights is None:
            return None
        client = given.scope.get("client")
        address = client[0] if client else "local"
        refuse_often(self._strangers.is_spent(address))
        try:
            text = bearer(given.headers.get("authorization"))
            loop = asyncio.get_running_loop()
            principal = await loop.run_in_executor(self._looking_up, self._look_up, text)
        except WebError:
            self._strangers.wait(address)
            raise
        refuse_often(self._rates.wait(fingerprint(text)))
        principal.require(endpoint.rights)
        return principal

    def _look_up(self, text: str) -> Principal:
        return admit(self._gate.opener.store().catalog.database, text, self._clock.now())

    async def _answer(
        self, given: _Given, endpoint: Endpoint, principal: Principal | None, params: dict[str, str]
    ) -> tuple[Answer, int]:
        """The answer, and how many bytes the request's body had."""
        raw = given.scope.get("query_string", b"")
        query = _query(endpoint, raw)
        body = await self._read(given, endpoint)
        parsed = _body(endpoint, given.headers, body)
        if endpoint.handler is None:
            return await self._own(endpoint), len(body)
        if self.ending:
            raise WebError("shutting_down", "the server is being stopped", hint="try again soon", Retry_After="5")
        request = Request(
            endpoint=endpoint,
            principal=_known(principal),
            params=params,
            query=query,
            body=parsed,
            key=check_key(given.headers.get("idempotency-key")),
            asked=(endpoint.method.encode(), given.scope["path"].encode("utf-8", "surrogateescape"), raw, body),
            request_id=given.request_id,
        )
        return await self._work(request), len(body)

    async def _work(self, request: Request) -> Answer:
        """Have it done. It goes on, whatever becomes of who asked; they are told if it takes too long."""
        loop = asyncio.get_running_loop()
        key = request.principal.tenant, request.params.get("name", "")
        end = None
        promotes = request.endpoint.promotes
        # (A build takes long enough for clients to ask again and again how it is.)
        if promotes and await loop.run_in_executor(self._executor, is_worked_on, self._doors, request):
            raise in_flight()
        if key[1]:
            wait = self._settings.request_timeout
            # (While one builds, production can be looked at, saved and changed; two are made one after the other.)
            turn = (key[0], f"{key[1]}/promote") if promotes else key
            end = await self._turns.take(turn, wait, changing=request.endpoint.changes)
        executor = self._promoting if promotes else self._executor
        doing = loop.run_in_executor(executor, self._logged_work, request)
        self.running.add(doing)

        def ended(_: asyncio.Future[Answer]) -> None:
            self.running.discard(doing)
            if end is not None:
                end()

        doing.add_done_callback(ended)
        done, _ = await asyncio.wait((doing,), timeout=self._settings.request_timeout)
        if done:
            return doing.result()
        raise WebError(
            "still_running",
            f"it takes longer than {self._settings.request_timeout:g} s, and goes on",
            hint="the same request with the same Idempotency-Key is told how it ended; …/events shows how far it is",
        )

    def _logged_work(self, request: Request) -> Answer:
        with logged(request_id=request.request_id):
            return work(self._doors, self, request, self._settings.keep_answers)

    # -- bodies -------------------------------------------------------------------------------------------------

    async def _read(self, given: _Given, endpoint: Endpoint) -> bytes:
        """The body: in bounds of size and time."""
        most = self._settings.max_body_bytes if endpoint.body is not NoBody else 0
        said = given.headers.get("content-length", "0")
        if said.isdigit() and len(said) < 20 and int(said) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                while True:
                    message: Message = await given.receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise WebError("too_slow", "the body did not come in time", Connection="close") from None

    # -- what the server answers itself -------------------------------------------------------------------------

    async def _own(self, endpoint: Endpoint) -> Answer:
        if endpoint is endpoints.HEALTH:
            return _json({"status": "ok", "version": __version__, "checks": {}})
        if endpoint is endpoints.READY:
            return await self._ready()
        if endpoint is endpoints.METRICS:
            gauges = {
                "requests_in_flight": self._metrics.in_flight,
                "work_running": len(self.running),
                "event_listeners": self._hub.count(),
            }
            return _text(self._metrics.text(gauges, self._caretaker.counts()), "text/plain; version=0.0.4")
        if endpoint is endpoints.OPENAPI:
            return _json(self._document)
        answer = _text(page.page(self._document), "text/html")
        return answer._replace(headers={**answer.headers, "content-security-policy": page.POLICY})

    async def _ready(self) -> Answer:
        """Whether the catalog answers, within five seconds, and nothing is being stopped."""
        loop = asyncio.get_running_loop()
        checks = {"catalog": "ok", "accepting": "no" if self.ending else "ok"}
        try:
            await asyncio.wait_for(loop.run_in_executor(self._looking_up, self._ask_catalog), 5)
        except Exception as error:  # noqa: BLE001 - that it cannot be asked is the answer
            checks["catalog"] = error.code if isinstance(error, HoldfastError) else "it does not answer"
        fine = set(checks.values()) == {"ok"}
        return _json(
            {"status": "ok" if fine else "unavailable", "version": __version__, "checks": checks},
            status=200 if fine else 503,
        )

    def _ask_catalog(self) -> None:
        with self._gate.opener.store().catalog.database.reading() as session:
            session.one("SELECT 1")

    # -- sending ------------------------------------------------------------------------------------------------

    async def _send(self, send: Send, answer: Answer, given: _Given, *, head_only: bool) -> None:
        content = answer.content
        try:
            await send(_start(answer.status, {**answer.headers, "content-length": str(answer.size)}, given))
            if head_only or isinstance(content, bytes):
                body = content if isinstance(content, bytes) and not head_only else b""
                await send({"type": "http.response.body", "body": body})
                return
            while piece := await asyncio.to_thread(content.read, _PIECE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if not isinstance(content, bytes):
                content.close()

    async def _stream(self, given: _Given, principal: Principal, params: dict[str, str], send: Send) -> None:
        """The events of an export, until the client goes, or the server ends, or the token is taken away."""
        _query(endpoints.EVENTS, given.scope.get("query_string", b""))
        name = principal.check_export(params["name"])
        await asyncio.get_running_loop().run_in_executor(self._executor, self._require, principal, name)
        if self._hub.count() >= self._settings.max_streams:
            raise WebError("no_room_for_streams", "too many listen already", Retry_After="10")
        text = bearer(given.headers.get("authorization"))
        last = given.headers.get("last-event-id")
        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        await send(_start(200, headers, given))
        if given.scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        events = self._hub.listen(principal.tenant, name, last)
        gone = asyncio.ensure_future(_disconnected(given.receive))
        try:
            await self._pass_on(events, gone, send, text)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            await events.aclose()  # type: ignore[attr-defined]

    async def _pass_on(self, events: AsyncIterator[bytes], gone: asyncio.Future[None], send: Send, text: str) -> None:
        loop = asyncio.get_running_loop()
        checked = time.monotonic()
        while True:
            following = asyncio.ensure_future(anext(events, None))
            await asyncio.wait((following, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                return
            piece = following.result()
            if piece is None:
                return
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if time.monotonic() - checked > 10:
                checked = time.monotonic()
                try:
                    await loop.run_in_executor(self._looking_up, self._look_up, text)
                except HoldfastError:
                    return

    def _require(self, principal: Principal, name: str) -> None:
        """Raise `NotFoundError` if there is no such export."""
        with self._doors.of(principal.tenant) as door:
            door.exports.get(name)


class _GoneError(Exception):
    """The client has gone before all of its request was there."""


def _known(principal: Principal | None) -> Principal:
    assert principal is not None, "this endpoint needs a token"
    return principal


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _query(endpoint: Endpoint, raw: bytes) -> Any:
    """What stands behind the question mark; raises `UsageError`."""
    if len(raw) > _MOST_QUERY:
        raise UsageError(f"a query has at most {_MOST_QUERY} bytes")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise UsageError("the query is not UTF-8 in percent encoding") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UsageError("the query has a parameter twice")
    if any("\0" in value for value in found.values()):
        raise UsageError("the query holds a NUL")
    return _converted(lambda: msgspec.convert(found, endpoint.query, strict=False), "the query")


def _body(endpoint: Endpoint, headers: Headers, body: bytes) -> Any:
    """What the body holds; raises `UsageError`. An empty one is an empty object."""
    if endpoint.body is NoBody:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise WebError("bad_media_type", "the body has to be JSON", hint="Content-Type: application/json")
    return _converted(lambda: msgspec.json.decode(body or b"{}", type=endpoint.body), "the body")


def _converted(convert: Callable[[], Any], what: str) -> Any:
    try:
        return convert()
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} is not as it has to be: {error}", code="invalid") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read: {error}", code="invalid") from None


def _too_large(most: int) -> WebError:
    if not most:
        return WebError("too_large", "this takes no body", Connection="close")
    return WebError("too_large", f"a body has at most {most} bytes", Connection="close")


def _json(value: Any, *, status: int = 200) -> Answer:
    content = msgspec.json.encode(value)
    return Answer(status, content, len(content), {"content-type": "application/json"})


def _text(text: str, kind: str) -> Answer:
    content = text.encode()
    return Answer(200, content, len(content), {"content-type": f"{kind}; charset=utf-8"})


def _start(status: int, headers: Mapping[str, str], given: _Given) -> Message:
    every = {**_SAFE, **headers, **given.more, "x-request-id": given.request_id}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}


def _method(method: str) -> str:
    """A method as it is counted: there are not as many as somebody can make up."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"
