"""A request as it comes in: who asks, and its query and body, in bounds of size and time."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.dto import AbstractDTO
from litestar.exceptions import InternalServerException, NotFoundException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.params import QueryParameter

from holdfast.api._field_names import naming_hint, similar_name
from holdfast.api.rest._authorization import bearer_token, check_rate, fingerprint
from holdfast.api.rest._problems import WebError
from holdfast.api.rest._request_execution import GoneError
from holdfast.model.decoders import json_decoder
from holdfast.model.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler
    from litestar.openapi.spec import Reference, Schema
    from litestar.typing import FieldDefinition

    from holdfast.api.rest._app import Server

_MOST_QUERY: Final = 32 << 10
_NO_BODY: Final = b"{}"
_PLAIN: Final = re.compile(r"[ -~]{1,256}")


class ApiRequest(Request[Any, Any, Any]):
    """A request whose body, if it is empty, is an empty object for what takes one."""

    async def body(self) -> bytes:
        """See `Request.body`."""
        return await super().body() or (_NO_BODY if self.route_handler.opt.get("takes_body") else b"")


async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Let who has a token with the handler's rights pass, before anything else of the request is read; a guard.

    Raises `WebError`: 401, 403, or 429; `NotFoundError` for names in the path that nothing can have.
    """
    raw: bytes = connection.scope["raw_path"]
    if raw.endswith(b"/") or b"//" in raw:  # Litestar routes it like the path without the slash
        raise NotFoundException
    if not all(map(_PLAIN.fullmatch, connection.path_params.values())):
        raise NotFoundError("there is nothing of that name")
    rights = handler.opt.get("rights")
    if rights is None:
        return
    server: Server = connection.app.state.server
    address = connection.client.host if connection.client else "local"
    header = connection.headers.get("authorization")
    loop = asyncio.get_running_loop()
    principal = await loop.run_in_executor(server.threads.tokens, server.admission.admit, address, header)
    connection.scope["auth"] = principal
    check_rate(server.admission.of_tokens.wait(fingerprint(bearer_token(header))))
    principal.require(rights)


async def read_request(request: Request[Any, Any, Any]) -> None:
    """Read the body, and refuse a query that the handler does not know; before the handler's parameters are made.

    Raises `UsageError`; `WebError` for a body that is too large, too slow, or that nothing takes; `GoneError`.
    """
    _check_query(request)
    server: Server = request.app.state.server
    try:
        async with asyncio.timeout(server.settings.request_timeout):
            body = await request.body()
    except TimeoutError:
        raise WebError("too_slow", "the body did not come in time", Connection="close") from None
    except RequestEntityTooLarge:
        raise _too_large(request) from None
    except InternalServerException:
        raise GoneError from None
    if body and not request.route_handler.opt.get("takes_body"):
        raise _too_large(request)


def _too_large(request: Request[Any, Any, Any]) -> WebError:
    most = request.route_handler.resolve_request_max_body_size()
    takes_body = request.route_handler.opt.get("takes_body")
    text = f"a body has at most {most} bytes" if takes_body else "this takes no body"
    return WebError("too_large", text, Connection="close")


def _check_query(request: Request[Any, Any, Any]) -> None:
    raw: bytes = request.scope["query_string"]
    if len(raw) > _MOST_QUERY:
        raise UsageError(f"a query has at most {_MOST_QUERY} bytes")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise UsageError("the query is not UTF-8 in percent encoding") from error
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        raise UsageError("the query has a parameter twice")
    if any("\0" in value for _, value in pairs):
        raise UsageError("the query holds a NUL")
    fields = request.route_handler.parsed_fn_signature.parameters.values()
    known = {one.name for one in fields if isinstance(one.kwarg_definition, QueryParameter)}
    for name in names - known:
        raise UsageError(
            f"the query is not as it has to be: Object contains unknown field `{name}`",
            hint=similar_name(name, known),
            code="invalid",
        )


class JsonBody(AbstractDTO[Any]):
    """How bodies become what the handler's ``data`` is: strictly."""

    def decode_bytes(self, value: bytes) -> Any:
        """``value`` as the handler's type; raises `UsageError`, and `WebError` if it is no JSON."""
        request: Any = self.asgi_connection  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if value is not _NO_BODY and request.content_type[0].lower() != "application/json":
            raise WebError("bad_media_type", "the body has to be JSON", hint="Content-Type: application/json")
        return decode_body(request.route_handler.parsed_data_field.annotation, value)

    @classmethod
    def create_for_field_definition(cls, *_: Any, **__: Any) -> None:
        """Nothing: msgspec decodes, and no backend of Litestar's."""

    @classmethod
    def create_openapi_schema(
        cls,
        field_definition: FieldDefinition,
        handler_id: str,  # noqa: ARG003
        schema_creator: Any,
    ) -> Reference | Schema:
        """See `AbstractDTO`."""
        return schema_creator.for_field_definition(field_definition)


def decode_body(kind: Any, body: bytes) -> Any:
    """``body`` as a ``kind``; raises `UsageError`, with a hint for a field that is called otherwise here."""
    try:
        return json_decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        hint = naming_hint(str(error), kind)
        raise UsageError(f"the body is not as it has to be: {error}", hint=hint, code="invalid") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"the body cannot be read: {error}", code="invalid") from None
