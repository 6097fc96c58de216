"""What lies deeper than the kernel takes, or says, a path (4,096 bytes)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.files.linux import long_paths
from holdfast.files.linux.long_paths import open_below, path_of

OBJECT = os.O_PATH | os.O_NOFOLLOW
LEVELS = 50


class Bottom:
    """A directory whose path is twice as long as the kernel says one."""

    def __init__(self, top: Path) -> None:
        self.path = os.fsencode(top)
        self.fd = os.open(top, OBJECT)
        for level in range(LEVELS):
            self.enter(b"%0200d" % level)

    def enter(self, name: bytes) -> None:
        os.mkdir(name, dir_fd=self.fd)
        inner = os.open(name, OBJECT, dir_fd=self.fd)
        os.close(self.fd)
        self.fd, self.path = inner, self.path + b"/" + name

    def write(self, name: bytes) -> int:
        return os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.fd)


@pytest.fixture(name="bottom")
def _bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bottom]:
    monkeypatch.setattr(long_paths, "_paths", {})
    bottom = Bottom(tmp_path.resolve())
    yield bottom
    os.close(bottom.fd)
    shutil.rmtree(tmp_path / f"{0:0200d}", ignore_errors=True)


def test_a_short_path_is_as_the_kernel_says_it(tmp_path: Path) -> None:
    fd = os.open(tmp_path, OBJECT)
    assert path_of(fd) == bytes(tmp_path.resolve())
    os.close(fd)


def test_a_long_path_of_a_directory_is_found_name_by_name(bottom: Bottom) -> None:
    assert path_of(bottom.fd) == bottom.path
    bottom.enter(b"more")
    assert path_of(bottom.fd) == bottom.path


def test_a_directory_that_was_looked_up_before_is_told_where_it_is_now(bottom: Bottom, tmp_path: Path) -> None:
    assert path_of(bottom.fd) == bottom.path
    first, second = f"{0:0200d}", f"{1:0200d}"
    (tmp_path / first / second).rename(tmp_path / first / "moved")
    assert path_of(bottom.fd) == bottom.path.replace(second.encode(), b"moved")
    (tmp_path / first / second).mkdir()  # (and another one, by the same name, has nothing to do with it)
    assert path_of(bottom.fd) == bottom.path.replace(second.encode(), b"moved")


def test_a_directory_that_was_removed_is_said_to_be(bottom: Bottom) -> None:
    above = os.open("..", OBJECT, dir_fd=bottom.fd)
    os.rmdir(bottom.path.rpartition(b"/")[2], dir_fd=above)
    os.close(above)
    assert path_of(bottom.fd).endswith(long_paths.DELETED)


@pytest.mark.parametrize("content", [b"", b"content"])
def test_a_long_path_of_a_file_is_found_without_reading_it(bottom: Bottom, content: bytes) -> None:
    fd = bottom.write(b"file (1)\\ \xff")
    os.write(fd, content)
    os.utime(fd, ns=(1, 1))
    assert path_of(fd) == bottom.path + b"/file (1)\\ \xff"
    assert (os.fstat(fd).st_atime_ns, os.fstat(fd).st_mtime_ns) == (1, 1)
    os.close(fd)


@pytest.mark.parametrize("name", [b"one\ntwo", rb"one\012two"])
def test_a_name_that_is_not_told_from_another_is_not_said(bottom: Bottom, name: bytes) -> None:
    fd = bottom.write(name)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENAMETOOLONG}\]"):
        path_of(fd)
    os.close(fd)


def test_the_path_of_a_pipe_is_too_long(bottom: Bottom) -> None:
    os.mkfifo(b"pipe", dir_fd=bottom.fd)
    fd = os.open(b"pipe", OBJECT, dir_fd=bottom.fd)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENAMETOOLONG}\]"):
        path_of(fd)
    os.close(fd)


def test_a_path_of_any_length_is_opened(bottom: Bottom) -> None:
    top = os.open("/", OBJECT)
    fd = open_below(top, bottom.path[1:], OBJECT, 0)
    assert os.path.samestat(os.fstat(fd), os.fstat(bottom.fd))
    os.close(fd)
    os.close(top)
