"""I4: what was promised survives every power loss, and what comes before the promise loses nothing that was there.

Whole processes are recorded by strace, SQLite's calls among them, and what a disk may hold after a power loss is
rebuilt from the record: see `holdfast.testing.strace_recorder`. A second, cheaper record proves the order of the syncs.
Case 2: of what was not synced any part may be lost, or torn.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from holdfast.model.ids import CheckpointId
from holdfast.store.objects._local_store import LocalObjects
from holdfast.store.objects.disk_port import SYSTEM_DISK
from holdfast.testing import strace_recorder
from holdfast.testing.crash_points import UnsyncedConnection
from holdfast.testing.faulty_disk import FaultyDisk
from holdfast.testing.syscall_recording import Recording

from ..sampling import is_thorough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash.conftest import Place, State

traced = pytest.mark.skipif(not strace_recorder.can_trace(), reason="needs strace, and the permission to trace a child")

PRELUDE = """
import os, sys, shutil
import holdfast
home, tree = sys.argv[1:]
def mark(*words):
    os.write(1, b"MARK " + " ".join(words).encode() + b"\\n")
"""
SAVING = """
with holdfast.init(tree, home=home) as w:
    mark("init")
    mark("saved", w.checkpoint("one").checkpoint.id)
    os.chdir(tree)
    with open("a", "ab") as file:
        file.write(b"more")
    os.unlink("b")
    with open("big", "r+b") as file:
        file.write(b"another beginning")
    mark("saved", w.checkpoint("two").checkpoint.id)
    os.unlink("big")
    mark("saved", w.checkpoint("three").checkpoint.id)
    mark("forgetting")
    w.forget(["one", "two"])
    mark("forgotten")
    w.gc(grace=0)
mark("collected")
"""
GOING_BACK = """
with holdfast.open(tree, home=home) as w:
    mark("begun")
    w.restore("first")
    mark("restored")
"""


def recorded(place: Place, script: str) -> Recording:
    place.keep("start")
    command = [sys.executable, "-c", PRELUDE + script, str(place.home), str(place.tree)]
    return strace_recorder.record(command, str(place.root), str(place.base / "start"), str(place.base / "trace"))


def moments(record: Recording, most: int) -> Iterator[int]:
    """Numbers of steps after which the power may fail: before and after each mark and each sync, and some others."""
    last = len(record.steps)
    edges = {at for at, _ in record.marks} | {at - 1 for at, _ in record.marks if at} | {last}
    syncs = {at for at, step in enumerate(record.steps) if step.name.startswith("sync")}
    others = sorted(syncs | {at + 1 for at in syncs} | set(range(0, last, 7)) - edges)
    if len(others) > most and not is_thorough():
        others = random.Random(last).sample(others, most)
    yield from sorted(edges.union(others))


@traced
def test_i4_a_checkpoint_that_has_returned_survives_every_power_loss(place: Place) -> None:
    place.history_tree()
    record = recorded(place, SAVING)
    states: dict[CheckpointId, State] = {}
    names = [mark.split()[-1] for _, mark in record.marks if mark.startswith("saved")]
    first = place.saved(place.state("unsaved"))
    second = dict(first)
    second[b"a"] = place.item(0o644, first[b"a"].content + b"more")
    second[b"big"] = place.item(0o644, b"another beginning" + first[b"big"].content[17:])
    del second[b"b"]
    third = {path: item for path, item in second.items() if path != b"big"}
    states.update(zip(map(CheckpointId, names), (first, second, third), strict=True))
    for at in moments(record, 8):
        done = [mark for step, mark in record.marks if step <= at]
        promised = {CheckpointId(mark.split()[1]) for mark in done if mark.startswith("saved")}
        begun = [CheckpointId(name) for name in names]
        forgetting = "forgetting" in done
        for seed, loss in enumerate(("nothing", "all that may be", "some", "some")):
            record.rebuild(at, loss, seed)
            if "init" not in done:
                with place.init() as workspace:
                    workspace.checkpoint()
                continue
            with place.open() as workspace:
                left = {one.id for one in workspace.log().checkpoints}
            kept = promised - set(begun[:2]) if forgetting else promised
            assert kept <= left <= set(begun), (at, loss)
            if "forgotten" in done:
                assert left == {begun[2]}, (at, loss)
            place.known = {one: state for one, state in states.items() if one in left}
            place.sound(collect=seed == 3)


@traced
def test_i3_a_restore_that_loses_power_is_finished_or_taken_back(lived: Place) -> None:
    before = lived.look()
    record = recorded(lived, GOING_BACK)
    after = lived.look()
    assert lived.saved(after) == lived.state("first")
    for at in moments(record, 7):
        done = [mark for step, mark in record.marks if step <= at]
        for seed, loss in enumerate(("all that may be", "some", "nothing")):
            record.rebuild(at, loss, seed)
            lived.sound(collect=False)
            with lived.open() as workspace:
                unfinished = workspace.unfinished() is not None
            found = without_strange(lived.look())
            assert lived.ignored(found) == lived.ignored(before), (at, loss)
            if "restored" in done:
                assert found == after, (at, loss)
                continue
            for path, item in found.items():
                assert b".holdfast.tmp-" in path or item.mode < 0 or item in (before.get(path), after.get(path)), path
            if not unfinished:
                assert found in (before, after), (at, loss)
                continue
            for way, expected in (("continue", after), ("abort", before)):
                record.rebuild(at, loss, seed)
                with lived.open() as workspace:
                    result = workspace.restore_continue() if way == "continue" else workspace.restore_abort()
                    assert result.skipped == []
                assert filled(without_strange(lived.look())) == filled(expected), (at, loss, way)
            lived.sound(collect=False)


def without_strange(state: State) -> State:
    """Files that were taken away are known by their inode numbers, which a rebuilt disk cannot have."""
    return {path: item for path, item in state.items() if not path.startswith(b"found.kept-")}


def filled(state: State) -> State:
    """Without empty directories: one that a lost rename left behind is nobody's."""
    return {path: item for path, item in state.items() if item.mode >= 0}


class Noting(FaultyDisk):
    """Notes what became durable, and when."""

    def __init__(self, events: list[tuple[str, str]]) -> None:
        super().__init__(lambda name, number: None, SYSTEM_DISK)
        self._events = events

    def _note(self, event: str, path: str | int) -> None:
        self._events.append((event, path if isinstance(path, str) else os.readlink(f"/proc/self/fd/{path}")))

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> int:
        self._note("write", fd)
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._note("sync", fd)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._note("source", source)
        self._note("target", target)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._note("sync directory", path)


def test_i4_packs_are_durable_before_pages_and_pages_before_the_commit(place: Place) -> None:
    place.history_tree()
    events: list[tuple[str, str]] = []

    class Recorded(UnsyncedConnection):
        def execute(self, sql: str, /, *parameters: Any) -> sqlite3.Cursor:
            if sql.lstrip().startswith("INSERT INTO checkpoints"):
                events.append(("insert", ""))
            cursor = super().execute(sql, *parameters)
            if sql == "COMMIT":
                events.append(("commit", ""))
            return cursor

    connect = sqlite3.connect
    recording = mock.patch.object(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "factory": Recorded}))
    with recording, place.init() as workspace:
        objects = workspace._context.store.objects
        assert isinstance(objects, LocalObjects)
        objects.disk = Noting(events)
        for label in ("one", "two"):
            place.path(b"a").write_bytes(label.encode())
            place.path(b"big").write_bytes(label.encode() * 500_000)
            events.clear()
            workspace.checkpoint(label)
            durable: dict[str, int] = {}
            for number, (event, target) in enumerate(events):
                if event == "target":
                    source = events[number - 1][1]
                    last = max(n for n, (_, path) in enumerate(events[: number - 1]) if path == source)
                    assert events[last][0] == "sync", f"{target}: its content is durable before it gets its name"
                    durable[target] = events.index(("sync directory", os.path.dirname(target)), number)
            (pages,) = [target for target in durable if "/checkpoints/" in target]
            source = events[events.index(("target", pages)) - 1][1]
            begun = events.index(("write", source))
            insert = events.index(("insert", ""))
            assert {target.split("/objects/")[1].split("/")[0] for target in durable} == {
                "packs",
                "blobs",
                "checkpoints",
            }
            for target, when in durable.items():
                assert when < (insert if target == pages else begun), target
            assert ("commit", "") in events[insert:]
    place.sound()


@traced
def test_the_record_shows_what_a_missing_sync_would_lose(place: Place) -> None:
    """The two tests above can fail: without its syncs of objects, a checkpoint that has returned is lost."""
    place.history_tree()
    record = recorded(place, SAVING)
    (at,) = [at for at, mark in record.marks if mark.startswith("saved")][:1]
    record.rebuild(at, "all that may be")
    place.sound(collect=False)
    steps = [step for step in record.steps[:at] if not (step.name == "sync" and b"/objects/" in step.path)]
    Recording(bytes(place.root), bytes(place.base / "start"), steps, []).rebuild(len(steps), "all that may be")
    with place.open() as workspace:
        assert {problem.kind for problem in workspace.verify().problems} & {"damaged", "missing"}


def test_i4_the_catalog_syncs_every_commit(place: Place) -> None:
    """Without the patch that spares tests the wait."""
    with place.init() as workspace:
        connection = workspace._context.catalog.database._connection  # type: ignore[attr-defined]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    asked = (
        "import holdfast,sys; w = holdfast.open(sys.argv[2], home=sys.argv[1]);"
        "print(w._context.catalog.database._connection.execute('PRAGMA synchronous').fetchone()[0]); w.close()"
    )
    command = [sys.executable, "-c", asked, str(place.home), str(place.tree)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "2\n"
