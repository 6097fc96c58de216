"""I3 for a file that something is mounted over: it is written in place, so that a kill may leave it half written."""

from __future__ import annotations

import os
import random
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.files.write import atomic_replacement
from holdfast.testing.crash_points import MUTATIONS, count_steps, run_killed, without_syncs

from ..disks import bound
from ..sampling import moments, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.engine.workspace.workspace import Workspace
    from holdfast.model.entries import NotCaptured

LONG = random.Random(1).randbytes(300_000)
SHORT = random.Random(2).randbytes(200_000)


class Box:
    """A workspace with a mounted file, which is as it was saved last."""

    def __init__(self, base: Path, before: bytes, after: bytes) -> None:
        self.base, self.tree, self.outside = base, base / "tree", base / "outside"
        self.before, self.after = before, after

    def open(self) -> Workspace:
        return holdfast.open(self.tree, home=self.base / "home")

    def begin(self) -> None:
        self.outside.write_bytes(self.after)
        (self.tree / "other").write_bytes(b"after")
        with holdfast.init(self.tree, home=self.base / "home") as workspace:
            workspace.checkpoint("goal")
            self.outside.write_bytes(self.before)
            (self.tree / "other").write_bytes(b"before")
            workspace.checkpoint("start")
        shutil.copytree(self.base / "home", self.base / "kept")

    def put_back(self) -> None:
        shutil.rmtree(self.base / "home")
        shutil.copytree(self.base / "kept", self.base / "home")
        for one in self.tree.iterdir():
            if one.name not in ("config", "other"):
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        self.outside.write_bytes(self.before)
        (self.tree / "other").write_bytes(b"before")

    def restore(self) -> None:
        with self.open() as workspace:
            workspace.restore("goal")

    def look(self) -> tuple[bytes, bytes, list[str]]:
        names = sorted(one.name for one in self.tree.iterdir())
        return self.outside.read_bytes(), (self.tree / "other").read_bytes(), names

    def start(self) -> tuple[bytes, bytes, list[str]]:
        return self.before, b"before", ["config", "other"]

    def goal(self) -> tuple[bytes, bytes, list[str]]:
        return self.after, b"after", ["config", "other"]


@pytest.fixture(params=["grows", "shrinks"])
def box(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setattr(atomic_replacement, "CHUNK_BYTES", 64 << 10)
    before, after = (SHORT, LONG) if request.param == "grows" else (LONG, SHORT)
    box = Box(tmp_path, before, after)
    box.tree.mkdir()
    (box.tree / "config").touch()
    box.outside.touch()
    with bound(box.outside, box.tree / "config"), without_syncs():
        box.begin()
        yield box


def half_written(box: Box) -> bool:
    return box.outside.read_bytes() not in (box.before, box.after)


def kill_half_way(box: Box) -> None:
    def work() -> None:
        write, over = atomic_replacement._write_all, atomic_replacement.write_over

        def write_once(fd: int, data: bytes) -> None:
            write(fd, data)
            os.kill(os.getpid(), signal.SIGKILL)

        def write_over(*given: Any) -> Any:
            atomic_replacement._write_all = write_once
            return over(*given)

        atomic_replacement.write_over = write_over
        box.restore()

    assert run_killed(work, 0).killed
    assert box.outside.read_bytes() not in (box.before, box.after)


def kill_at(fatal: int) -> Callable[[Box], object]:
    return lambda box: run_killed(box.restore, fatal, calls=MUTATIONS)


def mend(workspace: Workspace, way: str) -> list[NotCaptured]:
    done = workspace.restore_continue() if way == "continue" else workspace.restore_abort()
    return list(done.skipped)


def test_i3_it_is_finished_or_taken_back(box: Box) -> None:
    box.put_back()
    names = count_steps(box.restore, calls=MUTATIONS)
    there = [number for number, name in enumerate(names, 1) if name in ("write", "ftruncate", "fsync", "unlink")]
    for die in (kill_half_way, *map(kill_at, moments(there, 5))):
        for way in ("continue", "abort"):
            box.put_back()
            die(box)
            with box.open() as workspace:
                if workspace.unfinished() is None:
                    assert box.look() in (box.start(), box.goal())
                    continue
                assert mend(workspace, way) == []
                assert box.look() == (box.goal() if way == "continue" else box.start())
                assert workspace.verify(read_data=True).ok


@pytest.mark.parametrize("way", ["continue", "abort"])
def test_i3_killed_again_while_it_mends_it_converges(box: Box, way: str) -> None:
    kill_half_way(box)

    def work() -> None:
        with box.open() as workspace:
            assert mend(workspace, way) == []

    for fatal in range(1, 200, spread(9)):
        run_killed(work, fatal, calls=MUTATIONS)
        with box.open() as workspace:
            if workspace.unfinished() is None:
                break
    assert box.look() == (box.goal() if way == "continue" else box.start())


@pytest.mark.parametrize("way", ["continue", "abort"])
def test_i8_what_another_process_wrote_since_stays(box: Box, way: str) -> None:
    kill_half_way(box)
    box.outside.write_bytes(b"an edit since")
    with box.open() as workspace:
        assert [one.path for one in mend(workspace, way)] == [b"config"]
    assert box.outside.read_bytes() == b"an edit since"
