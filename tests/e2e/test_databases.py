"""SQLite's databases in a workspace whose ignore rules leave out their logs, as most of them do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.store.manifests import manifest

from ..contexts import context_of
from ..sampling import moments, some
from ..waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.ids import CheckpointId

MODES = ("wal", "delete", "truncate", "persist")

WRITER = """
import os, sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"PRAGMA journal_mode={sys.argv[2]}")
database.execute("PRAGMA wal_autocheckpoint=20")
database.execute("CREATE TABLE IF NOT EXISTS t (a INTEGER, b INTEGER)")
for number in range(1, int(sys.argv[3]) + 1):
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT INTO t VALUES (?, randomblob(700))", [(number,)] * 10)
    if sys.argv[4] == "dies" and number == int(sys.argv[3]):
        database.execute("PRAGMA cache_spill=1")
        database.execute("PRAGMA cache_size=1")
        database.executemany("INSERT INTO t VALUES (?, randomblob(700))", [(number,)] * 300)
        os._exit(0)
    database.execute("COMMIT")
    print(number, flush=True)
    time.sleep(0.01 * (number % 3))
if sys.argv[4] == "stays":
    sys.stdin.read()
os._exit(0)
"""


class Ground:
    """A workspace with a database."""

    def __init__(self, base: Path) -> None:
        self.base, self.tree = base, base / "tree"
        self.tree.mkdir()
        (self.tree / ".gitignore").write_text("*-wal\n*-shm\n*-journal\n")
        self.database = self.tree / "app.db"
        self.workspace: Workspace = holdfast.init(self.tree, home=base / "home")

    def write(self, mode: str, transactions: int = 3, end: str = "quits") -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", WRITER, str(self.database), mode, str(transactions), end]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def written(self, mode: str, transactions: int = 3, end: str = "quits") -> None:
        """By a process that is killed: what it committed last is in its log."""
        self.write(mode, transactions, end).communicate()

    def held(self, checkpoint: CheckpointId) -> set[str]:
        with context_of(self.workspace) as context:
            root = context.store.catalog.checkpoint(checkpoint).root
            return {os.fsdecode(path) for path, _ in manifest.iterate(context.store.pages, root)} - {".gitignore"}

    def rows(self, folder: Path | None = None) -> list[tuple[int, int]]:
        """What a program finds in the database: how many rows of each transaction. Looks at a copy."""
        copy = self.base / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder or self.tree, copy)
        database = sqlite3.connect(copy / "app.db")
        try:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return database.execute("SELECT a, count(*) FROM t GROUP BY a ORDER BY a").fetchall()
        finally:
            database.close()

    def at(self, checkpoint: CheckpointId) -> list[tuple[int, int]]:
        """What a program finds in the database as the checkpoint holds it."""
        folder = self.base / f"fork-{checkpoint}"
        self.workspace.fork(checkpoint, folder)
        return self.rows(folder)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path)
    with ground.workspace:
        yield ground
        with holdfast.open(ground.tree, home=tmp_path / "home") as workspace:
            assert workspace.verify(read_data=True).ok


@pytest.mark.parametrize("mode", some(MODES, 2))
def test_a_state_is_the_database_with_its_log(ground: Ground, mode: str) -> None:
    ground.written(mode, end="dies")
    log = "app.db-wal" if mode == "wal" else "app.db-journal"
    first = ground.workspace.checkpoint().checkpoint
    assert ground.held(first.id) == {"app.db", log}
    before = ground.rows()
    assert [number for number, _ in before] == [1, 2]
    ground.written(mode, end="dies")
    second = ground.workspace.checkpoint().checkpoint
    after = ground.rows()
    assert after != before
    for paths in ([], [b"app.db"]):
        assert ground.workspace.restore(first.id, paths).skipped == []
        assert ground.rows() == before
        assert ground.workspace.undo().skipped == []
        assert ground.rows() == after
        assert ground.workspace.redo().skipped == []
        assert ground.rows() == before
        ground.workspace.restore(second.id)
    assert ground.at(first.id) == before


def test_a_log_that_a_state_does_not_have_is_taken_away_and_comes_back(ground: Ground) -> None:
    with sqlite3.connect(ground.database) as database:
        database.execute("CREATE TABLE t (a, b)")
    database.close()
    first = ground.workspace.checkpoint().checkpoint
    assert ground.held(first.id) == {"app.db"}
    ground.written("wal")
    after = ground.rows()
    done = ground.workspace.restore(first.id)
    assert done.skipped == []
    assert not (ground.tree / "app.db-wal").exists()
    assert ground.rows() == []
    assert ground.workspace.undo().skipped == []
    assert ground.rows() == after


def test_what_only_looks_like_a_log_stays_out(ground: Ground) -> None:
    (ground.tree / "app.db").write_bytes(b"no database")
    for end in ("wal", "journal", "shm"):
        (ground.tree / f"app.db-{end}").write_bytes(b"x")
        (ground.tree / f"gone.db-{end}").write_bytes(b"x")
    first = ground.workspace.checkpoint().checkpoint
    assert ground.held(first.id) == {"app.db"}
    for path in ground.tree.glob("app.db*"):
        path.unlink()
    ground.written("wal")
    second = ground.workspace.checkpoint().checkpoint
    assert ground.held(second.id) == {"app.db", "app.db-wal"}, "it has become one"
    (ground.tree / "app.db").write_bytes(b"none any more")
    third = ground.workspace.checkpoint().checkpoint
    assert ground.held(third.id) == {"app.db"}
    assert (ground.tree / "app.db-wal").exists()


def test_an_index_is_never_captured(ground: Ground) -> None:
    (ground.tree / ".gitignore").unlink()
    ground.written("wal")
    assert (ground.tree / "app.db-shm").exists()
    assert ground.held(ground.workspace.checkpoint().checkpoint.id) == {"app.db", "app.db-wal"}


@pytest.mark.parametrize("mode", some(MODES, 2))
def test_a_database_in_use_is_left_alone_and_the_process_is_named(ground: Ground, mode: str) -> None:
    ground.written(mode)
    (ground.tree / "other").write_text("1")
    first = ground.workspace.checkpoint().checkpoint
    with ground.write(mode, end="stays") as writer:
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        (ground.tree / "other").write_text("2")
        before = ground.rows()
        done = ground.workspace.restore(first.id)
        assert {path for path, _ in done.skipped} <= {b"app.db", b"app.db-wal", b"app.db-journal"}
        assert all(f"process {writer.pid}" in reason for _, reason in done.skipped)
        assert done.skipped
        assert done.written == [b"other"]
        assert ground.rows() == before
    assert ground.workspace.restore(first.id).skipped == []
    assert ground.rows() != before


@pytest.mark.parametrize("mode", some(MODES, 2))
def test_a_database_that_was_removed_while_it_is_in_use_is_left_alone(ground: Ground, mode: str) -> None:
    ground.written(mode, end="dies")
    first = ground.workspace.checkpoint().checkpoint
    log = b"app.db-wal" if mode == "wal" else b"app.db-journal"
    with ground.write(mode, end="stays") as writer:
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        for path in ground.tree.glob("app.db*"):
            path.unlink()
        for paths in ([], [log], [b"app.db"]):
            done = ground.workspace.restore(first.id, paths)
            assert {path for path, _ in done.skipped} == {b"app.db", log}
            assert all(f"process {writer.pid}" in reason for _, reason in done.skipped)
            assert list(ground.tree.glob("app.db*")) == []
    assert ground.workspace.restore(first.id, [log]).skipped == []
    assert [number for number, _ in ground.rows()] == [1, 2]


def test_a_log_that_no_checkpoint_holds_is_in_the_way(ground: Ground) -> None:
    ground.written("wal", transactions=1)
    first = ground.workspace.checkpoint().checkpoint
    ground.written("wal", transactions=2)
    before = ground.rows()
    limits = {"capture.max_file_bytes": "8KiB"}
    with holdfast.open(ground.tree, home=ground.base / "home", flags=limits) as workspace:
        done = workspace.restore(first.id)
        assert b"app.db-wal" in {path for path, _ in done.skipped}
    assert ground.rows() == before


@pytest.mark.parametrize("mode", some(MODES, 3))
def test_what_is_captured_while_it_is_written_is_sound(ground: Ground, mode: str) -> None:
    """Whatever moment it is: no transaction is half there, and none is missing in the midst of others."""
    with ground.write(mode, transactions=60) as writer:
        wait_until(ground.database.exists, "the database")
        made: list[CheckpointId] = []
        while writer.poll() is None:
            done = ground.workspace.checkpoint()
            if done.created and "app.db" in ground.held(done.checkpoint.id):
                made.append(done.checkpoint.id)
        writer.communicate()
    assert made
    for checkpoint in moments(made, 8):
        try:
            found = ground.at(checkpoint)
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)  # the first moment of all
            continue
        assert [count for _, count in found] == [10] * len(found)
        assert [number for number, _ in found] == list(range(1, len(found) + 1))
