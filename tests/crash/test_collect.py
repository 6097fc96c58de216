"""I11 and I3 for real: a collection killed at every durable point, and processes that save and collect at once.

Run as a program, this file is the process that is killed, or one of those that race.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError
from holdfast.model.ids import CheckpointId, WorkspaceId
from holdfast.store.catalog.catalog import Catalog
from holdfast.store.catalog.schema import APPLICATION_ID, MIGRATIONS
from holdfast.store.database.sql_database import SqliteDatabase
from holdfast.store.objects.configured_store import open_objects
from holdfast.store.store import Store
from holdfast.testing.clocks import ManualClock
from holdfast.testing.dict_saver import Saver, load

if TYPE_CHECKING:
    from holdfast.store.database.sql_database import Database
    from holdfast.store.objects.object_store import ObjectStore

LARGE = b"x" * ((1 << 20) + 1)
LONG_AFTER = 4_000_000_000_000_000
FILES = {b"%03d" % number: random.Random(number).randbytes(700) for number in range(90)}
KEPT = {path: FILES[path] for path in sorted(FILES)[:20]}
SAVES = 12


def opened(folder: Path, clock, wrap_database=None, wrap_objects=None) -> Store:
    database = SqliteDatabase(os.fsencode(folder / "catalog.db"), MIGRATIONS, application_id=APPLICATION_ID)
    objects = open_objects(str(folder / "objects"))
    return Store(
        cast("ObjectStore", wrap_objects(objects) if wrap_objects else objects),
        Catalog(cast("Database", wrap_database(database) if wrap_database else database), "local", clock),
    )


# --- the process that is killed ---


class Killer:
    """Ends this process at one of its durable points, as the kernel would."""

    def __init__(self, at):
        self.left = at

    def point(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class KilledDatabase:
    def __init__(self, inner, killer):
        self._inner, self._killer = inner, killer

    @contextmanager
    def writing(self):
        self._killer.point()
        with self._inner.writing() as session:
            yield session
            self._killer.point()

    def __getattr__(self, name):
        return getattr(self._inner, name)


class KilledObjects:
    def __init__(self, inner, killer):
        self._inner, self._killer = inner, killer

    def upload(self):
        upload = self._inner.upload()
        commit = upload.commit

        class Killed:
            write, abort = upload.write, upload.abort

            @staticmethod
            def commit(key):
                self._killer.point()
                commit(key)

        return Killed()

    def delete(self, key):
        self._killer.point()
        self._inner.delete(key)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def collect_and_die(folder: Path, killer: Killer) -> None:
    store = opened(
        folder,
        ManualClock(LONG_AFTER),
        lambda database: KilledDatabase(database, killer),
        lambda objects: KilledObjects(objects, killer),
    )
    store.collector().collect(0, recount="now")
    os._exit(0)


def kill_at_every_point(template: Path, folder: Path) -> None:
    for number in itertools.count():
        copy = folder / f"{number:03d}"
        shutil.copytree(template, copy)
        child = os.fork()
        if not child:
            collect_and_die(copy, Killer(number))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(os.WEXITSTATUS(status))


def test_a_collection_killed_at_every_durable_point(tmp_path):
    template = tmp_path / "template"
    template.mkdir()
    clock = ManualClock()
    store = opened(template, clock)
    saver = Saver(store, WorkspaceId("1" * 16), clock, random.Random(1).randbytes)
    saver.create(b"/x")
    old = [saver.save({**FILES, b"large": LARGE}), saver.save({b"gone": b"gone" * 99})]
    kept = saver.save({**KEPT, b"large-too": LARGE + b"!"})
    saver.prepare({b"an orphan": b"never committed" * 99})
    store.catalog.forget(old)
    with store.catalog.database.writing() as transaction:
        # Whatever of this is corrected when it is killed: no wrong count may cost what is needed.
        assert transaction.run("UPDATE blobs SET refs = refs + 1, deltas = deltas + 1 WHERE kind = 0")
    store.close()
    folder = tmp_path / "killed"
    folder.mkdir()
    subprocess.run([sys.executable, __file__, "kill", template, folder], check=True, timeout=120)
    copies = sorted(folder.iterdir())
    assert len(copies) > 15
    left = set()
    for copy in copies:
        store = opened(copy, ManualClock(LONG_AFTER + 60_000_000))
        assert {problem.kind for problem in store.verifier().verify().problems} <= {"count"}, copy
        assert load(store, kept) == {**KEPT, b"large-too": LARGE + b"!"}
        store.collector().collect(0, recount="now")
        assert store.verifier().verify(read_data=True).problems == [], copy
        assert load(store, kept) == {**KEPT, b"large-too": LARGE + b"!"}
        left.add((store.catalog.stats()[:6], len(list(store.objects.list("")))))
        store.close()
    assert len(left) == 1, "whenever it was killed, the next one comes to the same end"


# --- the processes that race ---


def race(folder: Path, seed: int) -> None:
    """Save, often what was forgotten before, and forget; print what must be there in the end."""
    store = opened(folder, SystemClock())
    rng = random.Random(seed)
    saver = Saver(store, WorkspaceId(f"{seed:016x}"), SystemClock(), rng.randbytes)
    saver.create(b"/w%d" % seed)
    names: dict[CheckpointId, int] = {}
    for number in range(SAVES):
        state = rng.randrange(4)
        names[saver.save(state_files(state))] = state
        if number % 3 == 2:
            for gone in store.catalog.forget(rng.sample(sorted(names.keys() - {saver.cursor().head}), 2)):
                del names[gone.id]
    store.close()
    print(" ".join(f"{name}:{state}" for name, state in names.items()))


def state_files(state: int) -> dict[bytes, bytes]:
    ninth = dict.fromkeys(range(0, 80, 9), state)
    return {b"%03d" % number: b"state %d of file %d\n" % (ninth.get(number, 0), number) * 9 for number in range(80)}


def collect(folder: Path, seed: int) -> None:
    """Collect until told to stop."""
    store = opened(folder, SystemClock())
    done = 0
    while not (folder / "stop").exists():
        try:
            # No count is wrong, so none may seem to be, whatever is saved between the mark and now.
            assert not store.collector().collect(0, recount="now").corrected
            done += 1
        except LockedError:
            continue
    store.close()
    print(done)


def test_processes_that_save_forget_and_collect_at_once(tmp_path):
    """Case 6: no reachable blob is lost, whatever the others do."""
    opened(tmp_path, SystemClock()).close()

    def start(mode, seed):
        return subprocess.Popen(
            [sys.executable, __file__, mode, tmp_path, str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    collectors = [start("collect", number) for number in range(2)]
    savers = [start("race", number) for number in (1, 2)]
    outputs = [child.communicate(timeout=120) for child in savers]
    (tmp_path / "stop").touch()
    counted = [child.communicate(timeout=120) for child in collectors]
    # (Who is kept waiting for long, as on a machine that has much to do, says so.)
    errors = [line for _, error in outputs + counted for line in error.splitlines()]
    assert [line for line in errors if "another process holds the catalog" not in line] == []
    assert [child.returncode for child in savers + collectors] == [0] * 4
    assert sum(int(text) for text, _ in counted) > 0
    store = opened(tmp_path, SystemClock())
    expected = dict(item.split(":") for text, _ in outputs for item in text.split())
    assert len(expected) == 2 * (SAVES - SAVES // 3 * 2)
    assert {point.id for point in store.catalog.checkpoints()} == set(expected)
    for name, state in expected.items():
        assert load(store, CheckpointId(name)) == state_files(int(state))
    assert store.verifier().verify(read_data=True).problems == []
    store.collector().collect(0)
    assert store.verifier().verify(read_data=True).problems == []
    store.close()


if __name__ == "__main__":
    mode, folder, argument = sys.argv[1:]
    if mode == "kill":
        kill_at_every_point(Path(folder), Path(argument))
    else:
        {"race": race, "collect": collect}[mode](Path(folder), int(argument))
