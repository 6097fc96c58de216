"""What checkpoints to S3 cost: all of Holdfast, against one object per file, over HTTP on this machine.

    python benchmarks/s3.py [--files 10000] [--changed 100] [--at-once 16] [--rounds 3] [--encrypt] [--delay 0.0]
        [--without-conditions]

moto (extra dev) is the server, in a process of its own, behind a relay in this one that counts requests; ``--delay``
has each wait that many seconds more, as in a network, and ``--without-conditions`` has it take no notice of If-Match
and If-None-Match, as some servers do. Prints medians, requests and bytes. The comparison sends each
file as an object of its own, so many at once, by the same library; its second round looks at sizes and times, as tools
that synchronise do, and sends what has changed. The tree and the homes are made below the current directory and removed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import holdfast
from holdfast.store.objects.remote_store import open_bucket

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_REGION": "us-east-1"}
_CONDITIONS = re.compile(rb"(?i)\r\nif-(?:none-)?match:[^\r]*")
_WORDS = b"def return import from class self name value path open read write with for in if else not".split()


class Server:
    """moto, and a relay before it that counts requests and may delay them."""

    def __init__(self, delay: float, *, conditions: bool = True) -> None:
        self._conditions = conditions
        self.port = _free_port()
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._delay = delay
        self.requests = self.sent = 0
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        for _ in range(600):
            try:
                self.ask("GET", "/")
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server does not start")

    def ask(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        signed = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        try:
            connection.request(method, path, headers={"Authorization": signed})
            return connection.getresponse().read()
        finally:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._relay, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, False), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        # A client sends its next request after the answer to the last, so that one begins what arrives.
        begins = re.compile(rb"(?:GET|PUT|POST|DELETE|HEAD) /[^ \r\n]* HTTP/1\.1\r\n")
        try:
            while data := source.recv(1 << 16):
                if counted:
                    found = int(begins.match(data) is not None)
                    with self._lock:
                        self.requests += found
                        self.sent += len(data)
                    if found and self._delay:
                        time.sleep(self._delay)
                    if found and not self._conditions:
                        data = _CONDITIONS.sub(b"", data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def counted(self) -> tuple[int, int]:
        with self._lock:
            found = self.requests, self.sent
            self.requests = self.sent = 0
        return found

    def close(self) -> None:
        self._listening.close()
        self._process.terminate()
        self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def make_tree(root: Path, files: int) -> list[Path]:
    source = random.Random(1)
    made: list[Path] = []
    for number in range(files):
        folder = root / f"{number // 100:04d}"
        if not number % 100:
            folder.mkdir(parents=True)
        made.append(folder / f"{number:06d}.py")
        made[-1].write_bytes(content(source))
    return made


def content(source: random.Random) -> bytes:
    return b" ".join(source.choices(_WORDS, k=source.randrange(20, 2000))) + source.randbytes(8).hex().encode() + b"\n"


def change(files: list[Path], count: int, source: random.Random) -> None:
    for path in source.sample(files, count):
        path.write_bytes(content(source))


class OneEach:
    """One object for each file."""

    def __init__(self, url: str, options: dict[str, str], at_once: int) -> None:
        self._bucket = open_bucket(url, options)
        self._at_once = at_once
        self._known: dict[Path, tuple[int, int]] = {}

    def save(self, files: list[Path], root: Path) -> None:
        def one(path: Path) -> None:
            self._bucket.put(str(path.relative_to(root)), [path.read_bytes()])

        found = {path: (about.st_size, about.st_mtime_ns) for path in files for about in (path.stat(),)}
        with ThreadPoolExecutor(self._at_once) as pool:
            list(pool.map(one, [path for path in files if self._known.get(path) != found[path]]))
        self._known = found


def timed(rows: dict[str, list[tuple[float, int, int]]], name: str, server: Server, work: object) -> None:
    server.counted()
    begun = time.perf_counter()
    work()  # type: ignore[operator]
    took = time.perf_counter() - begun
    rows.setdefault(name, []).append((took, *server.counted()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--encrypt", action="store_true")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--without-conditions", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(CREDENTIALS)
    rows: dict[str, list[tuple[float, int, int]]] = {}
    folder = Path(tempfile.mkdtemp(prefix="s3-", dir="."))
    server = Server(arguments.delay, conditions=not arguments.without_conditions)
    try:
        tree = folder.resolve() / "tree"
        files = make_tree(tree, arguments.files)
        options = {"endpoint": server.endpoint, "allow_http": "true"}
        for number in range(arguments.rounds):
            run(arguments, server, folder.resolve(), tree, files, options, number, rows)
    finally:
        server.close()
        shutil.rmtree(folder)
    report(arguments, rows)


def run(
    arguments: argparse.Namespace,
    server: Server,
    folder: Path,
    tree: Path,
    files: list[Path],
    options: dict[str, str],
    number: int,
    rows: dict[str, list[tuple[float, int, int]]],
) -> None:
    source = random.Random(number)
    for name in (f"ours-{number}", f"each-{number}"):
        server.ask("PUT", f"/{name}")
    flags: dict[str, object] = {
        "store.url": f"s3://ours-{number}/p",
        "store.options": [f"{name}={value}" for name, value in options.items()],
    }
    if arguments.encrypt:
        os.environ["BENCHMARK_KEY"] = "ab" * 32
        flags["store.encryption_key"] = "env:BENCHMARK_KEY"
    each = OneEach(f"s3://each-{number}", options, arguments.at_once)
    home = folder / f"home-{number}"
    with holdfast.init(tree, home=home, flags=flags) as workspace:
        # (Its claim tells what Holdfast has found the server to be able to do.)
        claimed = b"/owner<" in server.ask("GET", f"/ours-{number}?list-type=2&prefix=p/claims/")
        assert claimed != arguments.without_conditions
        timed(rows, "holdfast, first", server, workspace.checkpoint)
        timed(rows, "one object per file, first", server, lambda: each.save(files, tree))
        change(files, arguments.changed, source)
        timed(rows, f"holdfast, {arguments.changed} changed", server, workspace.checkpoint)
        timed(rows, f"one object per file, {arguments.changed} changed", server, lambda: each.save(files, tree))
        timed(rows, "holdfast, diff", server, lambda: workspace.diff("@-", "@"))
        timed(rows, "holdfast, restore", server, lambda: workspace.restore("@-"))
    shutil.rmtree(home / "object-cache", ignore_errors=True)
    with holdfast.open(tree, home=home, flags=flags) as workspace:
        timed(
            rows, "holdfast, whole tree without cache", server, lambda: workspace.fork("@", folder / f"fork-{number}")
        )


def report(arguments: argparse.Namespace, rows: dict[str, list[tuple[float, int, int]]]) -> None:
    found = {
        name: {
            "seconds": statistics.median(took for took, _, _ in runs),
            "requests": int(statistics.median(requests for _, requests, _ in runs)),
            "bytes_sent": int(statistics.median(sent for _, _, sent in runs)),
        }
        for name, runs in rows.items()
    }
    if arguments.json:
        print(json.dumps({"files": arguments.files, "rounds": arguments.rounds, "rows": found}))
        return
    print(f"{arguments.files:,} files, medians of {arguments.rounds}, {arguments.delay * 1000:g} ms more per request")
    for name, row in found.items():
        took, requests, sent = row["seconds"], row["requests"], row["bytes_sent"]
        print(f"  {name:40} {took * 1000:9.1f} ms {requests:8,} requests {sent / 1e6:9.2f} MB sent")


if __name__ == "__main__":
    main()
