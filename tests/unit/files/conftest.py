"""What the tests of several modules about files share."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from .applying import Workspace


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """An empty directory that is an overlay of two others, as the root of a container is."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount an overlay")
    lower, upper, work, place = (tmp_path / name for name in ("lower", "upper", "work", "overlay"))
    for path in (lower, upper, work, place):
        path.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount an overlay here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def map_file() -> Callable[[Path], AbstractContextManager[Callable[[bytes], object]]]:
    """Maps a file for writing and keeps no descriptor of it, as `mmap` would; gives what stores at its beginning."""
    return _mapped


@contextmanager
def _mapped(path: Path) -> Generator[Callable[[bytes], object]]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    with path.open("r+b") as opened:
        at = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, opened.fileno(), 0)
    assert at != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    try:
        yield lambda data: ctypes.memmove(at, data, len(data))
    finally:
        libc.munmap(at, size)


@pytest.fixture(params=["renameat2", "no flags"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "w").mkdir()
    flags = request.param == "renameat2"
    space = Workspace(tmp_path / "w", flags=flags, beneath=flags)
    yield space
    assert space.temporaries() == [], "nothing of ours is left lying"
    space.root.close()
