"""What a mounted directory says of when a file was changed, also through mappings, to who asks for that alone.

(Whoever asks for more than modification times is answered by what is true now: a mapping changes the time of access.)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from ..fuse import ONLY_WITH_FUSE
from .bridge import bridged

pytestmark = ONLY_WITH_FUSE
BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


def modified(path: Path) -> str:
    """Asks for nothing else, as no function of Python does."""
    return subprocess.run(["stat", "-c", "%.9Y", path], capture_output=True, text=True, check=True).stdout


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    """With a ``file`` in ``tree`` that was changed long ago, and ``mnt``."""
    for name in ("tree", "mnt"):
        (tmp_path / name).mkdir()
    (tmp_path / "tree" / "file").write_bytes(bytes(BYTES))
    os.utime(tmp_path / "tree" / "file", (1, 1))
    return tmp_path


def test_who_writes_through_a_mapping_changes_the_time_that_others_have_asked_for_before(place: Path) -> None:
    file = place / "mnt" / "file"
    with bridged(place / "tree", place / "log", place / "mnt"):
        assert modified(file) == "1.000000000\n"
        with open(file, "r+b") as opened, closing(mmap.mmap(opened.fileno(), BYTES)) as memory:
            memory[0] = 1
            memory.flush()
            assert modified(file) == modified(place / "tree" / "file") != "1.000000000\n"
        assert modified(file) == modified(place / "tree" / "file")


def test_a_mapping_that_outlives_its_descriptor_changes_the_time_as_well(place: Path) -> None:
    file = place / "mnt" / "file"
    with bridged(place / "tree", place / "log", place / "mnt"):
        opened = os.open(file, os.O_RDWR)
        memory = _libc.mmap(None, BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, opened, 0)
        os.close(opened)
        try:
            file.stat()
            assert modified(file) == "1.000000000\n"
            ctypes.memset(memory, 1, 1)
            _libc.msync(ctypes.c_void_p(memory), BYTES, 4)
            assert modified(file) == modified(place / "tree" / "file") != "1.000000000\n"
        finally:
            _libc.munmap(ctypes.c_void_p(memory), BYTES)
