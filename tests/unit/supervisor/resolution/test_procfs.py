"""What ``/proc`` says of processes that are not of the caller's tree: out of reach for all that is done in its name."""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from platform import machine
from typing import Any

import pytest

from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import ScriptedProcess, StepSupervision

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)

CWD = (1 << 64) - 100
TIMES = struct.pack("=qqqq", 1, 0, 1, 0)


class Scene:
    """A process that calls, one of its tree, and one outside, which both have a file open and stand beside it."""

    def __init__(self, base: Path, context: ExitStack) -> None:
        self.base = base
        for name in ("tree", "own", "outside"):
            (base / name).mkdir()
            (base / name / "file").write_text("content")
        root = os.open(base / "tree", os.O_PATH | os.O_DIRECTORY)
        context.callback(os.close, root)
        self.caller, self.own, self.outside = (
            context.enter_context(ScriptedProcess(os.fsencode(base / name))) for name in ("tree", "own", "outside")
        )
        nobody: Any = None  # nothing in the workspace is touched
        self.world = StepSupervision(nobody, root, 1, tree=(self.own.pid,))
        self.numbers = [process.run("open", "file", os.O_RDONLY) for process in (self.own, self.outside)]

    def call(self, name: str, *arguments: int | bytes) -> int:
        """The number of the error that it fails with, or 0."""
        return self.caller.supervised(self.world, name, *arguments).error

    def attempts(self, pid: int, number: int, base: Path) -> dict[str, int]:
        """What comes of everything that is tried by way of a process."""
        top = f"/proc/{pid}"
        found: dict[str, int] = {}
        ways = [f"fd/{number}", "cwd/file", f"root{base}/file", f"task/{pid}/fd/{number}", f"../{pid}/cwd/file"]
        for way in [f"{top}/{way}".encode() for way in (*ways, f"task/{pid}/cwd/file")]:
            calls: dict[str, tuple[int | bytes, ...]] = {
                "openat": (CWD, way, os.O_WRONLY, 0),
                "openat created": (CWD, way, os.O_RDWR | os.O_CREAT, 0o600),
                "openat cut": (CWD, way, os.O_RDONLY | os.O_TRUNC, 0),
                "truncate": (way, 1),
                "fchmodat": (CWD, way, 0o600),
                "fchownat": (CWD, way, os.getuid(), os.getgid(), 0),
                "utimensat": (CWD, way, TIMES, 0),
                "setxattr": (way, b"user.a", b"1", 1, 0),
            }
            for name, arguments in calls.items():
                found[f"{name} {way!r}"] = self.call(name.partition(" ")[0], *arguments)
        made = f"{top}/cwd/made".encode()
        found["mkdirat"] = self.call("mkdirat", CWD, made, 0o700)
        found["renameat"] = self.call("renameat", CWD, made, CWD, made + b" too")
        found["symlinkat"] = self.call("symlinkat", b"x", CWD, made)
        found["linkat"] = self.call("linkat", CWD, f"{top}/fd/{number}".encode(), CWD, made + b" link", 0x400)
        found["unlinkat"] = self.call("unlinkat", CWD, made, 0)
        found["rmdir"] = self.call("unlinkat", CWD, made + b" too", 0x200)
        for place in (top, f"{top}/task/{pid}"):
            start = self.caller.run("open", place, os.O_PATH)
            found[f"from {place}"] = self.call("openat", start, b"cwd/file", os.O_WRONLY, 0)
            found[f"from {place}, create"] = self.call("openat", start, b"cwd/file", os.O_WRONLY | os.O_CREAT, 0)
            self.caller.run("chdir", place)
            found[f"in {place}"] = self.call("truncate", b"cwd/file", 1)
            found[f"in {place}, named"] = self.call("fchmodat", CWD, b"cwd", 0o700)
            self.caller.run("close", start)
        self.caller.run("chdir", self.base / "tree")
        return found


@pytest.fixture(name="scene")
def _scene(tmp_path: Path) -> Generator[Scene]:
    with ExitStack() as context:
        yield Scene(tmp_path, context)


def test_nothing_is_done_by_way_of_a_process_outside(scene: Scene) -> None:
    """I7: the kernel would let the keeper pass where it lets no process of the tree."""
    before = os.stat(scene.base / "outside"), os.stat(scene.base / "outside/file")
    found = scene.attempts(scene.outside.pid, scene.numbers[1], scene.base / "outside")
    assert {name: error for name, error in found.items() if error != errno.EACCES} == {}
    assert (os.stat(scene.base / "outside"), os.stat(scene.base / "outside/file")) == before
    assert os.listdir(scene.base / "outside") == ["file"]


def test_nothing_is_done_by_way_of_the_keeper(scene: Scene) -> None:
    with open(scene.base / "outside/file") as file:
        for pid in (os.getpid(), os.getppid()):
            for way in (f"fd/{file.fileno()}", "oom_score_adj", "cwd/x", "exe", "task"):
                path = f"/proc/{pid}/{way}".encode()
                assert scene.call("openat", CWD, path, os.O_WRONLY, 0) == errno.EACCES
                assert scene.call("fchmodat", CWD, path, 0o700) == errno.EACCES


def test_a_process_of_the_tree_is_a_way(scene: Scene) -> None:
    found = scene.attempts(scene.own.pid, scene.numbers[0], scene.base / "own")
    assert {name: error for name, error in found.items() if error} == {}


def test_a_caller_is_its_own_way(scene: Scene) -> None:
    number = scene.caller.run("open", scene.base / "own/file", os.O_RDONLY)
    for top in ("self", "thread-self", str(scene.caller.pid), f"self/task/{scene.caller.pid}"):
        for path in (f"/proc/{top}/fd/{number}", f"/proc/{top}/root{scene.base}/own/file"):
            assert scene.call("openat", CWD, path.encode(), os.O_WRONLY, 0) == 0
            assert scene.call("truncate", path.encode(), 3) == 0
    assert scene.call("openat", CWD, b"/dev/fd/%d" % number, os.O_RDWR, 0) == 0
    assert scene.call("openat", CWD, b"/proc/sys/kernel/none", os.O_WRONLY, 0) == errno.ENOENT


def test_one_that_has_ended_is_nobody(scene: Scene) -> None:
    with ScriptedProcess(os.fsencode(scene.base)) as ended:
        scene.caller.run("chdir", f"/proc/{ended.pid}")
    assert scene.call("truncate", b"cwd/file", 1) == errno.ESRCH
    assert scene.call("truncate", f"/proc/{ended.pid}/cwd/file".encode(), 1) == errno.ENOENT


@pytest.mark.parametrize("flags", [0, 2], ids=["rename", "exchange"])
def test_no_undo_log_is_made_by_another_name(scene: Scene, flags: int) -> None:
    place = scene.base / "outside"
    (place / "made/undo").mkdir(parents=True)
    (place / "link").symlink_to("made")
    for kept in ("plain", ".holdfast") if flags else ("plain",):
        (place / kept).mkdir()
    scene.caller.run("chdir", place)
    for name in (b"made", b"link"):
        assert scene.call("renameat2", CWD, name, CWD, b".holdfast", flags) == errno.EACCES
        if flags:
            assert scene.call("renameat2", CWD, b".holdfast", CWD, name, flags) == errno.EACCES
    assert scene.call("symlinkat", b"made", CWD, b"plain/.holdfast") == errno.EACCES
    assert scene.call("linkat", CWD, b"link", CWD, b"plain/.holdfast", 0) == errno.EACCES
    assert scene.call("renameat2", CWD, b"made", CWD, b"plain", flags) == 0
    assert scene.call("symlinkat", b"made", CWD, b".holdfast2") == 0
    assert not (place / ".holdfast/undo").exists()


def test_another_directory_may_be_called_as_the_place_of_a_log(scene: Scene) -> None:
    scene.caller.run("chdir", scene.base / "outside")
    scene.caller.run("mkdir", "other")
    assert scene.call("renameat2", CWD, b"other", CWD, b".holdfast", 0) == 0
    assert scene.call("renameat2", CWD, b".holdfast", CWD, b"other", 0) == 0
