"""A server of the REST API in a process of its own, and a client of nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..waiting import wait_until
from .conftest import INSTALLED

SECONDS = 60


class Answer(NamedTuple):
    """What was answered."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """As an object."""
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return self.json["code"]


class Client:
    """Who asks with one token. For any thread: each request has a connection of its own."""

    def __init__(self, port: int, token: str | None = None, path: str = "") -> None:
        self.port, self.token, self.path = port, token, path

    def connection(self) -> http.client.HTTPConnection:
        """A new one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        if self.path:
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(self.path)
        return connection

    def headers(self, **more: str) -> dict[str, str]:
        """Those of a request."""
        own = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return {**own, **{name.replace("_", "-"): value for name, value in more.items()}}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask for something."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = self.headers(**({"Content-Type": "application/json"} if data else {}), **headers)
        connection = self.connection()
        try:
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        """What a GET answers."""
        return self._fine(self.ask("GET", path, **headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """What a POST answers."""
        return self._fine(self.ask("POST", path, {} if body is None else body, **headers))

    def _fine(self, answer: Answer) -> Any:
        assert answer.status == 200, answer
        return answer.json

    @contextmanager
    def events(self, export: str, **headers: str) -> Generator[Iterator[dict[str, Any]]]:
        """The events of an export, each with ``id``, ``event`` and ``data``."""
        connection = self.connection()
        try:
            connection.request("GET", f"/api/exports/{export}/events", headers=self.headers(**headers))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type") == "text/event-stream"
            assert answer.readline() == b"retry: 2000\n"
            yield _events(answer)
        finally:
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name in ("id", "event"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)
        elif not line.strip() and event:
            yield event
            event = {}


class Place:
    """A home, and directories that can be served."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.root = base / "projects"
        self.root.mkdir()
        self._servers = 0

    def directory(self, name: str, **files: str) -> Path:
        """One with files."""
        path = self.root / name
        path.mkdir()
        for file, content in files.items():
            (path / file).write_text(content)
        return path

    def holdfast(self, *words: str, code: int = 0) -> str:
        """What a command says."""
        done = subprocess.run(
            [*INSTALLED, "--home", str(self.home), *words], cwd=self.base, capture_output=True, check=False, text=True
        )
        assert done.returncode == code, done
        return done.stdout

    def token(self, *words: str, tenant: str = "local", rights: str = "admin") -> str:
        """A new token; with all rights it may serve what lies in `root`."""
        below = ["--root", str(self.root)] if rights == "admin" and "--export" not in words else []
        made = self.holdfast(
            "--json", "serve", "token", "create", "--tenant", tenant, "--rights", rights, *below, *words
        )
        return json.loads(made)["token"]

    @contextmanager
    def server(
        self, *words: str, socket: Path | None = None, program: Sequence[str] = INSTALLED, **settings: str
    ) -> Generator[Server]:
        """A server, which is ended."""
        self._servers += 1
        server = Server(self, self.base / f"log-{self._servers}", words, socket, settings, program)
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()
            server.out.close()


class Server:
    """A running server."""

    def __init__(
        self,
        place: Place,
        log: Path,
        words: tuple[str, ...],
        path: Path | None,
        settings: dict[str, str],
        program: Sequence[str] = INSTALLED,
    ) -> None:
        self.log, self.path = log, path
        where = ["--socket", str(path)] if path else ["--listen", "127.0.0.1:0"]
        named = {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                [*program, "--home", str(place.home), "--json", "serve", *where, *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **named},
                text=True,
            )
        assert self.process.stdout is not None
        self.out = self.process.stdout
        said = self.out.readline()
        assert said, log.read_text()
        self.said: dict[str, Any] = json.loads(said)
        self.address: str = self.said["listening"]
        self.port = 0 if path else int(self.address.rpartition(":")[2])

    def client(self, token: str | None = None) -> Client:
        """Who asks it."""
        return Client(self.port, token, str(self.path or ""))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def logged(self) -> list[dict[str, Any]]:
        """What it has said on standard error: JSON lines and nothing else."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def watched(client: Client, export: str) -> None:
    """Wait until an export is seen to."""
    wait_until(lambda: client.get(f"/api/exports/{export}")["upkeep"]["state"] == "watching", "the upkeep")


def together(*work: Any) -> list[Any]:
    """Do all of it at once; what each came to."""
    found: list[Any] = [None] * len(work)

    def do(at: int) -> None:
        found[at] = work[at]()

    threads = [threading.Thread(target=do, args=(at,)) for at in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    return found
