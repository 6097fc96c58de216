"""A real S3 server for tests, moto, and a proxy before it that behaves as bad services and networks do."""

from __future__ import annotations

import http.client
import itertools
import logging
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

KEY, SECRET = "AKIDOFATESTBUCKET", "avery/secret+key0123456789"
"""Credentials: any will do."""

CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


class Asked(NamedTuple):
    """A request that came by."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def is_part(self) -> bool:
        """True for a part of an upload."""
        return "partNumber=" in self.path


class Answer(NamedTuple):
    """What to say, in the server's stead or after it."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None
    """What is said that the length is; None: the truth."""


CUT = Answer(0)
"""Close the connection without a word."""

_NUMBERS = itertools.count(1)
"""Of buckets: all servers of a process have the same."""

Before = Callable[[Asked], Answer | None]
After = Callable[[Asked, Answer], Answer]


def refuse(status: int, code: str, times: int, method: str = "") -> Before:
    """Refuse that many requests, each with an error of S3."""
    left = [times]
    lock = threading.Lock()
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    def before(asked: Asked) -> Answer | None:
        with lock:
            if left[0] and asked.method.startswith(method):
                left[0] -= 1
                return Answer(status, body) if status else CUT
        return None

    return before


class Proxy:
    """Stands before a server. What ``before`` gives is answered at once; ``after`` may change an answer; ``headers``
    named in ``dropped`` never get through.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self.asked: list[Asked] = []
        self.before: Before = lambda _: None
        self.after: After = lambda _, answer: answer
        self.dropped: set[str] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 16

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                asked = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
                proxy.asked.append(asked)
                answer = proxy.before(asked)
                if answer is None:
                    answer = proxy.after(asked, proxy.forward(asked, body))
                proxy.give(self, answer)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing is logged."""

        self._server = server
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"

    def forward(self, asked: Asked, body: bytes) -> Answer:
        """The server's own answer."""
        connection = http.client.HTTPConnection(*self._server, timeout=30)
        try:
            headers = {name: value for name, value in asked.headers.items() if name not in self.dropped}
            connection.request(asked.method, asked.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            kept = tuple(
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server")
            )
            length = answer.getheader("content-length")
            return Answer(answer.status, data, kept, int(length) if asked.method == "HEAD" and length else None)
        finally:
            connection.close()

    @staticmethod
    def give(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        """Send an answer; one that is shorter than it says ends the connection."""
        if answer is CUT:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            handler.send_response(answer.status)
            for name, value in answer.headers:
                handler.send_header(name, value)
            length = len(answer.body) if answer.length is None else answer.length
            handler.send_header("Content-Length", str(length))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(answer.body)
                if length > len(answer.body):
                    handler.close_connection = True
            handler.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def count(self, method: str) -> int:
        """How many requests of a method there were."""
        return sum(asked.method == method for asked in self.asked)

    def reset(self) -> None:
        """Behave from now on, and forget what was asked."""
        self.asked.clear()
        self.before = lambda _: None
        self.after = lambda _, answer: answer
        self.dropped = set()

    def close(self) -> None:
        """End it."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class Service:
    """A server of S3, and a proxy before it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.address = self._server.get_host_and_port()
        self.endpoint = f"http://{self.address[0]}:{self.address[1]}"
        self.proxy = Proxy(self.address)

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{next(_NUMBERS)}"
        assert self.ask("PUT", f"/{name}")[0] == 200
        return name

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Ask the server itself."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20200101/us-east-1/s3/aws4_request, "
            "SignedHeaders=host, Signature=x"
        }
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def unfinished(self, bucket: str) -> list[str]:
        """The keys of uploads that were begun and not finished."""
        return re.findall(r"<Key>([^<]*)</Key>", self.ask("GET", f"/{bucket}?uploads")[1].decode())

    def options(self, *, direct: bool = False) -> dict[str, str]:
        """What a client has to know, by way of the proxy or not."""
        return {"endpoint": self.endpoint if direct else self.proxy.endpoint, "allow_http": "true"}

    def close(self) -> None:
        """End both."""
        self.proxy.close()
        self._server.stop()
