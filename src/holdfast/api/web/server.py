"""Serving the page on loopback from beginning to end: the workspaces, the gate, the server, and its end by a signal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from litestar import Litestar

from holdfast.api._http_server import HttpLimits, serve_http, tcp_listener
from holdfast.api.web.access import Access, Gate
from holdfast.api.web.highlight import pieces
from holdfast.api.web.pages import WebFace, web_router
from holdfast.api.web.peers import Peers
from holdfast.api.web.workspaces import Workspaces
from holdfast.model.clock import SystemClock
from holdfast.model.log import install_sender
from holdfast.model.log_format import adopt

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from litestar.types import ASGIApp

    from holdfast.engine.workspace.workspace import Workspace

_HOST: Final = "127.0.0.1"
_LIMITS: Final = HttpLimits(connections=64, end_seconds=2)


class UiOptions(NamedTuple):
    """What to show, and where."""

    open_workspace: Callable[[], Workspace]
    port: int = 0
    """0: one that is free."""
    ready: Callable[[str], None] = lambda _: None
    """Called with the address that lets one browser in, once it can come."""
    may_hide: bool = False
    """See `Peers`: the address is given to no process as an argument."""


def make_app(
    workspaces: Workspaces, access: Access, authority: str, peers: Peers, ending: Callable[[], bool]
) -> ASGIApp:
    """The page behind its gate. ``authority``: address and port as a browser names them."""
    face = WebFace(workspaces, access.base, access.form_token, SystemClock(), ending)
    router = web_router(face)
    # A router alone does not answer an address without a route.
    handlers = cast("Any", router).exception_handlers  # Litestar does not annotate their types
    app = Litestar([router], exception_handlers=handlers, openapi_config=None, logging_config=None)
    return Gate(app, access, authority, peers)


def serve_ui(options: UiOptions) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises `StorageError` where the port is taken."""
    install_sender()
    adopt("uvicorn.error")
    workspaces = Workspaces(options.open_workspace)
    try:
        with workspaces.borrow() as workspace:
            # Load what the first pages need: a long history, and the languages of source files.
            workspace.log_page(limit=1)
        pieces(b"a.py", [""])
        with tcp_listener(_HOST, options.port, hint="without --port a free one is taken") as listener:
            asyncio.run(_run(workspaces, listener, options))
    finally:
        workspaces.close()


async def _run(workspaces: Workspaces, listener: socket.socket, options: UiOptions) -> None:
    access, has_ended = Access(), asyncio.Event()
    authority = f"{_HOST}:{listener.getsockname()[1]}"
    await serve_http(
        make_app(workspaces, access, authority, Peers(may_hide=options.may_hide), has_ended.is_set),
        listener,
        _LIMITS,
        ready=lambda: options.ready(f"http://{authority}{access.entry}"),
        ending=has_ended.set,
    )
