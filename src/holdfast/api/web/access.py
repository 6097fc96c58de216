"""Access to `holdfast ui`: only the browser with the one-time token, and no other page in that browser.

Any page in a browser can cause requests to this server. So a request must have three things: our own address as its
host (DNS rebinding), no foreign origin, other ports of this machine included, and our cookie. The token in the address
is exchanged for the cookie, once. The cookie's path is unknown to other servers on this machine: browsers send cookies
to every port of a host.

Other processes of the user, such as an agent's, can read token and cookie. So a login or a change must also come from
an allowed process (`holdfast.api.web.peers`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qs

from holdfast.api.web.addresses import Query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Message, Receive, Scope, Send

    from holdfast.api.web.peers import Peers

COOKIE: Final = "holdfast"
FORM_HEADER: Final = "x-holdfast-form"
"""The header of a request that changes something: a form of another page cannot add one."""
FORM_FIELD: Final = "form"
"""Where a plain form says the same, which can add no header either."""
MOST_FORM_BYTES: Final = 512 << 10
"""Of the body of a form."""
_MOST_DIGITS: Final = 9
_BODY_SECONDS: Final = 15.0
"""For so long a body may take to come."""

_SAFE_METHODS: Final = ("GET", "HEAD")
_OWN_SITES: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests by our own page or by the user."""

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # With no-referrer, a browser would send no origin with a plain form either.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), clipboard-read=()",
    "cache-control": "no-store",
}
"""Headers of every answer, unless a page sets its own."""


class Access:
    """The one-time token, and the cookie that it is exchanged for. On the loop's thread alone."""

    def __init__(self) -> None:
        self.base = f"/{secrets.token_hex(6)}"
        """Where all pages are."""
        self.form_token = secrets.token_urlsafe(16)
        self._token: str | None = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)

    @property
    def entry(self) -> str:
        """The path and query that lets one browser in, once."""
        return f"{self.base}/enter?token={self._token}"

    def is_token(self, token: str) -> bool:
        """Whether it is the right token, and was not exchanged yet."""
        return self._token is not None and hmac.compare_digest(token.encode(), self._token.encode())

    def exchange(self, token: str) -> str | None:
        """The ``Set-Cookie`` for the right token, which is void from then on; None for another one."""
        if not self.is_token(token):
            return None
        self._token = None
        return f"{COOKIE}={self._cookie}; Path={self.base}; HttpOnly; SameSite=Strict"

    def is_cookie(self, header: str) -> bool:
        """Whether a ``Cookie`` header has the cookie."""
        try:
            found = SimpleCookie(header).get(COOKIE)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())

    def is_form_token(self, given: str) -> bool:
        """True if a request has the token that our pages send with every change."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.form_token.encode())


_NOT_BY_A_PAGE: Final = (403, "A page of this server has to ask for a change.")


class Gate:
    """Lets requests through to the pages that `Access` allows, and sees to the headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access, authority: str, peers: Peers) -> None:
        """``authority``: the address and port that we listen at, as a browser names them."""
        self._app = app
        self._access = access
        self._authority = authority
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":  # lifespan events; there are no WebSockets
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                there = {name.lower() for name, _ in headers}
                headers += [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there
                ]
                message["headers"] = headers
            await send(message)

        headers = _Headers(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send_with_headers, *refusal)
        elif scope["path"] == f"{self._access.base}/enter":
            await self._enter(scope, headers, send_with_headers)
        elif scope["method"] in _SAFE_METHODS:
            await self._app(scope, receive, send_with_headers)
        else:
            await self._change(scope, headers, receive, send_with_headers)

    async def _peer_refusal(self, scope: HTTPScope, *, enters: bool = False) -> str | None:
        """Why the process that asks may change nothing; None if it may."""
        server = scope["server"]
        at = (server[0], server[1]) if server is not None and server[1] is not None else None
        return await asyncio.to_thread(self._peers.refusal, scope["client"], at, enters=enters)

    def _refusal(self, scope: HTTPScope, headers: _Headers) -> tuple[int, str] | None:
        """Status and reason, if a request may not come in."""
        if headers.one("host") != self._authority:
            return 403, f"This server is http://{self._authority} and has no other name."
        origin = headers.one("origin")
        if origin is not None and origin != f"http://{self._authority}":
            return 403, "Pages of another origin may not ask."
        if scope["path"] == f"{self._access.base}/enter":
            # The token may come from any page, such as one that shows a terminal. A HEAD request, as for a preview of a
            # link, is no login.
            return None if scope["method"] == "GET" else (405, "This address is only read.")
        if headers.one("sec-fetch-site") not in (None, *_OWN_SITES):
            return 403, "Pages of another origin may not ask."
        cookie = headers.one("cookie")
        if cookie is None or not self._access.is_cookie(cookie):
            return 401, "Open the address that `holdfast ui` has printed; it lets one browser in, once."
        if scope["method"] not in _SAFE_METHODS:
            form = headers.one(FORM_HEADER)
            if origin is None or (form is not None and not self._access.is_form_token(form)):
                return _NOT_BY_A_PAGE
        return None

    async def _change(self, scope: HTTPScope, headers: _Headers, receive: Receive, send: Send) -> None:
        """Let a change through if one of our pages asked for it and its process may. A plain form has the token in a
        field. The body is read here, within limits, and given to the app again.
        """
        is_form = headers.one(FORM_HEADER) is None
        kind = (headers.one("content-type") or "").partition(";")[0].strip().lower()
        if is_form and kind != "application/x-www-form-urlencoded":
            await _answer(send, *_NOT_BY_A_PAGE)
            return
        length = headers.one("content-length") or "0"
        if not length.isdigit() or len(length) > _MOST_DIGITS or int(length) > MOST_FORM_BYTES:
            await _answer(send, 413, "This form is too large.")
            return
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _body(receive)
        except TimeoutError:
            await _answer(send, 408, "This form did not come in time.")
            return
        if body is None:
            await _answer(send, 413, "This form is too large.")
        elif is_form and not self._access.is_form_token(Query(body).text(FORM_FIELD)):
            await _answer(send, *_NOT_BY_A_PAGE)
        # Last, close to the change: the connection may have passed to another process since.
        elif (reason := await self._peer_refusal(scope)) is not None:
            await _answer(send, 403, reason)
        else:
            await self._app(scope, _given_again(body, receive), send)

    async def _enter(self, scope: HTTPScope, headers: _Headers, send: Send) -> None:
        token = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[-1]
        if self._access.is_token(token) and (reason := await self._peer_refusal(scope, enters=True)) is not None:
            await _answer(send, 403, reason)
            return
        cookie = self._access.exchange(token)
        if cookie is None:
            if self._access.is_cookie(headers.one("cookie") or ""):
                await _answer(send, 303, "", [("location", f"{self._access.base}/")])
            else:
                reason = "This address has let a browser in already. Start `holdfast ui` again for a new one."
                await _answer(send, 403, reason)
            return
        # The browser would count a redirect as caused by the clicked page, and send no strict cookie.
        page = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>'
            f'<link rel="icon" href="{self._access.base}/static/0/icon.svg">'
            f'<meta http-equiv="refresh" content="0;url={self._access.base}/">'
            f'<p><a href="{self._access.base}/">Go to the timeline</a></p></html>'
        )
        await _answer(send, 200, page, [("set-cookie", cookie)], kind="text/html")


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; None if it is larger than a form may be, or its sender is gone."""
    parts: list[bytes] = []
    total, goes_on = 0, True
    while goes_on:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message["body"])
        total += len(parts[-1])
        if total > MOST_FORM_BYTES:
            return None
        goes_on = message.get("more_body", False)
    return b"".join(parts)


def _given_again(body: bytes, receive: Receive) -> Receive:
    """An ASGI receive function that first returns the body that was read."""
    given = [body]

    async def receive_again() -> HTTPReceiveMessage:
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        return cast("HTTPReceiveMessage", await receive())

    return receive_again


class _Headers:
    """The headers of a request. A header that occurs twice counts as an empty one, not as missing."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._all: dict[str, list[str]] = {}
        for name, value in raw:
            self._all.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str | None:
        values = self._all.get(name)
        return None if values is None else values[0] if len(values) == 1 else ""


async def _answer(
    send: Send, status: int, body: str, headers: Iterable[tuple[str, str]] = (), *, kind: str = "text/plain"
) -> None:
    content = body.encode() + (b"\n" if body and kind == "text/plain" else b"")
    said = [("content-type", f"{kind}; charset=utf-8"), ("content-length", str(len(content))), *headers]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in said],
        }
    )
    await send({"type": "http.response.body", "body": content, "more_body": False})
