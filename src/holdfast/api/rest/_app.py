"""The application, as ASGI has it: who may ask, what is asked for, on a thread with it, and the answer."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.routing import compile_path

from holdfast import __version__
from holdfast.api.rest import _endpoints as endpoints
from holdfast.api.rest import _openapi as openapi
from holdfast.api.rest._authorization import bearer_token, check_rate, fingerprint
from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._export_locks import ExportTurns
from holdfast.api.rest._openapi import document
from holdfast.api.rest._problems import WebError
from holdfast.api.rest._request_execution import (
    HttpAnswer,
    ParsedRequest,
    check_key,
    execute_request,
    failure,
    in_flight,
    is_worked_on,
    translate_error,
)
from holdfast.api.rest._request_reader import GoneError, IncomingRequest, body_of, query_of, receive_body
from holdfast.api.rest._request_types import NoBody
from holdfast.api.rest._response_writer import (
    as_json,
    as_text,
    begin_events,
    send_answer,
    send_preflight,
    stream_answer,
)
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.log import Log, logged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from starlette.types import Receive, Scope, Send

    from holdfast.api.rest._authorization import Authorizer, Principal
    from holdfast.api.rest._endpoints import Endpoint
    from holdfast.api.rest._event_stream import EventHub
    from holdfast.api.rest._metrics import Metrics
    from holdfast.api.rest._store_pool import StorePool
    from holdfast.engine.exports.maintenance import Maintenance, UpkeepCondition
    from holdfast.engine.promotion.job_process import PromotionProcesses
    from holdfast.model.command_results import CheckpointResult
    from holdfast.model.config.settings import Serve
    from holdfast.model.content import Progress

_log = Log(__name__)

_READY_SECONDS: Final = 5.0
_TRIED_SECONDS: Final = 5.0
"""For so long the last trial of the objects counts: each writes something, which a bucket charges for."""
_PLAIN = re.compile(r"[ -~]{1,256}")


class Route(NamedTuple):
    """One path, and what can be done with it."""

    pattern: re.Pattern[str]
    methods: Mapping[str, Endpoint]


def _routes() -> list[Route]:
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in ENDPOINTS:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(compile_path(path)[0], methods) for path, methods in by_path.items()]


class ServerThreads(NamedTuple):
    """The threads of the server, but for that of the event loop."""

    requests: Executor
    tokens: Executor
    """One, which looks up tokens."""
    readiness: Executor
    """One, which tries the objects: a bucket that does not answer keeps no token waiting."""
    promotions: Executor
    """A build takes long, and must not keep other requests waiting."""


class App:
    """See the module. ``running``: the work that is being done, which outlives the request for it."""

    def __init__(
        self,
        *,
        settings: Serve,
        stores: StorePool,
        admission: Authorizer,
        threads: ServerThreads,
        hub: EventHub,
        caretaker: Maintenance,
        metrics: Metrics,
        outside: PromotionProcesses,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._admission = admission
        self._threads = threads
        self._hub = hub
        self._caretaker = caretaker
        self._metrics = metrics
        self._outside = outside
        self._routes = _routes()
        self._turns = ExportTurns(max(1, settings.threads // 2))
        self._document = document()
        self.running: set[asyncio.Future[HttpAnswer]] = set()
        self.ending = False
        self._trying: asyncio.Future[str] | None = None
        """The newest look at the objects; clients without a token may ask as often as they like, and it is shared."""
        self._tried_at = 0.0

    # -- what requests have of the server (`holdfast.api.rest._request_context.ServerServices`) ------------------------

    @property
    def outside(self) -> PromotionProcesses:
        """See `ServerServices.outside`."""
        return self._outside

    def look(self) -> None:
        """See `ServerServices.look`."""
        self._caretaker.reread_exports()

    def condition(self, tenant: str, export: str) -> UpkeepCondition:
        """See `ServerServices.condition`."""
        return self._caretaker.condition(tenant, export)

    def progress(self, tenant: str, export: str, operation: str, request_id: str) -> Progress:
        """See `ServerServices.progress`."""
        return self._hub.progress(tenant, export, operation, request_id)

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        """See `ServerServices.saved`."""
        self._metrics.counted("checkpoints" if result.created else "checkpoints_unchanged")
        self._hub.saved(tenant, export, result)

    def happened(self, tenant: str, export: str, event: str, data: dict[str, Any]) -> None:
        """See `ServerServices.happened`."""
        self._metrics.counted(event)
        self._hub.happened(tenant, export, event, data)

    # -- one request --------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Nothing but HTTP is spoken."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        given = IncomingRequest(scope, receive, Headers(scope=scope), secrets.token_hex(8), {})
        begun = time.monotonic()
        endpoint: Endpoint | None = None
        principal: Principal | None = None
        received, sent, status = 0, 0, 500
        self._metrics.in_flight += 1
        with logged(request_id=given.request_id):
            try:
                try:
                    self._admission.origins.check(given.headers.get("host"), given.headers.get("origin"))
                    self._share(given)
                    if scope["method"] == "OPTIONS" and "origin" in given.headers:
                        status = 204
                        await send_preflight(send, given)
                        return
                    endpoint, params = self._find(scope)
                    principal = await self._admit(given, endpoint)
                    if endpoint is endpoints.EVENTS:
                        status = 200
                        await self._stream(given, _require_principal(principal), params, send)
                        return
                    answer, received = await self._answer(given, endpoint, principal, params)
                except GoneError:
                    status = 499
                    return
                except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
                    answer = failure(translate_error(error), given.request_id)
                status, sent = answer.status, answer.size
                await send_answer(send, answer, given, head_only=scope["method"] == "HEAD")
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

    def _share(self, given: IncomingRequest) -> None:
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
        raise WebError("no_such_route", "there is no such path", hint="/api/docs lists all paths")

    async def _admit(self, given: IncomingRequest, endpoint: Endpoint) -> Principal | None:
        """Who asks; None where no token is needed."""
        if endpoint.rights is None:
            return None
        client = given.scope.get("client")
        address = client[0] if client else "local"
        loop = asyncio.get_running_loop()
        header = given.headers.get("authorization")
        principal = await loop.run_in_executor(self._threads.tokens, self._admission.admit, address, header)
        check_rate(self._admission.of_tokens.wait(fingerprint(bearer_token(header))))
        principal.require(endpoint.rights)
        return principal

    async def _answer(
        self, given: IncomingRequest, endpoint: Endpoint, principal: Principal | None, params: dict[str, str]
    ) -> tuple[HttpAnswer, int]:
        """The answer, and how many bytes the request's body had."""
        raw = given.scope.get("query_string", b"")
        query = query_of(endpoint, raw)
        most = self._settings.max_body_bytes if endpoint.body is not NoBody else 0
        body = await receive_body(given, most=most, seconds=self._settings.request_timeout)
        parsed = body_of(endpoint, given.headers, body)
        if endpoint.handler is None:
            return await self._own(endpoint), len(body)
        if self.ending:
            raise WebError("shutting_down", "the server is being stopped", hint="try again soon", Retry_After="5")
        request = ParsedRequest(
            endpoint=endpoint,
            principal=_require_principal(principal),
            params=params,
            query=query,
            body=parsed,
            key=check_key(given.headers.get("idempotency-key")),
            asked=(endpoint.method.encode(), given.scope["path"].encode("utf-8", "surrogateescape"), raw, body),
            request_id=given.request_id,
        )
        return await self._work(request), len(body)

    async def _work(self, request: ParsedRequest) -> HttpAnswer:
        """Have it done. It goes on, whatever becomes of who asked; they are told if it takes too long."""
        loop = asyncio.get_running_loop()
        key = request.principal.tenant, request.params.get("name", "")
        end = None
        promotes = request.endpoint.promotes
        # (A build takes long enough for clients to ask again and again how it is.)
        if promotes and await loop.run_in_executor(self._threads.requests, is_worked_on, self._stores, request):
            raise in_flight()
        if key[1]:
            wait = self._settings.request_timeout
            # (While one builds, production can be looked at, saved and changed; two are made one after the other.)
            apart = "promote" if promotes else "exec" if request.endpoint.executes else ""
            turn = (key[0], f"{key[1]}/{apart}") if apart else key
            end = await self._turns.take(turn, wait, changing=request.endpoint.changes)
        executor = self._threads.promotions if promotes else self._threads.requests
        doing = loop.run_in_executor(executor, self._logged_work, request)
        self.running.add(doing)

        def ended(_: asyncio.Future[HttpAnswer]) -> None:
            self.running.discard(doing)
            if end is not None:
                end()

        doing.add_done_callback(ended)
        done, _ = await asyncio.wait((doing,), timeout=self._settings.request_timeout)
        if done:
            return doing.result()
        doing.add_done_callback(_close_answer)
        raise WebError(
            "still_running",
            f"it takes longer than {self._settings.request_timeout:g} s, and goes on",
            hint="the same request with the same Idempotency-Key gets its result; …/events shows its progress",
        )

    def _logged_work(self, request: ParsedRequest) -> HttpAnswer:
        with logged(request_id=request.request_id):
            return execute_request(self._stores, self, request, self._settings.keep_answers)

    # -- what the server answers itself -------------------------------------------------------------------------

    async def _own(self, endpoint: Endpoint) -> HttpAnswer:
        if endpoint is endpoints.HEALTH:
            return as_json({"status": "ok", "version": __version__, "checks": {}})
        if endpoint is endpoints.READY:
            return await self._ready()
        if endpoint is endpoints.METRICS:
            gauges = {
                "requests_in_flight": self._metrics.in_flight,
                "work_running": len(self.running),
                "event_listeners": self._hub.count(),
            }
            return as_text(self._metrics.text(gauges, self._caretaker.counts()), "text/plain; version=0.0.4")
        if endpoint is endpoints.OPENAPI:
            return as_json(self._document)
        answer = as_text(openapi.page(self._document), "text/html")
        return answer._replace(headers={**answer.headers, "content-security-policy": openapi.POLICY})

    async def _ready(self) -> HttpAnswer:
        """Whether the catalog answers and the objects can be used, each within five seconds, and nothing is being
        stopped.
        """
        loop = asyncio.get_running_loop()
        checks = {"catalog": "ok", "objects": "ok", "accepting": "no" if self.ending else "ok"}
        try:
            await asyncio.wait_for(loop.run_in_executor(self._threads.tokens, self._ask_catalog), _READY_SECONDS)
        except Exception as error:  # noqa: BLE001 - that it cannot be asked is the answer
            checks["catalog"] = error.code if isinstance(error, HoldfastError) else "it does not answer"
        if self._trying is None or (self._trying.done() and time.monotonic() >= self._tried_at + _TRIED_SECONDS):
            self._tried_at = time.monotonic()
            self._trying = loop.run_in_executor(self._threads.readiness, self._try_objects)
        try:
            checks["objects"] = await asyncio.wait_for(asyncio.shield(self._trying), _READY_SECONDS)
        except TimeoutError:
            checks["objects"] = "they do not answer"
        fine = set(checks.values()) == {"ok"}
        return as_json(
            {"status": "ok" if fine else "unavailable", "version": __version__, "checks": checks},
            status=200 if fine else 503,
        )

    def _try_objects(self) -> str:
        """``ok`` if an object can be written, read and deleted, else why not."""
        try:
            self._stores.try_objects()
        except HoldfastError as error:
            return error.code
        except Exception:  # noqa: BLE001 - that it cannot be used is the answer
            _log.exception("the objects cannot be tried")
            return "bug"
        return "ok"

    def _ask_catalog(self) -> None:
        with self._admission.database.reading() as session:
            session.one("SELECT 1")

    # -- streams ------------------------------------------------------------------------------------------------

    async def _stream(self, given: IncomingRequest, principal: Principal, params: dict[str, str], send: Send) -> None:
        """The events of an export, until the client goes, or the server ends, or the token is taken away."""
        query_of(endpoints.EVENTS, given.scope.get("query_string", b""))
        name = principal.check_export(params["name"])
        await asyncio.get_running_loop().run_in_executor(self._threads.requests, self._require, principal, name)
        if self._hub.count() >= self._settings.max_streams:
            raise WebError("no_room_for_streams", "too many listen already", Retry_After="10")
        text = bearer_token(given.headers.get("authorization"))
        last = given.headers.get("last-event-id")
        await begin_events(send, given)
        if given.scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        events = self._hub.listen(principal.tenant, name, last)
        await stream_answer(events, given.receive, send, partial(self._may_still, text))

    async def _may_still(self, text: str) -> bool:
        """Whether a token counts yet."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads.tokens, self._admission.look_up, text)
        except HoldfastError:
            return False
        return True

    def _require(self, principal: Principal, name: str) -> None:
        """Raise `NotFoundError` if there is no such export."""
        with self._stores.lend(principal.tenant) as store:
            store.exports.get(name)


def _require_principal(principal: Principal | None) -> Principal:
    assert principal is not None, "this endpoint needs a token"
    return principal


def _close_answer(doing: asyncio.Future[HttpAnswer]) -> None:
    """No client waits for it any more."""
    if not doing.cancelled() and doing.exception() is None:
        doing.result().close()


def _method(method: str) -> str:
    """A method as it is counted: there are not as many as a client can make up."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"
