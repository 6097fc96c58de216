"""A server whose clock and turns belong to the test, and clients of it in the same thread."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.ipc import messages, private_socket
from holdfast.ipc.server import Client, ClientGroup, Limits, Server
from holdfast.testing.clocks import ManualClock

NAME = b"socket"
LIMITS = Limits()


def request(method: str = "do", *arguments: object) -> bytes:
    return messages.frame(messages.encode_request(method, arguments))


def result(connection: socket.socket) -> Any:
    length = messages.body_bytes(connection.recv(messages.HEADER_BYTES, socket.MSG_WAITALL), 1 << 30)
    return messages.decode_result(connection.recv(length, socket.MSG_WAITALL))


class Served:
    """Answers with what it is asked, unless ``perform`` says something else."""

    def __init__(
        self, folder: bytes, limits: Limits = LIMITS, group_of: Callable[[Client], ClientGroup] | None = None
    ) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.asked: list[str] = []
        self.clients: list[Client] = []
        self.left: list[Client] = []
        self.perform: Callable[[Client, str], bytes | None] = lambda _, method: messages.encode_result(method)
        self.server = Server(
            folder, NAME, self.clock, self._answer, left=self.left.append, limits=limits, group_of=group_of
        )

    def _answer(self, client: Client, body: bytes) -> bytes | None:
        method, _ = messages.decode_request(body)
        self.asked.append(method)
        self.clients.append(client)
        return self.perform(client, method)

    def serve(self) -> None:
        """Do all that there is to do."""
        self.server.serve()
        while select.select([self.server], [], [], 0)[0]:
            self.server.serve()

    def connect(self) -> socket.socket:
        connection = private_socket.connect(self.folder, NAME, 20)
        self.serve()
        return connection

    def ask(self, connection: socket.socket, method: str = "do") -> Any:
        connection.sendall(request(method))
        self.serve()
        return result(connection)


@contextmanager
def serving(
    folder: Path, limits: Limits = LIMITS, group_of: Callable[[Client], ClientGroup] | None = None
) -> Generator[Served]:
    served = Served(os.fsencode(folder), limits, group_of)
    try:
        yield served
    finally:
        served.server.close()
        served.server.hang_up()
