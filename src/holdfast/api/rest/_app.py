"""The application, as ASGI has it, and what answers requests share."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import Headers, MutableScopeHeaders, State
from litestar.response.base import ASGIResponse

from holdfast.api.rest import _openapi as openapi
from holdfast.api.rest._endpoints import ENDPOINTS
from holdfast.api.rest._export_locks import ExportTurns
from holdfast.api.rest._problems import WebError
from holdfast.api.rest._request_execution import (
    HttpAnswer,
    answer_error,
    execute_request,
    failure,
    in_flight,
    is_worked_on,
)
from holdfast.api.rest._request_reader import ApiRequest, JsonBody, admit, read_request
from holdfast.model.errors import HoldfastError, NotFoundError
from holdfast.model.log import Log, logged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from litestar.types import ASGIApp, ControllerRouterHandler, Message, Receive, Scope, Send

    from holdfast.api.rest._authorization import Authorizer
    from holdfast.api.rest._event_stream import EventHub
    from holdfast.api.rest._metrics import Metrics
    from holdfast.api.rest._request_context import RequestCall
    from holdfast.api.rest._request_execution import ParsedRequest
    from holdfast.api.rest._store_pool import StorePool
    from holdfast.engine.exports.maintenance import Maintenance
    from holdfast.engine.promotion.job_process import PromotionProcesses
    from holdfast.model.command_results import CheckpointResult
    from holdfast.model.config.settings import Serve

_log = Log(__name__)

_READY_SECONDS: Final = 5.0
_TRIED_SECONDS: Final = 5.0
"""How long the result of a trial write to the objects counts; a bucket charges for each."""
_MOST_PATH: Final = 4096
"""Characters of a path. Litestar remembers where 1,024 of them lead, from clients without a token as well."""
_SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""Headers of every answer that does not say otherwise."""


def create_app(server: Server, route_handlers: Sequence[ControllerRouterHandler] = ()) -> ASGIApp:
    """The application: the REST API, and ``route_handlers`` beside it.

    Every route answers only the hosts and origins of ``server``, limits bodies, and is counted and logged. The REST API
    checks tokens; ``route_handlers`` check their own, and find ``server`` in ``request.app.state``.
    """
    settings = server.settings
    api = Router(
        "/",
        route_handlers=ENDPOINTS,
        request_class=ApiRequest,
        guards=[admit],
        before_request=read_request,
        dto=JsonBody,
        return_dto=None,
    )
    pages = CORSConfig(
        allow_origins=[origin.rstrip("/").lower() for origin in settings.origins],
        allow_methods=["GET", "HEAD", "POST", "PUT", "DELETE"],
        allow_headers=["authorization", "content-type", "idempotency-key", "last-event-id"],
        expose_headers=["x-request-id", "retry-after", "idempotent-replayed"],
    )
    inner = Litestar(
        [api, *route_handlers],
        state=State({"server": server}),
        cors_config=pages if settings.origins else None,
        exception_handlers={Exception: answer_error},
        request_max_body_size=settings.max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    return _Outermost(server, inner)


class _Outermost:
    """Handling of every request, with or without a route: its origin, its id, its line in the log."""

    def __init__(self, server: Server, inner: ASGIApp) -> None:
        self._server = server
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        server, method = self._server, scope["method"]
        request_id, begun = secrets.token_hex(8), time.monotonic()
        received, sent, status = 0, 0, 500
        headers = Headers.from_scope(scope)
        # HEAD is GET whose content uvicorn leaves out. OPTIONS is for browsers that ask what a page may do: all others
        # are refused, which Litestar would answer with a part of the methods.
        known_as = {"HEAD": "GET", "OPTIONS": "OPTIONS" if "origin" in headers else "options"}
        inner: Any = {**scope, "method": known_as.get(method, method)}
        inner["state"] = {"request_id": request_id, "head_only": method == "HEAD"}

        async def receiving() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal sent, status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered: Any = MutableScopeHeaders.from_message(message)
                for name, value in (*_SAFE.items(), ("x-request-id", request_id)):
                    answered.setdefault(name, value)
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        server.metrics.in_flight += 1
        with logged(request_id=request_id):
            try:
                if len(scope["path"]) > _MOST_PATH:
                    raise NotFoundError("there is nothing of that name")
                server.admission.origins.check(headers.get("host"), headers.get("origin"))
                await self._inner(inner, receiving, sending)
            except HoldfastError as error:
                refused = failure(error, request_id)
                response = ASGIResponse(body=refused.content, status_code=refused.status, headers=dict(refused.headers))
                await response(scope, receiving, sending)
            finally:
                server.metrics.in_flight -= 1
                seconds = time.monotonic() - begun
                route = inner.get("path_template", "none")
                # A client could make up any number of methods, and the metrics would grow with each.
                known = method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other"
                server.metrics.answered(route, known, status, seconds, received, sent)
                principal = inner.get("auth")
                _log.info(
                    "%s %s: %d",
                    known,
                    route,
                    status,
                    milliseconds=round(seconds * 1000, 1),
                    tenant=principal.tenant if principal else None,
                    token=principal.token.id if principal else None,
                )


class ServerThreads(NamedTuple):
    """The threads of the server, except that of the event loop."""

    requests: Executor
    tokens: Executor
    """One, which looks up tokens."""
    readiness: Executor
    """One, which tries the objects: a bucket that does not answer must not block tokens."""
    promotions: Executor
    """A build takes long, and must not keep other requests waiting."""

    def end(self) -> None:
        """Start nothing new; work in progress continues."""
        for each in self:
            each.shutdown(wait=False, cancel_futures=True)


class Server:
    """The state that handlers share, and the work in progress.

    ``running``: work in progress, which outlives its request.
    """

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
        self.settings = settings
        self.stores = stores
        self.admission = admission
        self.threads = threads
        self.hub = hub
        self.metrics = metrics
        self.outside = outside
        self.caretaker = caretaker
        self._turns = ExportTurns(max(1, settings.threads // 2))
        self.running: set[asyncio.Future[HttpAnswer]] = set()
        self.ending = False
        self._trying: asyncio.Future[str] | None = None
        """The newest look at the objects; clients without a token may ask as often as they like, and it is shared."""
        self._tried_at = 0.0

    def saved(self, tenant: str, export: str, result: CheckpointResult) -> None:
        """A checkpoint was taken."""
        self.metrics.counted("checkpoints" if result.created else "checkpoints_unchanged")
        self.hub.saved(tenant, export, result)

    def happened(self, tenant: str, export: str, event: str, data: dict[str, Any]) -> None:
        """Publish another event of an export."""
        self.metrics.counted(event)
        self.hub.happened(tenant, export, event, data)

    def metrics_text(self) -> str:
        """The metrics in Prometheus' format."""
        gauges = {
            "requests_in_flight": self.metrics.in_flight,
            "work_running": len(self.running),
            "event_listeners": self.hub.count(),
        }
        return self.metrics.text(gauges, self.caretaker.counts())

    def document(self) -> dict[str, Any]:
        """The OpenAPI document of the REST API."""
        return openapi.document(ENDPOINTS)

    # -- work on a thread ---------------------------------------------------------------------------------------

    async def work(self, request: ParsedRequest, work: Callable[[RequestCall], Any]) -> HttpAnswer:
        """Run ``work`` on a thread. It completes even if the client disconnects; a slow request gets an error."""
        loop = asyncio.get_running_loop()
        key = request.principal.tenant, request.export
        end = None
        promotes = request.apart == "promote"
        # A build takes so long that clients repeat the request to learn its state.
        if promotes and await loop.run_in_executor(self.threads.requests, is_worked_on, self.stores, request):
            raise in_flight()
        if key[1]:
            wait = self.settings.request_timeout
            # During a build production can be read, saved and changed; only other builds wait.
            turn = (key[0], f"{key[1]}/{request.apart}") if request.apart else key
            end = await self._turns.take(turn, wait, changing=request.changes)
        executor = self.threads.promotions if promotes else self.threads.requests
        doing = loop.run_in_executor(executor, self._logged_work, request, work)
        self.running.add(doing)

        def ended(_: asyncio.Future[HttpAnswer]) -> None:
            self.running.discard(doing)
            if end is not None:
                end()

        doing.add_done_callback(ended)
        done, _ = await asyncio.wait((doing,), timeout=self.settings.request_timeout)
        if done:
            return doing.result()
        doing.add_done_callback(_close_answer)
        raise WebError(
            "still_running",
            f"it takes longer than {self.settings.request_timeout:g} s, and goes on",
            hint="the same request with the same Idempotency-Key gets its result; …/events shows its progress",
        )

    def _logged_work(self, request: ParsedRequest, work: Callable[[RequestCall], Any]) -> HttpAnswer:
        with logged(request_id=request.request_id):
            return execute_request(self.stores, request, work, self.settings.keep_answers)

    # -- whether it can work ------------------------------------------------------------------------------------

    async def checks(self) -> dict[str, str]:
        """Whether the catalog answers and the objects can be used, each within five seconds, and nothing is being
        stopped: ``ok``, or why not.
        """
        loop = asyncio.get_running_loop()
        checks = {"catalog": "ok", "objects": "ok", "accepting": "no" if self.ending else "ok"}
        try:
            await asyncio.wait_for(loop.run_in_executor(self.threads.tokens, self._ask_catalog), _READY_SECONDS)
        except Exception as error:  # noqa: BLE001 - that it cannot be asked is the answer
            checks["catalog"] = error.code if isinstance(error, HoldfastError) else "it does not answer"
        if self._trying is None or (self._trying.done() and time.monotonic() >= self._tried_at + _TRIED_SECONDS):
            self._tried_at = time.monotonic()
            self._trying = loop.run_in_executor(self.threads.readiness, self._try_objects)
        try:
            checks["objects"] = await asyncio.wait_for(asyncio.shield(self._trying), _READY_SECONDS)
        except TimeoutError:
            checks["objects"] = "they do not answer"
        return checks

    def _try_objects(self) -> str:
        """``ok`` if an object can be written, read and deleted, else why not."""
        try:
            self.stores.try_objects()
        except HoldfastError as error:
            return error.code
        except Exception:  # noqa: BLE001 - that it cannot be used is the answer
            _log.exception("the objects cannot be tried")
            return "bug"
        return "ok"

    def _ask_catalog(self) -> None:
        with self.admission.database.reading() as session:
            session.one("SELECT 1")

    # -- who listens --------------------------------------------------------------------------------------------

    async def is_valid_token(self, text: str) -> bool:
        """Whether a token counts yet."""
        try:
            await asyncio.get_running_loop().run_in_executor(self.threads.tokens, self.admission.look_up, text)
        except HoldfastError:
            return False
        return True

    def require_export(self, tenant: str, name: str) -> None:
        """Raise `NotFoundError` if there is no such export. On a thread of ``requests``."""
        with self.stores.lend(tenant) as store:
            store.exports.get(name)


def _close_answer(doing: asyncio.Future[HttpAnswer]) -> None:
    """No client waits for it any more."""
    if not doing.cancelled() and doing.exception() is None:
        doing.result().close()
