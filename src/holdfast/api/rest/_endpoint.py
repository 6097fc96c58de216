"""Makes a function a route handler of Litestar that does its work on a thread.

The function's signature is the one description of the request: Litestar parses path, query and body by it, and the
OpenAPI document is generated from it.
"""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from litestar import HttpMethod, Request
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, SkipValidation

from holdfast.api.rest._request_context import RequestCall
from holdfast.api.rest._request_execution import IDEMPOTENCY_PATTERN, ParsedRequest, check_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar import Response

    from holdfast.store.catalog.token_rows import Rights

Call: TypeAlias = NamedDependency[SkipValidation[RequestCall]]
"""The first parameter of a function that works on a thread."""
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="The same request with the same key is done once, and answered the same.",
        schema_extra={"type": "string", "pattern": IDEMPOTENCY_PATTERN, "one_of": None},
    ),
]
_MOST_WITHOUT_BODY: Final = 1
"""The limit for a body that no handler takes; Litestar treats 0 as unlimited."""


def endpoint(
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: str,
    *,
    rights: Rights | None,
    changes: bool | None = None,
    apart: Literal["", "promote", "exec"] = "",
    **options: Any,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Decorate a function that answers ``method`` of ``path`` for tokens with ``rights``; None: no token is needed.

    A plain function works on a thread, with a `RequestCall` first; a coroutine answers on the event loop, for what only
    waits. ``changes``: it may change something, so that an ``Idempotency-Key`` counts; by default all but GET.
    ``apart``: it takes as long as a build or a command, and waits only for requests of the same kind. ``options`` are
    those of `litestar.handlers.HTTPRouteHandler`.
    """
    changing = method != "GET" if changes is None else changes

    def made(function: Callable[..., Any]) -> HTTPRouteHandler:
        takes_body = "data" in function.__annotations__
        if not takes_body:
            options["request_max_body_size"] = _MOST_WITHOUT_BODY
        if not iscoroutinefunction(function):
            provide = _keyed_request if changing else _request
            options["dependencies"] = {"call": Provide(provide)}
        return HTTPRouteHandler(
            path,
            http_method=HttpMethod(method),
            status_code=200,
            opt={"rights": rights, "changes": changing, "apart": apart, "takes_body": takes_body},
            operation_id=function.__name__,
            summary=" ".join((function.__doc__ or "").split()),
            description=None if rights is None else f"Needs a token with the right `{rights}`.",
            response_description="It was done.",
            security=None if rights is None else [{"token": []}],
            tags=[_tag(path)],
            **options,
        )(function if iscoroutinefunction(function) else _on_thread(function))

    return made


def _on_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def handle(call: ParsedRequest, **given: Any) -> Response[Any]:
        answer = await call.server.work(call, lambda on_thread: function(on_thread, **given))
        return answer.response(head_only=call.head_only)

    return handle


async def _request(request: Request[Any, Any, Any]) -> ParsedRequest:
    """What has been read of a request, for its work on a thread."""
    return await _parsed(request, None)


async def _keyed_request(request: Request[Any, Any, Any], key: IdempotencyKey = None) -> ParsedRequest:
    """The same for a request that may change something."""
    return await _parsed(request, check_key(key))


async def _parsed(request: Request[Any, Any, Any], key: str | None) -> ParsedRequest:
    path = request.scope["path"].encode("utf-8", "surrogateescape")
    options = request.route_handler.opt
    return ParsedRequest(
        server=request.app.state.server,
        principal=request.auth,
        export=request.path_params.get("name", ""),
        changes=options["changes"],
        apart=options["apart"],
        key=key,
        asked=(request.method.encode(), path, request.scope["query_string"], await request.body()),
        request_id=request.scope["state"]["request_id"],
        head_only=request.scope["state"]["head_only"],
    )


def _tag(path: str) -> str:
    parts = path.split("/")
    return parts[2] if len(parts) > 2 and parts[2] in ("exports", "checkpoints", "merge", "projects") else "server"
