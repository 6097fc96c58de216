"""Answers on their way out: as JSON or text, from memory or from a file, and as a stream of events."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.api.rest._request_execution import HttpAnswer
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.types import Message, Receive, Send

    from holdfast.api.rest._request_reader import IncomingRequest

_LOG = Log(__name__)
_PIECE: Final = 1 << 18
_LOOK_AGAIN: Final = 10.0
"""Seconds after which it is asked again whether a client may still listen."""
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


def as_json(value: Any, *, status: int = 200) -> HttpAnswer:
    """``value`` as an answer."""
    content = msgspec.json.encode(value)
    return HttpAnswer(status, content, len(content), {"content-type": "application/json"})


def as_text(content: str, kind: str) -> HttpAnswer:
    """``content`` as an answer of a media type."""
    encoded = content.encode()
    return HttpAnswer(200, encoded, len(encoded), {"content-type": f"{kind}; charset=utf-8"})


async def send_preflight(send: Send, given: IncomingRequest) -> None:
    """Tell a browser what its page may ask."""
    await send(_start(204, _PREFLIGHT, given))
    await _end(send)


async def send_answer(send: Send, answer: HttpAnswer, given: IncomingRequest, *, head_only: bool) -> None:
    """Send all of an answer, or its head alone; a file is closed, whatever happens."""
    content = answer.content
    try:
        await send(_start(answer.status, {**answer.headers, "content-length": str(answer.size)}, given))
        if head_only:
            await _end(send)
            return
        if isinstance(content, bytes):
            await send({"type": "http.response.body", "body": content})
            return
        while piece := await asyncio.to_thread(content.read, _PIECE):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await _end(send)
    finally:
        answer.close()


async def begin_events(send: Send, given: IncomingRequest) -> None:
    """The head of a stream of events."""
    await send(_start(200, {"content-type": "text/event-stream", "x-accel-buffering": "no"}, given))


async def stream_answer(
    events: AsyncIterator[bytes], receive: Receive, send: Send, may_listen: Callable[[], Awaitable[bool]]
) -> None:
    """Send events, behind `begin_events`, until they end, the client goes, or it may not listen any more.

    What goes wrong here ends them, and is in the log: the answer has begun, and can be no other.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        try:
            await _pass_on(events, gone, send, may_listen)
        except Exception:  # noqa: BLE001 - whatever it is, it is told in the log
            _LOG.exception("a stream of events has ended by an error")
        await _end(send)
    finally:
        gone.cancel()
        await events.aclose()  # type: ignore[attr-defined]


async def _pass_on(
    events: AsyncIterator[bytes], gone: asyncio.Future[None], send: Send, may_listen: Callable[[], Awaitable[bool]]
) -> None:
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
        if time.monotonic() - checked > _LOOK_AGAIN:
            checked = time.monotonic()
            if not await may_listen():
                return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


def _start(status: int, headers: Mapping[str, str], given: IncomingRequest) -> Message:
    every = {**_SAFE, **headers, **given.more, "x-request-id": given.request_id}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in every.items()]
    return {"type": "http.response.start", "status": status, "headers": raw}
