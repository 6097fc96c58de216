"""I1, I8: steps whose processes share files, by descriptors and mappings, are taken back exactly; no edit is lost."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.model.clock import SystemClock
from holdfast.model.errors import RefusedError
from holdfast.testing.tree_actor import InterceptedActor
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.completion.late_writes import settle_late_writes
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

from ..sampling import some

NAMES = (b"a", b"b", b"d/a", b"d/b", b"d/c")


class Mapping:
    """Memory that several processes share, as after a fork."""

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)
        self.inode = os.fstat(fd).st_ino
        self.memory = mmap.mmap(fd, 0)
        self.users = 1

    def drop(self) -> None:
        self.users -= 1
        if not self.users:
            self.memory.close()
            os.close(self.fd)


class Group:
    """The processes of one step at a time."""

    def __init__(self) -> None:
        self.step = 0
        self.live = 0


class Process:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.fds: list[int] = []
        self.maps: list[Mapping] = []
        group.live += 1


class History:
    """What processes do to a tree, in an order that the seed says, and with the moments at which steps are finished."""

    def __init__(self, base: Path, seed: str) -> None:
        self.chance = Random(seed)
        self.tree = base / "tree"
        (self.tree / "d").mkdir(parents=True)
        for name in ("a", "d/b", "d/c"):
            (self.tree / name).write_bytes(self.chance.randbytes(self.chance.randrange(100, 6000)))
        self.root = os.open(self.tree, os.O_RDONLY)
        self.log = UndoLog(os.fsencode(base / "log"), self.root, SystemClock())
        self.log.writers = self.held
        self.service = LocalUndoService(self.log)
        self.processes = [Process(Group())]
        self.unfinished: list[Callable[[], object]] = []

    def held(self, thorough: bool) -> frozenset[int]:
        del thorough
        opened = (os.fstat(fd).st_ino for process in self.processes for fd in process.fds)
        return frozenset((*opened, *(area.inode for process in self.processes for area in process.maps)))

    def close_step(self, group: Group) -> None:
        if group.step:
            finish = self.service.begin_close(group.step, 0)
            group.step = 0
            self.unfinished += [] if finish is None else [finish]

    def end(self, process: Process) -> None:
        for fd in process.fds:
            os.close(fd)
        for area in process.maps:
            area.drop()
        self.processes.remove(process)
        process.group.live -= 1
        if not process.group.live:
            self.close_step(process.group)

    def fork(self, process: Process) -> None:
        is_first = process is self.processes[0]
        child = Process(Group() if is_first or self.chance.random() < 0.5 else process.group)
        child.fds = [os.dup(fd) for fd in process.fds]
        child.maps = list(process.maps)
        for area in child.maps:
            area.users += 1
        self.processes.append(child)

    def finish(self, most: int) -> None:
        for _ in range(min(most, len(self.unfinished))):
            self.unfinished.pop(0)()

    def actor(self, process: Process) -> InterceptedActor:
        group = process.group
        group.step = group.step or self.service.open("command", run="r")
        return InterceptedActor(self.log.recorder, os.fsencode(self.tree), group.step)

    def act(self) -> None:
        """One thing, by one of the processes, or by the keeper."""
        chance = self.chance
        process, one, other = chance.choice(self.processes), chance.choice(NAMES), chance.choice(NAMES)
        kind = chance.randrange(32)
        if kind < 12:
            with self.actor(process) as actor:
                self.act_by_name(kind, process, actor, one, other)
        elif kind < 15 and process.fds:
            os.pwrite(chance.choice(process.fds), chance.randbytes(10), chance.randrange(5000))
        elif kind == 15 and process.fds:
            os.ftruncate(chance.choice(process.fds), chance.randrange(5000))
        elif kind < 18 and process.fds and os.fstat(fd := chance.choice(process.fds)).st_size:
            process.maps.append(Mapping(fd))
        elif kind < 22 and process.maps:
            area = chance.choice(process.maps)
            if size := min(len(area.memory), os.fstat(area.fd).st_size):
                area.memory[chance.randrange(size)] = chance.randrange(256)
        elif kind < 24 and process.fds:
            os.close(process.fds.pop(chance.randrange(len(process.fds))))
        elif kind == 24 and process.maps:
            process.maps.pop(chance.randrange(len(process.maps))).drop()
        elif kind < 28 and len(self.processes) < 7:
            self.fork(process)
        elif kind < 30 and process is not self.processes[0]:
            self.end(process)
        elif kind == 30:
            self.finish(1)
        elif chance.random() < 0.3:
            self.close_step(process.group)
        elif chance.random() < 0.5:
            settle_late_writes(self.log, eagerly=chance.random() < 0.5)

    def act_by_name(self, kind: int, process: Process, actor: InterceptedActor, one: bytes, other: bytes) -> None:
        chance = self.chance
        if kind < 4:
            flags = chance.choice((0, os.O_CREAT)) | chance.choice((0, 0, os.O_TRUNC))
            process.fds.append(actor.open(one, os.O_RDWR | flags, 0o644))
        elif kind == 4:
            actor.write(one, chance.randbytes(chance.randrange(3000)))
        elif kind < 7:
            actor.unlink(one)
        elif kind == 7:
            actor.link(one, other)
        elif kind < 10:
            actor.rename(one, other)
        elif kind == 10:
            actor.chmod(one, chance.choice((0o600, 0o644)))
        else:
            actor.write(b"new", chance.randbytes(50))
            actor.rename(b"new", one)

    def play(self) -> None:
        for _ in range(self.chance.randrange(40, 400)):
            try:
                self.act()
            except OSError:
                continue  # the system's answer
        while self.processes:
            self.end(self.chance.choice(self.processes))
            self.finish(self.chance.choice((0, 0, 1)))
        self.finish(len(self.unfinished))
        settle_late_writes(self.log)

    def steps(self) -> list[int]:
        return [head.id for head in self.log.heads.values() if head.state == "done" and head.paths]

    def edit(self) -> tuple[Path, bytes]:
        """An edit by another process."""
        path = self.chance.choice(sorted(path for path in self.tree.rglob("*") if path.is_file()))
        with path.open("ab") as file:
            file.write(b"by hand")
        return path, path.read_bytes()

    def close(self) -> None:
        self.log.close()
        os.close(self.root)


@pytest.mark.parametrize("chunk", some(range(20), 1))
def test_what_steps_that_share_files_did_is_taken_back_unless_another_process_edits_it(
    tmp_path: Path, chunk: int
) -> None:
    for seed in range(25):
        history = History(tmp_path / str(seed), f"{chunk}_{seed}")
        before = photograph(history.tree)
        history.play()
        after, steps = photograph(history.tree), history.steps()
        if steps:
            assert history.log.barriers.records == []
            history.service.undo(steps)
            assert differences(before, photograph(history.tree)) == []
            history.service.redo(steps)
            assert differences(after, photograph(history.tree)) == []
        if any(path.is_file() for path in history.tree.rglob("*")):
            path, content = history.edit()
            try:
                history.service.undo(steps)
            except RefusedError:
                assert path.read_bytes() == content
            else:
                assert any(path.read_bytes() == content for path in history.tree.rglob("*") if path.is_file())
        history.close()
