"""I7: the paths of the undo log lead nowhere but into the tree."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.files.linux import syscalls
from holdfast.undo.tree.rooted_directories import Directories


@pytest.fixture(params=[True, False], ids=["openat2", "by component"])
def directories(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Generator[Directories]:
    if not request.param:

        def missing(*_: object) -> int:
            raise OSError(38, "")

        monkeypatch.setattr(syscalls, "openat2", missing)
    (tmp_path / "tree/inner/most").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    os.symlink("../outside", tmp_path / "tree/link")
    os.symlink("inner", tmp_path / "tree/within")
    root = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    found = Directories(root)
    yield found
    found.close()
    os.close(root)


@pytest.mark.parametrize(
    "path", [b"../outside/x", b"link/x", b"within/x", b"inner/../../outside/x", b"/etc/x", b"..", b".", b"", b"a\0b"]
)
def test_nothing_outside_is_reached(directories: Directories, path: bytes) -> None:
    with pytest.raises(OSError, match=r"\[Errno \d+\]"):
        directories.place(path)


def test_what_is_inside_is(directories: Directories, tmp_path: Path) -> None:
    place = directories.place(b"inner/most/new")
    assert os.fstat(place.dir_fd).st_ino == (tmp_path / "tree/inner/most").stat().st_ino
    assert (place.name, place.path, place.parent) == (b"new", b"inner/most/new", b"inner/most")


def test_few_stay_open(directories: Directories, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for at in range(200):
        (tmp_path / "tree" / str(at)).mkdir()
        directories.directory(b"%d" % at)
    assert len(os.listdir("/proc/self/fd")) <= before + 128
    directories.forget(b"199")
    os.rmdir(tmp_path / "tree/199")
    with pytest.raises(FileNotFoundError):
        directories.directory(b"199")
