"""Serving from beginning to end: one client on standard input and output, or several on a socket."""

from __future__ import annotations

import fcntl
import os
import signal
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio

from holdfast.api.mcp._dispatch import build
from holdfast.api.mcp._shared_host import SharedHost, client
from holdfast.api.mcp._transport import Connection, RefusedClient
from holdfast.api.mcp.authenticated_socket import MOST_CLIENTS, MOST_STRANGERS, listen_with_token
from holdfast.model.log import Log, install_sender
from holdfast.model.log_format import adopt

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

    from mcp.server.lowlevel import Server

    from holdfast.api.mcp.authenticated_socket import TokenSocket
    from holdfast.engine.hosting.host import Host
    from holdfast.engine.hosting.monitor import HostEvent
    from holdfast.engine.hosting.working_directory import HostedDirectory

_log = Log(__name__)

_LIBRARIES = ("mcp", "asyncio")


class ServeOptions(NamedTuple):
    """What to serve, and where."""

    open_host: Callable[[Callable[[HostedDirectory, HostEvent], object]], Host]
    forks: bytes | None = None
    socket: bytes | None = None
    """None: standard input and output."""
    listening: Callable[[bytes], object] = lambda _path: None
    """Called when clients can connect."""


def serve(serving: ServeOptions) -> None:
    """Serve until the client is gone (on a socket: until a signal comes); commands that run then are ended."""
    install_sender()
    for name in _LIBRARIES:
        adopt(name)
    anyio.run(_serve, serving)


async def _serve(serving: ServeOptions) -> None:
    # A failure to start is raised as it is, not inside an exception group.
    with nullcontext() if serving.socket is None else listen_with_token(serving.socket) as listener:
        host = SharedHost(serving.open_host, forks=serving.forks)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_on_signals, group.cancel_scope)
                await host.recover()
                if listener is None:
                    await _serve_standard(build(host))
                else:
                    serving.listening(listener.path)
                    await _serve_socket(host, build(host), listener)
                group.cancel_scope.cancel()
        finally:
            await host.close()


async def _stop_on_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            _log.info("stopping", signal=signal.Signals(number).name)
            scope.cancel()


async def _serve_standard(server: Server[object]) -> None:
    """Serve the one client of this process. Other input and output of the process stays out of the protocol (I13)."""
    reader, writer = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        await _serve_client(server, Connection(reader, writer))
    finally:
        os.dup2(reader, 0)
        os.dup2(writer, 1)
        os.close(reader)
        os.close(writer)


async def _serve_socket(host: SharedHost, server: Server[object], listener: TokenSocket) -> None:
    clients = anyio.CapacityLimiter(MOST_CLIENTS)
    strangers: deque[anyio.CancelScope] = deque()
    number = 0
    async with anyio.create_task_group() as group:
        while True:
            await anyio.wait_readable(listener.listener)
            connection = listener.accept()
            if connection is not None:
                number += 1
                group.start_soon(_serve_guest, host, server, listener, connection, strangers, clients, f"{number}-")


async def _serve_guest(
    host: SharedHost,
    server: Server[object],
    listener: TokenSocket,
    connection: socket.socket,
    strangers: deque[anyio.CancelScope],
    clients: anyio.CapacityLimiter,
    name: str,
) -> None:
    """Admit a client that shows the token. ``strangers`` have not shown theirs yet: they take no client's place,
    and if there are many, the oldest is disconnected.
    """
    client.set(name)
    with connection:
        guest = Connection(connection.fileno(), connection.fileno())
        try:
            with anyio.CancelScope() as scope:
                strangers.append(scope)
                if len(strangers) > MOST_STRANGERS:
                    strangers.popleft().cancel()
                try:
                    await guest.authorise(listener.fits)
                finally:
                    with suppress(ValueError):  # disconnected while it was a stranger
                        strangers.remove(scope)
            if scope.cancelled_caught:
                _log.warning("refused a client that had not said the token: %d more came", MOST_STRANGERS)
                return
            with _place(clients):
                try:
                    await _serve_client(server, guest)
                finally:
                    with anyio.CancelScope(shield=True):
                        await host.end_client(name)
        except RefusedClient:
            return
        except anyio.WouldBlock:
            _log.warning("refused a client: there are %d already", MOST_CLIENTS)
        except OSError as error:
            _log.info("a client is gone: %s", error.strerror)


@contextmanager
def _place(clients: anyio.CapacityLimiter) -> Generator[None]:
    """A client's place for the length of the block. Raises `anyio.WouldBlock` if all are taken."""
    clients.acquire_nowait()
    try:
        yield
    finally:
        clients.release()


async def _serve_client(server: Server[object], connection: Connection) -> None:
    async with connection.streams() as (read, write):
        await server.run(read, write, server.create_initialization_options())
