"""Eight processes on one catalog on PostgreSQL: what each was told is so, and counts agree with a full mark (I11)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.dict_saver import load

from ..postgresql_server import open_catalog

PROCESSES = 8
ROUNDS = 6

WORK = """
import json, random, sys
from pathlib import Path
from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError
from holdfast.model.ids import WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.postgresql.database import PostgresDatabase
from holdfast.store.postgresql.catalog_url import parse
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store._shared_catalog import retry_lost_connections
from holdfast.store.store import Store
from holdfast.testing.dict_saver import Saver

url, objects, number, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
database = PostgresDatabase(parse(url), MIGRATIONS, tenant="local", application_id=APPLICATION_ID, timeout=300)
catalog = Catalog(database, "local", SystemClock(), home_id=f"{number:032x}")
retry_lost_connections(catalog, database)
store = Store(open_objects(objects), catalog)
chance = random.Random(number)
saver = Saver(store, WorkspaceId(f"{number:016x}"), SystemClock(), chance.randbytes)
saver.create(b"/work")  # the same path as the others: they are other machines
common = {b"common%d" % n: b"the same everywhere %d " % n * 40 for n in range(20)}
kept = {}
for turn in range(rounds):
    files = {path: data for path, data in common.items() if chance.random() < 0.5}
    files |= {b"own": b"%d %d" % (number, turn), b"shared": b"round %d" % turn}
    name = saver.save(files)
    kept[name] = {path.decode(): data.decode() for path, data in files.items()}
    if turn % 3 == number % 3 and len(kept) > 1:
        old = next(iter(kept))
        assert [gone.id for gone in catalog.forget([old])] == [old]
        del kept[old]
    if chance.random() < 0.7:
        try:
            store.collector().collect(0)
        except LockedError:
            pass
database.close()
print(json.dumps(kept))
"""


@pytest.mark.slow
def test_eight_processes_save_forget_and_collect(catalog_url: str, tmp_path: Path) -> None:
    """I11: no content that a checkpoint needs is ever deleted; I4: what was said to be kept is."""
    objects = str(tmp_path / "objects")
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORK, catalog_url, objects, str(number), str(ROUNDS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for number in range(PROCESSES)
    ]
    kept: dict[str, dict[str, str]] = {}
    try:
        for process in running:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err.decode()
            # (On a busy machine somebody has to wait for long, which is said.)
            assert [line for line in err.splitlines() if b"another process holds the catalog" not in line] == []
            kept |= json.loads(out)
    finally:
        for process in running:
            process.kill()
            process.communicate()
    database = open_catalog(catalog_url)
    with closing(database):
        store = Store(open_objects(objects), Catalog(database, "local", SystemClock()))
        assert {str(point.id) for point in store.catalog.checkpoints()} == set(kept)
        for point in store.catalog.checkpoints():
            files = {path.encode(): data.encode() for path, data in kept[point.id].items()}
            assert load(store, point.id) == files
        assert len(store.catalog.workspaces(everywhere=True)) == PROCESSES
        assert store.verifier().verify(read_data=True).problems == []
        store.collector().collect(0)
        assert store.verifier().verify(read_data=True).problems == []
        with database.reading() as session:
            assert session.one("SELECT count(*) FROM blobs WHERE refs = 0 AND deltas = 0") == (0,)
