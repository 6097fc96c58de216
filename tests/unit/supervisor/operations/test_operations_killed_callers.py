"""Calls whose caller is killed while the keeper is busy with them: nothing of them happens any more."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from platform import machine
from typing import Any

import pytest

from holdfast.model.clock import SystemClock
from holdfast.supervisor.syscalls.pending_call import PendingCall
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import ScriptedProcess, StepSupervision
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.journal.records import StepId
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)

CWD = (1 << 64) - 100
LARGE = 20_000  # (it is copied, not noted)


class Killed(StepSupervision):
    """A world whose caller is killed when the keeper is about to journal, or is gone from the start."""

    gone = False
    dies = False

    def is_valid(self, call: PendingCall) -> bool:
        """See `HandlerContext.is_valid`."""
        return not self.gone

    def step(self, call: PendingCall) -> StepId:
        """See `HandlerContext.step`."""
        self.gone = self.gone or self.dies
        return self._step


class Scene:
    """A workspace with an undo log, a directory beside it, and a process that calls."""

    def __init__(self, base: Path, context: ExitStack) -> None:
        for name in ("log", "tree", "other"):
            (base / name).mkdir()
        for name in ("tree", "other"):
            (base / name / "file").write_text("content")
            (base / name / "large").write_bytes(bytes(LARGE))
            (base / name / "full").mkdir()
            (base / name / "full/file").write_text("content")
            (base / name / "empty").mkdir()
            (base / name / "empty2").mkdir()
        self.base = base
        # (First: it must not inherit the lock of the log.)
        self.puppet = context.enter_context(ScriptedProcess(os.fsencode(base / "tree")))
        self.root = os.open(base / "tree", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        context.callback(os.close, self.root)
        self.log = UndoLog(os.fsencode(base / "log"), self.root, SystemClock())
        self.number = self.log.new_id()
        self.log.recorder.begin(self.number, "api")
        self.world = Killed(self.log.recorder, self.root, self.number)

    def call(self, name: str, *arguments: int | bytes) -> int:
        return self.puppet.supervised(self.world, name, *arguments, patient=True).error

    def taken_back(self) -> list[object]:
        """What is in the way when the next keeper takes the step back, with all that was journalled for nothing."""
        self.log.close()
        self.log = UndoLog(os.fsencode(self.base / "log"), self.root, SystemClock())
        report = recover(self.log).rolled_back
        return [] if report is None else [*report.conflicts]

    def seen(self) -> Any:
        return photograph(self.base / "tree"), photograph(self.base / "other")


@pytest.fixture(name="scene")
def _scene(tmp_path: Path) -> Generator[Scene]:
    with ExitStack() as context:
        scene = Scene(tmp_path, context)
        yield scene
        scene.log.close()


def calls(where: bytes) -> list[tuple[str, tuple[int | bytes, ...]]]:
    """Every way to change something, in the workspace or outside."""
    create, cut = os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_TRUNC
    return [
        ("openat", (CWD, where + b"new", create, 0o600)),
        ("openat", (CWD, where + b"file", cut, 0)),
        ("openat", (CWD, where + b"large", cut, 0)),
        ("openat", (CWD, where + b"file", os.O_RDONLY | os.O_TRUNC, 0)),
        ("truncate", (where + b"file", 2)),
        ("mkdirat", (CWD, where + b"new", 0o700)),
        ("mknodat", (CWD, where + b"new", 0o010600, 0)),
        ("symlinkat", (b"target", CWD, where + b"new")),
        ("linkat", (CWD, where + b"file", CWD, where + b"new", 0)),
        ("unlinkat", (CWD, where + b"file", 0)),
        ("unlinkat", (CWD, where + b"empty", 0x200)),
        ("renameat2", (CWD, where + b"file", CWD, where + b"new", 0)),
        ("renameat2", (CWD, where + b"file", CWD, where + b"large", 0)),
        ("renameat2", (CWD, where + b"full", CWD, where + b"empty", 0)),
        ("renameat2", (CWD, where + b"full", CWD, where + b"file", 2)),
        ("fchmodat", (CWD, where + b"file", 0o400)),
        ("fchownat", (CWD, where + b"file", os.getuid(), os.getgid(), 0)),
        ("utimensat", (CWD, where + b"file", bytes(32), 0)),
        ("setxattr", (where + b"file", b"user.a", b"b", 1, 0)),
    ]


@pytest.mark.parametrize("nth", range(len(calls(b""))), ids=lambda nth: f"{calls(b'')[nth][0]}-{nth}")
def test_nothing_happens_for_a_caller_that_was_killed(scene: Scene, nth: int) -> None:
    """Be it in the workspace or outside; and what had been journalled by then is taken for nothing."""
    inside, outside = (calls(where)[nth] for where in (b"", b"../other/"))
    assert scene.call("openat", CWD, b"file", os.O_RDWR, 0) == 0  # (now it is known, and not looked at anew)
    before = scene.seen()
    scene.world.dies = True
    assert scene.call(inside[0], *inside[1]) == errno.EINTR
    assert scene.world.gone
    assert scene.call(outside[0], *outside[1]) == errno.EINTR
    assert all(not differences(*pair) for pair in zip(before, scene.seen(), strict=True))
    assert scene.taken_back() == []
    assert not differences(before[0], scene.seen()[0])
