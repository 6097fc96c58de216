"""The work of one request, on a thread: the right store, the key that makes it be done once, the answer as bytes."""

from __future__ import annotations

import asyncio
import re
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.response import Response, Stream

from holdfast.api.rest._problems import WebError, problem, status_of
from holdfast.api.rest._request_context import RawAnswer, RequestCall
from holdfast.model.errors import HoldfastError, LockedError, RefusedError, UsageError, unexpected
from holdfast.model.ids import Hasher
from holdfast.model.log import Log
from holdfast.store.catalog.answer_rows import AnswerRows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from litestar import Request

    from holdfast.api.rest._app import Server
    from holdfast.api.rest._authorization import Principal
    from holdfast.api.rest._store_pool import OpenedStore, StorePool
    from holdfast.model.ids import Hash

    Work = Callable[[RequestCall], Any]

_log = Log(__name__)

IDEMPOTENCY_PATTERN: Final = "^[!-~]{1,128}$"
_KEY = re.compile(IDEMPOTENCY_PATTERN)
_IN_MEMORY: Final = 4 << 20
_PIECE: Final = 1 << 18
_PASSING: Final = frozenset(("moved", "vanished", "changed_meanwhile", "unfinished_restore", "too_many", "paused"))
"""Codes of temporary refusals, which are not kept as the answer to a key."""


class GoneError(Exception):
    """The client left before all of its request had arrived."""


class ParsedRequest(NamedTuple):
    """A request after it was read and checked."""

    server: Server
    principal: Principal
    export: str
    """The export in the path; empty if there is none."""
    changes: bool
    """Whether it may change anything; then a key counts."""
    apart: str
    """The group whose requests wait for each other, as in `endpoint`."""
    key: str | None
    asked: tuple[bytes, ...]
    """Method, path, query and body as they came."""
    request_id: str
    head_only: bool


class HttpAnswer(NamedTuple):
    """An answer: bytes, or a file."""

    status: int
    content: bytes | BinaryIO
    size: int
    headers: Mapping[str, str]

    def response(self, *, head_only: bool = False) -> Response[Any]:
        """The response that sends it. A file is closed in every case."""
        headers = {**self.headers, "content-length": str(self.size)}
        if head_only:
            self.close()
        elif not isinstance(self.content, bytes):
            return Stream(_pieces(self.content), status_code=self.status, headers=headers)
        return Response(b"" if head_only else self.content, status_code=self.status, headers=headers)

    def close(self) -> None:
        """No client wants it any more: a file of it is closed. Harmless a second time."""
        if not isinstance(self.content, bytes):
            self.content.close()


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    with file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


def failure(error: HoldfastError, request_id: str) -> HttpAnswer:
    """An error as an answer."""
    content = msgspec.json.encode(problem(error, request_id))
    headers = dict(error.headers) if isinstance(error, WebError) else {}
    if isinstance(error, LockedError):
        headers.setdefault("Retry-After", "1")
    return HttpAnswer(status_of(error), content, len(content), {**headers, "content-type": "application/problem+json"})


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """The answer for an error that a handler, or Litestar before it, has raised."""
    if isinstance(error, GoneError):
        return Response(b"", status_code=499)
    return failure(translate_error(error), request.scope["state"]["request_id"]).response()


def translate_error(error: Exception) -> HoldfastError:
    """An error as one of ours; a mistake of our own is logged."""
    if isinstance(error, HoldfastError):
        return error
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _refused_by_litestar(error)
    found = unexpected(error)
    _log.exception("a request has failed")
    return found


def _refused_by_litestar(error: HTTPException) -> HoldfastError:
    match error:
        case NotFoundException():
            # In the message and not the hint: a client of HTTP has no command line, but a browser's user may have one.
            message = "there is no such path: this is the REST API; `holdfast ui` shows a workspace in a browser"
            return WebError("no_such_route", message, hint="/api/docs and /api/openapi.json list all paths")
        case MethodNotAllowedException():
            methods = ", ".join(sorted(set((error.headers or {})["allow"].split(", ")) - {"OPTIONS"}))
            return WebError("bad_method", f"this can be asked for with {methods}", Allow=methods)
        case ValidationException(extra=[{"message": message, **more}, *_]):
            what = str(more.get("source", "request")).rpartition(".")[2].lower()
            text = f"the {what} is not as it has to be: {message} - at `$.{more.get('key', '')}`"
            return UsageError(text, code="invalid")
        case _:
            return UsageError(f"the request is not as it has to be: {error.detail}", code="invalid")


def check_key(key: str | None) -> str | None:
    """An ``Idempotency-Key``, if it may be one; raises `UsageError`."""
    if key is not None and not _KEY.match(key):
        raise UsageError("an Idempotency-Key has 1 to 128 printable ASCII characters without spaces")
    return key


def execute_request(stores: StorePool, request: ParsedRequest, work: Work, lasts: float) -> HttpAnswer:
    """Do a request's work and return the answer; never raises. ``lasts``: seconds that a key's answer is kept."""
    try:
        with stores.lend(request.principal.tenant) as store:
            if request.key is None:
                return _done(work(_call(store, request, again=False)))
            return _once(store, request, work, request.key, lasts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
        return failure(translate_error(error), request.request_id)


def is_worked_on(stores: StorePool, request: ParsedRequest) -> bool:
    """True if the same request is in progress; its client then gets an answer without waiting for a turn."""
    if request.key is None:
        return False
    with stores.lend(request.principal.tenant) as store:
        rows = AnswerRows(store.opener.store().catalog, store.opener.clock)
        return rows.is_in_progress(f"{request.principal.token.id}/{request.key}", _asked(request))


def in_flight() -> LockedError:
    """The error for a request that is already in progress."""
    return LockedError(
        "a request with this Idempotency-Key is being worked on", hint="ask again in a moment", code="in_flight"
    )


def _asked(request: ParsedRequest) -> Hash:
    asked = Hasher()
    for part in request.asked:
        asked.update(b"%d:" % len(part))
        asked.update(part)
    return asked.hash()


def _call(store: OpenedStore, request: ParsedRequest, *, again: bool) -> RequestCall:
    return RequestCall(
        server=request.server,
        principal=request.principal,
        store=store,
        request_id=request.request_id,
        again=again,
        key=None if request.key is None else f"{request.principal.token.id}/{request.key}",
    )


def _done(result: Any) -> HttpAnswer:
    if not isinstance(result, RawAnswer):
        content = msgspec.json.encode(result)
        return HttpAnswer(200, content, len(content), {"content-type": "application/json"})
    # Read everything before the first byte is sent, so that damage is an error and not half a file.
    spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - who sends it closes it
    try:
        for piece in result.pieces:
            spool.write(piece)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return HttpAnswer(200, spool, result.size, result.headers)  # type: ignore[arg-type]


# -- once --------------------------------------------------------------------------------------------------------


def _once(store: OpenedStore, request: ParsedRequest, work: Work, key: str, lasts: float) -> HttpAnswer:
    rows = AnswerRows(store.opener.store().catalog, store.opener.clock)
    name = f"{request.principal.token.id}/{key}"
    asked = _asked(request)
    found = rows.begin(name, asked, lasts)
    if found is not None:
        if found.request != asked:
            raise WebError(
                "key_reused", "this Idempotency-Key was sent with another request", hint="use a new key for each"
            )
        if found.status is not None:
            kind = "application/json" if found.status < 400 else "application/problem+json"
            headers = {"content-type": kind, "idempotent-replayed": "true"}
            return HttpAnswer(found.status, found.body, len(found.body), headers)
        if not found.lost:
            raise in_flight()
        _log.warning("a request that was cut short is taken up again", request_id=request.request_id)
    again = found is not None
    try:
        answer = _done(work(_call(store, request, again=again)))
    except Exception as error:
        failed = translate_error(error)
        answer = failure(failed, request.request_id)
        if answer.status >= 500 or (again and _passes(failed)):
            rows.mark_lost(name)
        elif _passes(failed):
            rows.drop(name)
        else:
            assert isinstance(answer.content, bytes)
            rows.end(name, answer.status, answer.content)
        if failed is error:
            raise
        raise failed from error
    except BaseException:
        rows.mark_lost(name)
        raise
    assert isinstance(answer.content, bytes)
    rows.end(name, answer.status, answer.content)
    return answer


def _passes(error: HoldfastError) -> bool:
    """Whether the same request may be done the next time."""
    return isinstance(error, LockedError) or (isinstance(error, RefusedError) and error.code in _PASSING)
