"""What serving costs: requests, the same with a store opened for each, the upkeep of many exports at once, and what
requests take meanwhile.

    python benchmarks/serve.py --exports 1000 --requests 300

A server of its own, in a process of its own, on loopback, over a home in a temporary directory. Nothing is deleted between runs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDFAST = [sys.executable, "-P", "-m", "holdfast"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exports", type=int, default=1000)
    parser.add_argument("--files", type=int, default=20, help="in each export")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-serve-") as base:
        found = run(Path(base), arguments.exports, arguments.files, arguments.requests)
    print(json.dumps(found, indent=1))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found))


def run(base: Path, exports: int, files: int, requests: int) -> dict[str, float]:
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(base / "home"),
        "HOLDFAST_SERVE_REQUESTS_PER_MINUTE": "100000000",
        "HOLDFAST_WATCH_DEBOUNCE": "1s",
    }
    root = base / "projects"
    root.mkdir()
    made = subprocess.run(
        [*HOLDFAST, "serve", "token", "create", "--rights", "admin", "--root", str(root)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    token = made.stdout.split()[0]
    server = subprocess.Popen(
        [*HOLDFAST, "--json", "-q", "serve", "--listen", "127.0.0.1:0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = int(json.loads(server.stdout.readline())["listening"].rpartition(":")[2])
        client = Client(port, token)
        found = {"exports": exports, "files_each": files}
        found |= measure_requests(client, base / "home", root, requests)
        found |= measure_upkeep(client, Client(port, token), server.pid, root, exports, files)
        begun = time.monotonic()
        server.terminate()
        found["stop_seconds"] = (server.wait(), time.monotonic() - begun)[1]
    finally:
        server.kill()
        server.wait()
    return found


class Client:
    """One kept connection."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> dict:
        self.connection.request(method, path, None if body is None else json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)


def milliseconds(work, times: int) -> float:
    taken = []
    for number in range(times):
        begun = time.perf_counter()
        work(number)
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def measure_requests(client: Client, home: Path, root: Path, times: int) -> dict[str, float]:
    tree = fill(root / "one", 1000)
    client.ask("POST", "/api/exports", {"name": "one", "path": str(tree), "auto_checkpoint": False})
    first = client.ask("POST", "/api/exports/one/checkpoint", {})["checkpoint_id"]

    def save(number: int) -> None:
        (tree / "d0" / "f0").write_text(str(number))
        client.ask("POST", "/api/exports/one/checkpoint", {})

    from holdfast.engine.exports.named_workspaces import Exports
    from holdfast.engine.opening.opener import Opener

    def opened(_: int) -> None:
        opener = Opener(home=os.fsencode(home))
        Exports(opener).get("one")
        opener.close()

    return {
        "health_ms": milliseconds(lambda _: client.ask("GET", "/api/ready"), times),
        "get_export_ms": milliseconds(lambda _: client.ask("GET", "/api/exports/one"), times),
        "get_checkpoint_ms": milliseconds(lambda _: client.ask("GET", f"/api/checkpoints/{first}"), times),
        "list_files_ms": milliseconds(lambda _: client.ask("GET", f"/api/checkpoints/{first}/files"), times),
        "status_1000_files_ms": milliseconds(lambda _: client.ask("GET", "/api/exports/one/status"), times // 3),
        "checkpoint_1_of_1000_files_ms": milliseconds(save, times // 3),
        "opening_a_store_ms": milliseconds(opened, times // 3),
    }


@contextmanager
def meanwhile(client: Client, pid: int, found: dict[str, float], name: str) -> Iterator[None]:
    """Note what a request takes during the block, asked for 50 times a second, and the most threads and memory."""
    taken: list[float] = []
    most = [0.0, 0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            begun = time.perf_counter()
            client.ask("GET", "/api/exports/one")
            taken.append((time.perf_counter() - begun) * 1000)
            most[:] = max(most[0], len(os.listdir(f"/proc/{pid}/task"))), max(most[1], resident(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        client.connection.close()
    taken.sort()
    found |= {f"get_export_{name}_ms": statistics.median(taken), f"get_export_{name}_longest_ms": taken[-1]}
    found |= {f"get_export_{name}_99th_ms": taken[len(taken) * 99 // 100]}
    found |= {f"threads_{name}": most[0], f"resident_{name}_mb": most[1]}


def measure_upkeep(client: Client, other: Client, pid: int, root: Path, exports: int, files: int) -> dict[str, float]:
    found: dict[str, float] = {}
    trees = [fill(root / f"e{number}", files) for number in range(exports)]
    begun = time.monotonic()
    with meanwhile(other, pid, found, "in_first_checkpoints"):
        for number, tree in enumerate(trees):
            client.ask("POST", "/api/exports", {"name": f"e{number}", "path": str(tree)})
        created = time.monotonic() - begun
        all_saved(client, exports, 1)
    first = time.monotonic() - begun
    # The first retention of each is after a minute, and the first collection as well: that is no idling.
    time.sleep(90)
    client.connection.close()  # (the server has, by now)
    idle_from = processor(pid)
    time.sleep(20)
    idle = (processor(pid) - idle_from) / 20
    begun = time.monotonic()
    with meanwhile(other, pid, found, "in_second_checkpoints"):
        for tree in trees:
            (tree / "d0" / "f0").write_text("changed")
        written = time.monotonic() - begun
        all_saved(client, exports, 2)
    return found | {
        "create_all_seconds": created,
        "first_checkpoint_of_all_seconds": first,
        "idle_processor_share": idle,
        "write_to_all_seconds": written,
        "all_saved_again_seconds": time.monotonic() - begun,
        "resident_mb": resident(pid),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "get_export_while_watching_ms": milliseconds(lambda _: client.ask("GET", "/api/exports/one"), 100),
    }


def all_saved(client: Client, exports: int, times: int) -> None:
    """Wait until so many checkpoints were taken by themselves."""
    while True:
        client.connection.request("GET", "/metrics", headers=client.headers)
        text = client.connection.getresponse().read().decode()
        taken = [line.rpartition(" ")[2] for line in text.splitlines() if 'what="auto_checkpoints"' in line]
        if taken and float(taken[0]) >= exports * times:
            return
        time.sleep(0.25)


def fill(path: Path, files: int) -> Path:
    for number in range(files):
        folder = path / f"d{number // 20}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_text(f"{path.name} {number}\n" * 40)
    return path


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
