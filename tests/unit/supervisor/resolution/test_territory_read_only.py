"""Which objects are read-only, and how calls that would change them fail, each as on a read-only file system."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from platform import machine
from typing import Any

import pytest

from holdfast.supervisor.resolution.territory import Location, ReadOnly, Territory
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.scripted_process import ScriptedProcess, StepSupervision

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or machine() not in ARCHITECTURES, reason="the supervisor does not support this machine"
)

CWD = (1 << 64) - 100
NOREPLACE = 1


def directory(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


class Scene:
    """A workspace, a read-only directory beside it, another directory, and a process that calls."""

    def __init__(self, base: Path, context: ExitStack) -> None:
        self.base = base
        for name in ("tree/sub", "kept/sub", "kept2", "other"):
            (base / name).mkdir(parents=True)
        (base / "kept/file").write_text("content")
        self.kept = ReadOnly(directory(base / "kept"))
        context.callback(self.kept.close)
        root = directory(base / "tree")
        context.callback(os.close, root)
        nobody: Any = None  # nothing in the workspace is touched
        self.world = StepSupervision(nobody, root, 1, read_only=(self.kept,))
        self.territory = Territory(self.world)
        self.puppet = context.enter_context(ScriptedProcess(os.fsencode(base / "tree")))

    def where(self, name: str) -> Location:
        return self.territory.locate(os.fsencode(self.base / name))

    def call(self, name: str, *arguments: int | bytes) -> int:
        """The number of the error that it fails with, or 0."""
        return self.puppet.supervised(self.world, name, *arguments).error


@pytest.fixture(name="scene")
def _scene(tmp_path: Path) -> Generator[Scene]:
    with ExitStack() as context:
        yield Scene(tmp_path, context)


def test_a_directory_and_all_beneath_it_is_read_only(scene: Scene) -> None:
    for name in ("kept", "kept/sub", "kept/sub/deep"):
        assert scene.where(name) == Location(os.fsencode(scene.base / name), None, read_only=True)
    for name in ("kept2", "kep", "other", ".", "tree", "tree/kept"):
        assert not scene.where(name).read_only
    above = scene.where(".")
    assert scene.territory.child(above, b"kept").read_only
    assert not scene.territory.child(above, b"kept2").read_only
    for name, holds in (("kept", True), (".", True), ("kept/sub", False), ("kept2", False), ("other", False)):
        assert scene.territory.holds_read_only(os.fsencode(scene.base / name)) is holds


def test_it_is_so_wherever_it_is_moved_and_whatever_comes_in_its_place(scene: Scene) -> None:
    (scene.base / "kept").rename(scene.base / "other/moved")
    scene.territory.forget()
    assert [scene.where(name).read_only for name in ("kept/file", "other/moved/file", "other/file")] == [
        True,
        True,
        False,
    ]
    (scene.base / "other/moved").rename(scene.base / "tree/moved")
    scene.territory.forget()
    assert scene.where("tree/moved").read_only
    assert scene.territory.child(scene.where("tree"), b"moved").read_only


def test_who_is_not_done_yet_at_the_end_finds_it_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    fd = directory(tmp_path / "kept")
    kept = ReadOnly(fd)
    kept.close()
    assert os.open(tmp_path, os.O_PATH) == fd, "the number is another's now"
    assert kept.paths() == (os.fsencode(tmp_path / "kept"),) * 2
    os.close(fd)


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        (errno.EROFS, lambda call: call("openat", CWD, b"../kept/file", os.O_WRONLY, 0)),
        (errno.EROFS, lambda call: call("openat", CWD, b"../kept/file", os.O_RDONLY | os.O_TRUNC, 0)),
        (errno.EROFS, lambda call: call("openat", CWD, b"../kept/new", os.O_RDONLY | os.O_CREAT, 0o600)),
        (0, lambda call: call("openat", CWD, b"../kept/file", os.O_RDONLY | os.O_CREAT, 0o600)),
        (0, lambda call: call("openat", CWD, b"../other/new", os.O_WRONLY | os.O_CREAT, 0o600)),
        (errno.EEXIST, lambda call: call("openat", CWD, b"../kept/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)),
        (errno.EISDIR, lambda call: call("openat", CWD, b"../kept/sub", os.O_WRONLY, 0)),
        (errno.ENOENT, lambda call: call("openat", CWD, b"../kept/new", os.O_WRONLY, 0)),
        (errno.EROFS, lambda call: call("mkdirat", CWD, b"../kept/new", 0o700)),
        (errno.EEXIST, lambda call: call("mkdirat", CWD, b"../kept/sub", 0o700)),
        (errno.EEXIST, lambda call: call("mkdirat", CWD, b"../kept/sub/..", 0o700)),
        (errno.EROFS, lambda call: call("unlinkat", CWD, b"../kept/new", 0)),
        (errno.EROFS, lambda call: call("renameat", CWD, b"../kept/file", CWD, b"../other/file")),
        (errno.EROFS, lambda call: call("renameat", CWD, b"../other", CWD, b"../kept/new")),
        (errno.EROFS, lambda call: call("renameat2", CWD, b"../kept", CWD, b"../other/kept", NOREPLACE)),
        (errno.EXDEV, lambda call: call("linkat", CWD, b"../kept/file", CWD, b"../other/file", 0)),
        (errno.EROFS, lambda call: call("linkat", CWD, b"../kept/file", CWD, b"../kept/new", 0)),
        (errno.EROFS, lambda call: call("fchmodat", CWD, b"../kept", 0o777)),
        (errno.EROFS, lambda call: call("truncate", b"../kept/file", 0)),
        (errno.EISDIR, lambda call: call("truncate", b"../kept/sub", 0)),
    ],
)
def test_calls_fail_as_on_a_read_only_file_system(
    scene: Scene, expected: int, call: Callable[[Callable[..., int]], int]
) -> None:
    assert call(scene.call) == expected
    assert sorted(os.listdir(scene.base / "kept")) == ["file", "sub"]
    assert (scene.base / "kept/file").read_text() == "content"
    assert (scene.base / "kept/file").stat().st_nlink == 1
