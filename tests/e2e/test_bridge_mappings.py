"""What is written through mappings of a mounted directory's files: it is seen by those who ask when a file was changed,
and belongs to the step that had the file open.

(Who asks for more than modification times hears what is true now: a mapping changes the time of access.)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import Bridged
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .bridge import bridged

pytestmark = ONLY_WITH_FUSE
BYTES = 4096
_MS_SYNC = 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


@contextmanager
def mapped(path: Path) -> Generator[int]:
    """The address of a file, of which no descriptor is left, as one of Python's own mappings keeps it."""
    opened = os.open(path, os.O_RDWR)
    memory = _libc.mmap(None, BYTES, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, opened, 0)
    os.close(opened)
    try:
        yield memory
    finally:
        _libc.munmap(ctypes.c_void_p(memory), BYTES)


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
    with bridged(place / "tree", place / "log", place / "mnt"), mapped(file) as memory:
        file.stat()
        assert modified(file) == "1.000000000\n"
        ctypes.memset(memory, 1, 1)
        _libc.msync(ctypes.c_void_p(memory), BYTES, _MS_SYNC)
        assert modified(file) == modified(place / "tree" / "file") != "1.000000000\n"


def test_what_is_written_so_after_the_step_belongs_to_it(place: Path) -> None:
    root_fd = os.open(place / "tree", os.O_RDONLY | os.O_DIRECTORY)
    log = UndoLog(bytes(place / "log"), root_fd, SystemClock())
    service = LocalUndoService(log, intercepts=True)
    inode = os.stat(place / "tree" / "file").st_ino
    try:
        step = service.open("command")
        with Bridged(log, root_fd, step, bytes(place / "mnt")) as served:
            with mapped(place / "mnt" / "file") as memory:
                ctypes.memset(memory, 1, 1)
                assert served.server.settle(30, lambda: 0), "it is told that the descriptor is closed"
                assert log.writers(False) == {inode}
                assert service.close(step) is not None
                ctypes.memset(memory, 2, 1)
            wait_until(lambda: not log.writers(False))
        assert service.undo([step]).conflicts == ()
        assert (place / "tree" / "file").read_bytes() == bytes(BYTES)
    finally:
        log.close()
        os.close(root_fd)
