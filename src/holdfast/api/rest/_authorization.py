"""Who may ask for what: tokens, and where a request comes from."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.api.rest._problems import WebError
from holdfast.engine.exports.tokens import RIGHTS, authenticate
from holdfast.model.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.api.rest._store_pool import OpenedStore
    from holdfast.model.clock import Clock
    from holdfast.store.catalog.token_rows import Rights, TokenRow
    from holdfast.store.database.sql_database import Database

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_REMEMBERED: Final = 10_000
"""Names of whom it is known how often they have asked."""


class Principal(NamedTuple):
    """Who asks."""

    tenant: str
    token: TokenRow

    def require(self, rights: Rights) -> None:
        """Raise `WebError` (403) for a token with less than these rights."""
        if RIGHTS.index(self.token.rights) < RIGHTS.index(rights):
            raise WebError(
                "forbidden",
                f"this token may only {self.token.rights}; {rights} is needed",
                hint=f"use a token with the rights {rights}",
            )

    def may_see(self, export: str) -> bool:
        """Whether the token is for this export."""
        return not self.token.exports or export in self.token.exports

    def check_export(self, export: str) -> str:
        """``export``; raises `NotFoundError`, as for a missing one, if the token does not include it."""
        if not self.may_see(export):
            raise NotFoundError(f"there is no export {export}", hint="GET /api/exports lists them", code="no_export")
        return export

    def require_all_exports(self) -> None:
        """Raise `WebError` (403) for a token that is for some exports alone."""
        if self.token.exports:
            raise WebError("forbidden", "this token is for some exports alone, and makes no others")


class Rates:
    """A limit of requests a minute for each key, which is also the largest burst. For one thread."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._most = float(max(per_minute, 1))
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, who: str) -> float:
        """0.0 if ``who`` may ask now, which counts; else how many seconds they have to wait."""
        now = time.monotonic()
        left, at = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._left[who] = (left - (0 if wait else 1), now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return wait

    def is_spent(self, who: str) -> float:
        """As `wait`, without counting."""
        left, at = self._left.get(who, (self._most, 0.0))
        left = min(self._most, left + (time.monotonic() - at) * self._per_second)
        return 0.0 if left >= 1 else (1 - left) / self._per_second


class Authorizer(NamedTuple):
    """Decides which requests are allowed."""

    tokens: OpenedStore
    """A store for the thread that looks up tokens."""
    origins: Origins
    of_tokens: Rates
    """How often each token may ask."""
    of_addresses: Rates
    """How often each address may ask with no token, or a wrong one."""
    clock: Clock

    def look_up(self, text: str) -> Principal:
        """Who has the token ``text``; raises `WebError` (401). On the thread of ``tokens`` alone."""
        found = authenticate(self.database, text, self.clock.now())
        if found is None:
            raise _unauthorized("this token is not known, or not valid any more")
        return Principal(*found)

    def admit(self, address: str, header: str | None) -> Principal:
        """Who has the token in the ``Authorization`` header; raises `WebError`: 401, or 429 where the address has asked
        too often without one. On the thread of ``tokens`` alone: requests that come at once are counted one by one.
        """
        check_rate(self.of_addresses.is_spent(address))
        try:
            return self.look_up(bearer_token(header))
        except WebError:
            self.of_addresses.wait(address)
            raise

    @property
    def database(self) -> Database:
        """The database that holds the tokens, likewise."""
        return self.tokens.opener.store().catalog.database


def check_rate(wait: float) -> None:
    """Raise `WebError` (429) if the client must wait."""
    if wait > 0:
        seconds = str(max(1, round(wait + 0.5)))
        raise WebError("too_many", f"too many requests: wait {seconds} s", Retry_After=seconds)


def bearer_token(header: str | None) -> str:
    """The bearer token of a request; raises `WebError` (401) if it has none."""
    kind, _, text = (header or "").partition(" ")
    if kind.lower() != "bearer" or not text.strip():
        raise _unauthorized("a token is needed")
    return text.strip()


def _unauthorized(message: str) -> WebError:
    return WebError(
        "unauthorized",
        message,
        hint="send it as `Authorization: Bearer …`",
        WWW_Authenticate='Bearer realm="holdfast"',
    )


class Origins:
    """From where a request may come. A page that a browser shows can make it send requests here: to a name that leads
    to this machine (DNS rebinding), or with an origin that is not ours.
    """

    def __init__(self, hosts: Collection[str], origins: Sequence[str], *, any_host: bool) -> None:
        """``hosts``: names, in lower case, that a request may ask for, with any port; ``any_host``: there is no name to
        check, as on a Unix socket.
        """
        self._hosts = {_without_port(host) for host in hosts}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._any_host = any_host

    def check(self, host: str | None, origin: str | None) -> None:
        """Raise `WebError` (403) for a foreign host or origin."""
        if not self._any_host and _without_port(host or "") not in self._hosts:
            raise WebError(
                "foreign_host", "this server is not known by that name", hint="serve.hosts lists the names it has"
            )
        if origin is not None and origin.rstrip("/").lower() not in self._origins:
            raise WebError(
                "foreign_origin", "pages of that origin may not ask", hint="serve.origins lists those that may"
            )


def hosts_of(address: str) -> list[str]:
    """The names that a server has which listens at ``address``."""
    return [*_LOOPBACK, f"[{address}]" if ":" in address else address]


def _without_port(host: str) -> str:
    """The name in a Host header, which may be followed by a port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def fingerprint(text: str) -> str:
    """A name for a token where its text must not appear, as in the table of rates."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
