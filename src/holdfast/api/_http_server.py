"""An application over HTTP: its socket, uvicorn with our limits, and its end by a signal; the same for every face."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_log = Log(__name__)

BACKLOG: Final = 128
_HEAD_TIMEOUT: Final = 15.0
_MOST_HEAD: Final = 64 << 10


class HttpLimits(NamedTuple):
    """How much a server takes."""

    connections: int
    """At once; others get 503."""
    end_seconds: float
    """How long requests may continue after a signal."""


@contextmanager
def tcp_listener(host: str, port: int, *, hint: str) -> Generator[socket.socket]:
    """A socket that listens at an IP address or ``localhost``; port 0 chooses a free one. Raises `StorageError` with
    ``hint`` if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # IPPROTO_TCP makes asyncio send small writes at once; otherwise each answer may take 40 ms more.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(("127.0.0.1" if host == "localhost" else host, port))
            bound.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            raise StorageError(
                f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}", hint=hint
            ) from error
        bound.setblocking(False)
        yield bound


async def serve_http(
    app: Any, listener: socket.socket, limits: HttpLimits, *, ready: Callable[[], None], ending: Callable[[], None]
) -> None:
    """Serve the ASGI application ``app`` until SIGTERM, SIGINT or SIGHUP; streams have to end by themselves then.

    ``ready`` is called once clients can come, ``ending`` when a signal has come, while requests are still worked on.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=int(_HEAD_TIMEOUT),
            timeout_graceful_shutdown=int(limits.end_seconds),
            h11_max_incomplete_event_size=_MOST_HEAD,
        ),
        ready,
    )

    def end() -> None:
        ending()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """The server, which leaves signals to us: uvicorn would raise them again when it has ended."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server.startup`."""
        await super().startup(sockets)
        if self.started:
            try:
                self._ready()
            except (OSError, HoldfastError) as error:  # A reader of the address that has gone ends no server.
                _log.warning("cannot tell where it listens: %s", error)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """See `uvicorn.Server.capture_signals`."""
        yield


class _Protocol(H11Protocol):
    """HTTP, with a limit of time for the head of a request: uvicorn has one between requests alone."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See `asyncio.Protocol.connection_made`."""
        super().connection_made(transport)
        self._limit = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol.connection_lost`."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol.data_received`."""
        before: RequestResponseCycle | None = getattr(self, "cycle", None)
        if self._limit is None and before is not None and before.response_complete:
            self._limit = asyncio.get_running_loop().call_later(_HEAD_TIMEOUT, self._too_late)
        super().data_received(data)
        if self._limit is not None and self.cycle is not before:
            self._limit.cancel()
            self._limit = None

    def _too_late(self) -> None:
        self._limit = None
        if not self.transport.is_closing():
            self.transport.close()
