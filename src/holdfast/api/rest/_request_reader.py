"""A request as it comes in: its query and its body, in bounds of size and time, and of the types they have to have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from holdfast.api._field_names import naming_hint
from holdfast.api.rest._problems import WebError
from holdfast.api.rest._request_types import NoBody
from holdfast.model.decoders import converted, json_decoder
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.datastructures import Headers
    from starlette.types import Message, Receive, Scope

    from holdfast.api.rest._endpoints import Endpoint
    from holdfast.api.rest._request_types import Body

_MOST_QUERY: Final = 32 << 10


class IncomingRequest(NamedTuple):
    """A request, before anything of it was looked at but its head."""

    scope: Scope
    receive: Receive
    headers: Headers
    request_id: str
    more: dict[str, str]
    """Headers of the answer that do not depend on what it is."""


class GoneError(Exception):
    """The client has gone before all of its request was there."""


def query_of(endpoint: Endpoint, raw: bytes) -> Any:
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
    return _converted(lambda: converted(found, endpoint.query, strict=False), "the query", endpoint.query)


async def receive_body(given: IncomingRequest, *, most: int, seconds: float) -> bytes:
    """The body: at most ``most`` bytes, within ``seconds``. Raises `WebError`, and `GoneError`."""
    said = given.headers.get("content-length", "0")
    if said.isdigit() and len(said) < 20 and int(said) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message: Message = await given.receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise WebError("too_slow", "the body did not come in time", Connection="close") from None


def body_of(endpoint: Endpoint, headers: Headers, body: bytes) -> Any:
    """What the body holds; raises `UsageError`. An empty one is an empty object."""
    if endpoint.body is NoBody:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise WebError("bad_media_type", "the body has to be JSON", hint="Content-Type: application/json")
    return _converted(lambda: json_decoder(endpoint.body).decode(body or b"{}"), "the body", endpoint.body)


def _converted(convert: Callable[[], Any], what: str, kind: type[Body]) -> Any:
    try:
        return convert()
    except msgspec.ValidationError as error:
        naming = naming_hint(str(error), kind)
        raise UsageError(f"{what} is not as it has to be: {error}", hint=naming, code="invalid") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read: {error}", code="invalid") from None


def _too_large(most: int) -> WebError:
    if not most:
        return WebError("too_large", "this takes no body", Connection="close")
    return WebError("too_large", f"a body has at most {most} bytes", Connection="close")
