"""Serving the page on loopback from beginning to end: the socket, the server, and its end by a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from litestar import Litestar

from holdfast.api.web.access import Access, Gate
from holdfast.api.web.highlight import pieces
from holdfast.api.web.pages import WebFace, web_router
from holdfast.api.web.workspaces import Workspaces
from holdfast.model.clock import SystemClock
from holdfast.model.errors import StorageError
from holdfast.model.log import install_sender
from holdfast.model.log_format import adopt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from litestar.types import ASGIApp

    from holdfast.engine.workspace.workspace import Workspace

_HOST = "127.0.0.1"
_BACKLOG = 64
_MOST_CONNECTIONS = 64
_IDLE_SECONDS = 15
_END_SECONDS = 2
_MOST_HEAD = 64 << 10


class UiOptions(NamedTuple):
    """What is shown, and where."""

    open_workspace: Callable[[], Workspace]
    port: int = 0
    """0: one that is free."""
    ready: Callable[[str], None] | None = None
    """Called with the address that lets one browser in, once it can come."""


def make_app(workspaces: Workspaces, access: Access, authority: str, ending: Callable[[], bool]) -> ASGIApp:
    """The page behind its gate. ``authority``: address and port as a browser names them."""
    face = WebFace(workspaces, access.base, access.form_token, SystemClock(), ending)
    app = Litestar([web_router(face)], openapi_config=None, logging_config=None)
    return Gate(app, access, authority)


def serve_ui(options: UiOptions) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises `StorageError` where the port is taken."""
    install_sender()
    adopt("uvicorn.error")
    workspaces = Workspaces(options.open_workspace)
    try:
        with workspaces.borrow() as workspace:
            # (What the first pages would have to load: a long history, and the languages of source files.)
            workspace.log_page(limit=1)
        pieces(b"a.py", [""])
        with _listener(options.port) as listener:
            asyncio.run(_run(workspaces, listener, options.ready))
    finally:
        workspaces.close()


@contextmanager
def _listener(port: int) -> Generator[socket.socket]:
    # (With the protocol named, asyncio sends what is there at once.)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((_HOST, port))
            bound.listen(_BACKLOG)
        except (OSError, OverflowError) as error:
            raise StorageError(
                f"cannot listen at {_HOST}:{port}: {getattr(error, 'strerror', None) or error}",
                hint="without --port a free one is taken",
            ) from error
        bound.setblocking(False)
        yield bound


async def _run(workspaces: Workspaces, listener: socket.socket, ready: Callable[[str], None] | None) -> None:
    access = Access()
    authority = f"{_HOST}:{listener.getsockname()[1]}"
    app = make_app(workspaces, access, authority, lambda: server.should_exit)
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_END_SECONDS,
            h11_max_incomplete_event_size=_MOST_HEAD,
        )
    )
    loop = asyncio.get_running_loop()

    def end() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)

    async def tell() -> None:
        while not server.started and not server.should_exit:
            await asyncio.sleep(0.005)
        if ready is not None and server.started:
            ready(f"http://{authority}{access.entry}")

    telling = asyncio.ensure_future(tell())
    try:
        await server.serve(sockets=[listener])
    finally:
        telling.cancel()


class _Server(uvicorn.Server):
    """The server, which leaves signals to us: uvicorn would raise them again when it has ended."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """See `uvicorn.Server.capture_signals`."""
        yield
