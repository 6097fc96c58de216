"""I1: random system calls carried out by the supervisor come out as the kernel's own, and can be taken back."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from platform import machine

import pytest

from holdfast.model.clock import SystemClock
from holdfast.supervisor.syscalls.pending_call import SlowError
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import Outcome, ScriptedProcess, StepSupervision
from holdfast.testing.tree_state import PathState, differences, photograph
from holdfast.undo.completion.step_sealer import StepEnd, seal_step
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)

CWD = (1 << 64) - 100
NAMES = (
    b"a", b"b", b"c", b"d", b"x", b"y", b"new", b"other", b".", b"to-a", b"to-x", b"dangling", b"outside", b"loop",
    b"by-proc", b"made", b"fifo",
)  # fmt: skip


def plant(top: Path) -> None:
    """A tree with every kind of thing in it, and something beside it."""
    for directory in ("ws/a/c", "ws/b/d", "out"):
        (top / directory).mkdir(parents=True)
    for size, file in enumerate(("ws/x", "ws/a/x", "ws/b/y", "ws/a/c/y", "out/x")):
        (top / file).write_bytes(b"." * size * 6000)
    for name, target in {
        "to-a": "a",
        "to-x": "x",
        "dangling": "nowhere",
        "outside": "../out",
        "loop": "loop",
        "by-proc": "/proc/self/cwd",
        "made": "a/c/../made",
    }.items():
        (top / "ws" / name).symlink_to(target)
    os.mkfifo(top / "ws" / "fifo")


def some_call(chance: random.Random) -> tuple[str, tuple[int | bytes, ...]]:
    """A call of the kind that every machine has, and its arguments."""

    def path() -> bytes:
        names = chance.choices(NAMES, k=chance.choice((1, 1, 2, 2, 3)))
        return b"/".join(names) + chance.choice((b"",) * 12 + (b"/", b"/.", b"/.."))

    mode = chance.choice((0o777, 0o644, 0o4755, 0o1777, 0o2755))
    flags = os.O_NONBLOCK | chance.choice((os.O_WRONLY, os.O_RDWR))
    flags |= chance.choice((0, os.O_CREAT)) | chance.choice((0, os.O_TRUNC)) | chance.choice((0, 0, os.O_EXCL))
    flags |= chance.choice((0, 0, 0, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_APPEND))
    how = struct.pack("QQQ", flags, mode if flags & os.O_CREAT else 0, chance.choice((0, 1, 2, 4, 8, 16)))
    at = chance.choice((0, 0, 0x100, 0x1000))
    times = struct.pack("qqqq", 5, 6, chance.randrange(10**9), chance.choice((7, (1 << 30) - 1, (1 << 30) - 2, 10**9)))
    value = chance.randbytes(chance.choice((0, 3, 50)))
    attribute = chance.choice((b"user.a", b"user.b", b"", b"bad"))
    calls: tuple[tuple[str, tuple[int | bytes, ...]], ...] = (
        *(("openat", (CWD, path(), flags, mode)),) * 4,
        ("openat2", (CWD, path(), how, 24)),
        *(("mkdirat", (CWD, path(), mode)),) * 2,
        *(("unlinkat", (CWD, path(), chance.choice((0, 0x200)))),) * 2,
        *(("renameat2", (CWD, path(), CWD, path(), chance.choice((0, 0, 0, 1, 2, 3)))),) * 4,
        *(("linkat", (CWD, path(), CWD, path(), chance.choice((0, 0x400)))),) * 2,
        ("symlinkat", (path(), CWD, path())),
        ("mknodat", (CWD, path(), chance.choice((0o100644, 0o10600, 0o140755, 0o40755)), 0)),
        ("truncate", (path(), chance.choice((0, 5, 30_000)))),
        ("fchmodat", (CWD, path(), mode)),
        ("fchmodat2", (CWD, path(), mode, at)),
        ("fchownat", (CWD, path(), 0xFFFFFFFF, 0xFFFFFFFF, at)),
        ("utimensat", (CWD, path(), times, at & 0x100)),
        ("setxattr", (path(), attribute, value, len(value), chance.choice((0, 0, 1, 2, 4)))),
        ("removexattr", (path(), attribute)),
    )
    return chance.choice(calls)


def without_times(photo: dict[bytes, PathState]) -> dict[bytes, PathState]:
    """Two trees that are changed one after the other have other times."""
    return {path: seen._replace(mtime=0) for path, seen in photo.items()}


@contextmanager
def recording(base: Path) -> Generator[StepSupervision]:
    """A step of the workspace in ``base``, which is undone at the end; then everything must be as it was."""
    before = photograph(base / "tree" / "ws")
    root = os.open(base / "tree" / "ws", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(os.fsencode(base / "log"), root, SystemClock())
    home = os.open(base / "log", os.O_PATH)
    try:
        step = log.new_id()
        log.recorder.begin(step, "api")
        yield StepSupervision(log.recorder, root, step, (home,))
        log.beat()
        seal_step(log, log.recorder.end(step, 0), StepEnd("done", 0, 0))
        log.journal.restart()
        assert LocalUndoService(log).undo([step]).conflicts == ()
        assert differences(before, photograph(base / "tree" / "ws")) == []
    finally:
        log.close()
        os.close(root)
        os.close(home)


def carried_out(
    puppet: ScriptedProcess, world: StepSupervision, name: str, arguments: tuple[int | bytes, ...]
) -> Outcome:
    try:
        outcome = puppet.supervised(world, name, *arguments)
    except SlowError:
        outcome = puppet.supervised(world, name, *arguments, patient=True)
    return puppet.do(ARCHITECTURES[machine()].numbers[name], *arguments) if outcome.native else outcome


@pytest.mark.parametrize("seed", range(25))
def test_calls_come_out_as_the_kernels_own_and_are_taken_back(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    trees = tmp_path / "tree", tmp_path / "twin"
    for tree in trees:
        plant(tree)
    with (
        recording(tmp_path) as world,
        ScriptedProcess(os.fsencode(trees[0] / "ws")) as supervised,
        ScriptedProcess(os.fsencode(trees[1] / "ws")) as native,
    ):
        for _ in range(80):
            name, arguments = some_call(chance)
            expected = native.do(ARCHITECTURES[machine()].numbers[name], *arguments)
            got = carried_out(supervised, world, name, arguments)
            if got.error == errno.EXDEV != expected.error:
                # For links and renames the workspace is a file system of its own.
                if not expected.error:
                    break
                continue
            assert (got.error, got.value < 0) == (expected.error, expected.value < 0), (name, arguments)
            if "open" in name and expected.value >= 0:
                for puppet, fd in ((supervised, got.value), (native, expected.value)):
                    if stat.S_ISREG(puppet.run("fstat", fd).st_mode):
                        puppet.run("write", fd, b"written")
                    puppet.run("close", fd)
            for part in ("ws", "out"):
                here, there = (without_times(photograph(tree / part)) for tree in trees)
                assert differences(there, here) == [], (name, arguments)
