"""Makes a box's allowed connections, from outside of it.

It is a process in the host's network with listening sockets in the box's, to which `_firewall.nft_rules` redirect
connections. It checks the original destination of each against the policy once more, and then copies data in both
directions. It ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import struct
from ipaddress import ip_address
from typing import TYPE_CHECKING

from holdfast.sandbox._firewall import DNS_PORT, admits

if TYPE_CHECKING:
    from holdfast.sandbox.policy import AllowedConnections

_PIECE = 1 << 18
_MOST_CONNECTIONS = 500
_MOST_QUESTIONS = 200
_PATIENCE_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_MAX_DATAGRAM = 1 << 16
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST
_PR_SET_PDEATHSIG = 1


def main(channel: int, allow: AllowedConnections, starter: int) -> None:
    """Take the listening sockets over that come on ``channel`` (for IPv4, for IPv6, then one for each name server), and
    serve until the process ``starter``, whose child this is, ends.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != starter:
        return
    os.setsid()  # the command's terminal signals must not reach it
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    # Not `holdfast.ipc`: the programs that enter a box use the standard library alone, and pass sockets once.
    with socket.socket(fileno=channel) as talk:
        _, fds, _, _ = socket.recv_fds(talk, 1, 2 + len(allow.dns))
    sockets = [socket.socket(fileno=fd) for fd in fds]
    if len(sockets) == 2 + len(allow.dns):
        asyncio.run(_serve(allow, sockets))


async def _serve(allow: AllowedConnections, sockets: list[socket.socket]) -> None:
    relay = _Relay(allow)
    for listening in sockets[:2]:
        await asyncio.start_server(relay.connected, sock=listening)
    loop = asyncio.get_running_loop()
    for asked, server in zip(sockets[2:], allow.dns, strict=True):
        await loop.create_datagram_endpoint(lambda server=server: _NameServerRelay(str(server)), sock=asked)
    await asyncio.Event().wait()


class _Relay:
    def __init__(self, allow: AllowedConnections) -> None:
        self._allow = allow
        self._count = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            await self._carry(reader, writer)
        except (OSError, TimeoutError):
            _reset(writer)
        finally:
            self._count -= 1

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = original_destination(writer.get_extra_info("socket"))
        if self._count > _MOST_CONNECTIONS or not admits(self._allow, address, port):
            _reset(writer)
            return
        async with asyncio.timeout(_PATIENCE_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(address, port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer))
                both.create_task(_copy(far_reader, writer))
        except* OSError:
            _reset(writer)
            _reset(far_writer)
        for end in (writer, far_writer):
            end.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE):
        sink.write(piece)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side sees a failure, and not an end."""
    own = writer.get_extra_info("socket")
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    except OSError:
        pass  # it has ended by itself
    writer.transport.abort()


def original_destination(connection: socket.socket) -> tuple[str, int]:
    """The original destination of a redirected connection. Raises `OSError` if it was not redirected."""
    if connection.family == socket.AF_INET:
        found = connection.getsockopt(socket.SOL_IP, _ORIGINAL_DESTINATION, 16)
        _, port, address = struct.unpack_from("!HH4s", found)
        return socket.inet_ntop(socket.AF_INET, address), port
    found = connection.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DESTINATION, 28)
    _, port, _, address = struct.unpack_from("!HHI16s", found)
    return socket.inet_ntop(socket.AF_INET6, address), port


class _NameServerRelay(asyncio.DatagramProtocol):
    """Questions to one name server: each from a socket of its own, so that only its answer comes back."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._waiting: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(self._waiting) < _MOST_QUESTIONS:
            task = asyncio.get_running_loop().create_task(self._ask(data, addr))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def error_received(self, exc: Exception) -> None:
        """The process that asked has gone."""

    async def _ask(self, question: bytes, asker: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET if ip_address(self._server).version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.setblocking(False)
            try:
                own.connect((self._server, DNS_PORT))
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await loop.sock_sendall(own, question)
                    answer = await loop.sock_recv(own, _MAX_DATAGRAM)
            except (OSError, TimeoutError):
                return  # as when a server does not answer
        if self._transport is not None:
            self._transport.sendto(answer, asker)
