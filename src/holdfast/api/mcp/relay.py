"""Standard input and output joined to a server's socket: for clients that can start a command, and no more."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from holdfast.api.mcp.door import connect

_PIECE = 1 << 16


def relay(path: bytes) -> None:
    """Pass on what comes and goes until either side has ended. Raises what `connect` does."""
    with connect(path) as connection:
        sender = threading.Thread(target=_send, args=(connection,), daemon=True)
        sender.start()
        try:
            while data := connection.recv(_PIECE):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(1, rest) :]
        except OSError:
            return  # the client is gone, or the server


def _send(connection: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _PIECE):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
