"""What the interceptor adds to an operation, and what its undo takes, in processor time: bare against recorded.

Usage: python benchmarks/undo.py [DIRECTORY] [COUNT]   (a directory on the file system that is to be measured)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from holdfast.model.clock import SystemClock
from holdfast.undo.interceptor import Place
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.safeguards.guard import Risk
from holdfast.undo.service import LogLimits

if TYPE_CHECKING:
    from collections.abc import Callable

_OBJECT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Bench:
    """A tree of one directory, worked on bare or through the recorder."""

    def __init__(self, base: str, count: int) -> None:
        self.base = base
        self.names = [b"%06d" % at for at in range(count)]
        self.tree = os.path.join(base, "tree")
        os.makedirs(self.tree)
        self.fd = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        self.log = UndoLog(os.fsencode(os.path.join(base, "log")), self.fd, SystemClock(), limits=LogLimits(1 << 40))
        self.service = LocalUndoService(self.log)
        self.step = 0

    def place(self, name: bytes) -> Place:
        return Place(self.fd, name, name)

    def create(self, name: bytes) -> None:
        os.close(os.open(name, _NEW, 0o644, dir_fd=self.fd))

    def create_recorded(self, name: bytes) -> None:
        fd = self.fd
        os.close(self.log.recorder.create(self.step, self.place(name), "f", lambda: os.open(name, _NEW, dir_fd=fd)))

    def overwrite(self, name: bytes) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=self.fd)
        os.write(fd, b"something")
        os.close(fd)

    def overwrite_recorded(self, name: bytes) -> None:
        fd = os.open(name, _OBJECT, dir_fd=self.fd)
        self.log.recorder.before_open(self.step, self.place(name), fd, Risk(cut=0))
        os.close(fd)
        self.overwrite(name)

    def rename(self, name: bytes) -> None:
        os.rename(name, b"r" + name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def rename_recorded(self, name: bytes) -> None:
        source, target = self.place(name), self.place(b"r" + name)
        self.log.recorder.rename(self.step, source, target, 0, lambda: self.rename(name))

    def unlink(self, name: bytes) -> None:
        os.unlink(b"r" + name, dir_fd=self.fd)

    def unlink_recorded(self, name: bytes) -> None:
        place = self.place(b"r" + name)
        self.log.recorder.unlink(self.step, place, lambda: self.unlink(name))

    def run(self, work: Callable[[bytes], None]) -> float:
        """Seconds for all names."""
        start = time.process_time()
        for name in self.names:
            work(name)
        return time.process_time() - start

    def recorded(self, label: str, bare: float, work: Callable[[bytes], None]) -> float:
        """Do it in a step, undo it, do it again; returns what the step took."""
        self.step = self.service.open("command")
        took = self.run(work)
        start = time.process_time()
        self.service.close(self.step, 0)
        sealed = time.process_time()
        self.service.undo([self.step])
        undone = time.process_time()
        self.service.redo([self.step])
        each = 1e6 / len(self.names)
        print(
            f"{label:10} bare {bare * each:6.1f} µs   recorded {took * each:6.1f}   added {(took - bare) * each:6.1f}"
            f"   seal {(sealed - start) * each:6.1f}   undo {(undone - sealed) * each:6.1f}"
        )
        return took


def main() -> None:
    """Measure, and print a line for each operation."""
    where = sys.argv[1] if len(sys.argv) > 1 else None
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    base = tempfile.mkdtemp(dir=where)
    try:
        bench, bare = Bench(os.path.join(base, "recorded"), count), Bench(os.path.join(base, "bare"), count)
        for label, work, recorded in (
            ("create", bare.create, bench.create_recorded),
            ("overwrite", bare.overwrite, bench.overwrite_recorded),
            ("rename", bare.rename, bench.rename_recorded),
            # Last: to create just after others were deleted costs ext4 ten times the work.
            ("unlink", bare.unlink, bench.unlink_recorded),
        ):
            bench.recorded(label, bare.run(work), recorded)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
