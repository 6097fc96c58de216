"""A proxy before a PostgreSQL server, which cuts its connections when it is told to, and counts how often it is waited
for.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after", "late"]
"""Before a message reaches the server; or after the server's answer has come, which then reaches nobody. ``late``: the
client is cut off at once, and the message reaches the server when `Proxy.deliver` is set.
"""


class Proxy:
    """Listens on 127.0.0.1, and passes everything on to the server's Unix socket. ``judge`` is asked about each message
    of a client, which it gets as it is, and says whether and when to cut the connection.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._server = str(folder / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.database = database
        self.judge: Callable[[bytes], Cut | None] = lambda _: None
        self.refusing = False
        self.deliver = threading.Event()
        self.connections = 0
        self.trips = 0
        """How often the server was waited for: it has said as often that it is ready for more."""
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.database}?sslmode=disable&gssencmode=disable"

    def cut_all(self) -> None:
        for end in list(self._open):
            _close(end)

    def close(self) -> None:
        self.refusing = True
        _close(self._listener)
        self.cut_all()
        for thread in self._threads:
            thread.join(10)

    def _run(self, work: Callable[..., None], *values: object) -> None:
        thread = threading.Thread(target=work, args=values, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                _close(client)
                continue
            self.connections += 1
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server)
            except OSError:
                _close(client)
                _close(server)
                continue
            self._open += [client, server]
            state = _Pair(client, server)
            self._run(self._to_server, state)
            self._run(self._to_client, state)

    def _to_server(self, pair: _Pair) -> None:
        with suppress(OSError):
            while data := pair.client.recv(1 << 20):
                cut = self.judge(data)
                if cut == "before":
                    break
                if cut == "late":
                    pair.last = True
                    _close(pair.client)
                    self.deliver.wait(20)
                    pair.server.sendall(data)
                    pair.answered.wait(5)
                    break
                pair.last = cut == "after"
                pair.server.sendall(data)
                if pair.last:
                    # (Some messages have no answer of their own: more are to come.)
                    pair.answered.wait(0.5)
                    break
        pair.close()

    def _to_client(self, pair: _Pair) -> None:
        with suppress(OSError):
            while data := pair.server.recv(1 << 20):
                if pair.last:
                    break  # whoever asked never hears of it
                self.trips += pair.count_ready(data)
                pair.client.sendall(data)
        pair.answered.set()
        if not pair.last:
            pair.close()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.last = False
        self.answered = threading.Event()
        self._rest = b""

    def count_ready(self, data: bytes) -> int:
        """How many messages ReadyForQuery end in what comes next from the server (PostgreSQL, Message Formats)."""
        self._rest += data
        count = 0
        while len(self._rest) >= 5 and len(self._rest) > (size := int.from_bytes(self._rest[1:5], "big")):
            count += self._rest[:1] == b"Z"
            self._rest = self._rest[1 + size :]
        return count

    def close(self) -> None:
        _close(self.client)
        _close(self.server)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
