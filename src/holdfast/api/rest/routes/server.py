"""The server's own state, and events of exports: answered on the event loop, without a thread."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter
from litestar.response import Response, Stream

from holdfast import __version__
from holdfast.api.rest import _openapi as openapi_page
from holdfast.api.rest._authorization import bearer_token
from holdfast.api.rest._endpoint import endpoint
from holdfast.api.rest._event_stream import while_allowed
from holdfast.api.rest._problems import WebError
from holdfast.api.rest._request_types import ExportName
from holdfast.model.answers import faces

if TYPE_CHECKING:
    from holdfast.api.rest._app import Server

LastEventId: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        description="The id of the last event that was received.",
        schema_extra={"type": "string", "max_length": 200, "one_of": None},
    ),
]


@endpoint("GET", "/api/exports/{name:str}/events", rights="read", media_type="text/event-stream")
async def listen(request: Request[Any, Any, Any], name: ExportName, last: LastEventId = None) -> Response[str]:
    """Its events."""
    server: Server = request.app.state.server
    tenant = request.auth.tenant
    request.auth.check_export(name)
    await asyncio.get_running_loop().run_in_executor(server.threads.requests, server.require_export, tenant, name)
    if server.hub.count() >= server.settings.max_streams:
        raise WebError("no_room_for_streams", "too many listen already", Retry_After="10")
    headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
    if request.scope["state"]["head_only"]:
        return Response("", headers=headers)
    may_listen = partial(server.is_valid_token, bearer_token(request.headers.get("authorization")))
    events = while_allowed(server.hub.listen(tenant, name, last), may_listen)
    return cast("Response[str]", Stream(events, headers=headers))


@endpoint("GET", "/api/health", rights=None)
async def health() -> faces.Health:
    """Answers as long as the server runs."""
    return {"status": "ok", "version": __version__, "checks": {}}


@endpoint("GET", "/api/ready", rights=None, responses={503: ResponseSpec(faces.Health, description="It cannot.")})
async def ready(request: Request[Any, Any, Any]) -> Response[faces.Health]:
    """Whether the server is not ending, the catalog answers, and an object can be written, read and deleted; 503 if
    not.
    """
    server: Server = request.app.state.server
    checks = await server.checks()
    fine = set(checks.values()) == {"ok"}
    answer: faces.Health = {
        "status": "ok" if fine else "unavailable",
        "version": __version__,
        "checks": checks,
    }
    return Response(answer, status_code=200 if fine else 503)


@endpoint("GET", "/metrics", rights="read", media_type="text/plain")
async def metrics(request: Request[Any, Any, Any]) -> Response[str]:
    """For Prometheus: requests by route and status, durations, operations, exports by state. No names of tenants,
    exports or paths.
    """
    return Response(request.app.state.server.metrics_text(), media_type="text/plain; version=0.0.4")


@endpoint("GET", "/api/openapi.json", rights=None)
async def openapi(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Every field of requests and answers, as OpenAPI."""
    return await asyncio.to_thread(request.app.state.server.document)


@endpoint("GET", "/api/docs", rights=None, media_type="text/html")
async def docs(request: Request[Any, Any, Any]) -> Response[str]:
    """The same for people."""
    page = openapi_page.page(await asyncio.to_thread(request.app.state.server.document))
    return Response(page, media_type="text/html", headers={"content-security-policy": openapi_page.POLICY})
