"""Mounts a directory over itself or elsewhere, with an undo log beside it, and serves it until it is unmounted:

    python -m holdfast.testing.bridged TREE DIRECTORY [--log LOG] [--no-passthrough]

Everything that is done through the mount is one step. Prints ``mounted`` when it is.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Final

from holdfast.bridge.device import Device, mount
from holdfast.bridge.outside import watched
from holdfast.bridge.passthrough import PassthroughTree
from holdfast.bridge.server import Server
from holdfast.bridge.threads import Threads
from holdfast.files.kernel import renameat2
from holdfast.files.metadata import through
from holdfast.model.clock import SystemClock
from holdfast.undo.desk import Desk
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery import recover

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.undo.records import StepId


_HERE: Final = -100
"""``AT_FDCWD``"""


class OneStep:
    """`World` in which everything belongs to one open step."""

    def __init__(self, log: UndoLog, root_fd: int, step: StepId) -> None:
        self.interceptor = log.recorder
        self.root_fd = root_fd
        self.hidden: tuple[int, ...] = ()
        self.current = step

    def step(self, tid: int, /) -> StepId:
        """That one."""
        del tid
        return self.current


class Bridged:
    """A tree that is served on a mounted directory, in the name of a step. Leaving unmounts it."""

    def __init__(
        self,
        log: UndoLog,
        root_fd: int,
        step: StepId,
        directory: bytes,
        *,
        passthrough: bool = True,
        watches: bool = False,
    ) -> None:
        """Mount ``directory`` and serve it."""
        self.world = OneStep(log, root_fd, step)
        flags = os.fstatvfs(root_fd).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
        # (Where something is mounted over the tree, it could not be looked at any more.)
        own = Threads()
        self._outside = watched(os.fsencode(os.readlink(through(root_fd))), own) if watches else None
        self._device: Device = mount(directory, allow_other=os.geteuid() == 0, flags=flags)
        device = self._device.descriptor
        self.tree = PassthroughTree(
            self.world, log.preimages, device, passes=passthrough, is_told=self._outside is not None
        )
        log.writers = self.tree.objects.held_for_writing
        self.server = Server(self._device.descriptor, self.tree, own=own)
        self.server.start()
        self.tree.teller.start()
        if self._outside is not None:
            self._outside.start(self.tree.teller)

    def __enter__(self) -> Bridged:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unmount it."""
        self._device.unmount()
        if self._outside is not None:
            self._outside.stop()
        if self.server.stop() and self.tree.teller.stop():
            self._device.close()
            self.tree.close()


class BridgedActor:
    """`Acting` by the system's own calls, on a directory where the tree of a log is served for as long."""

    def __init__(self, log: UndoLog, root: bytes, step: StepId, below: bytes = b"") -> None:
        """For ``below`` see `Acting`."""
        self.below = below
        self.path = root
        self.step = step
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mount = tempfile.mkdtemp(prefix=b"bridged-", dir=os.path.dirname(root))
        self._bridged = Bridged(log, self._root, step, self._mount)

    def __enter__(self) -> BridgedActor:
        """See `Acting`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `Acting`."""
        self._bridged.__exit__(kind, error, trace)
        os.rmdir(self._mount)
        os.close(self._root)

    def write(self, path: bytes, content: bytes, *, at: int | None = None) -> None:
        """See `Acting`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_TRUNC if at is None else 0)
        fd = os.open(self._at(path), flags, 0o666)
        try:
            os.pwrite(fd, content, at or 0)
        finally:
            os.close(fd)

    def truncate(self, path: bytes, size: int) -> None:
        """See `Acting`."""
        fd = os.open(self._at(path), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """See `Acting`."""
        os.mkdir(self._at(path), mode)

    def symlink(self, target: bytes, path: bytes) -> None:
        """See `Acting`."""
        os.symlink(target, self._at(path))

    def mkfifo(self, path: bytes) -> None:
        """See `Acting`."""
        os.mkfifo(self._at(path), 0o644)

    def link(self, source: bytes, path: bytes) -> None:
        """See `Acting`."""
        os.link(self._at(source), self._at(path), follow_symlinks=False)

    def unlink(self, path: bytes) -> None:
        """See `Acting`."""
        os.unlink(self._at(path))

    def rmdir(self, path: bytes) -> None:
        """See `Acting`."""
        os.rmdir(self._at(path))

    def rename(self, source: bytes, target: bytes, flags: int = 0) -> None:
        """See `Acting`."""
        renameat2(_HERE, self._at(source), _HERE, self._at(target), flags)

    def chmod(self, path: bytes, mode: int) -> None:
        """See `Acting`."""
        if os.path.islink(self._at(path)):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.chmod(self._at(path), mode)

    def utime(self, path: bytes, mtime: int) -> None:
        """See `Acting`."""
        os.utime(self._at(path), ns=(mtime, mtime), follow_symlinks=False)

    def setxattr(self, path: bytes, name: str, value: bytes) -> None:
        """See `Acting`."""
        os.setxattr(self._at(path), name, value, follow_symlinks=False)

    def removexattr(self, path: bytes, name: str) -> None:
        """See `Acting`."""
        os.removexattr(self._at(path), name, follow_symlinks=False)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._mount, path)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="holdfast.testing.bridged")
    parser.add_argument("tree")
    parser.add_argument("directory")
    parser.add_argument("--log", help="a directory on the same file system; by default a new one, removed at the end")
    parser.add_argument("--no-passthrough", action="store_true")
    chosen = parser.parse_args()
    tree = os.path.realpath(chosen.tree)
    root_fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    with tempfile.TemporaryDirectory(prefix=".bridged-", dir=os.path.dirname(tree)) as place:
        log = UndoLog(os.fsencode(chosen.log or os.path.join(place, "log")), root_fd, SystemClock())
        recover(log)
        desk = Desk(log, intercepts=True)
        step = desk.open("command", command=(b"bridged",))
        directory = os.fsencode(os.path.realpath(chosen.directory))
        with Bridged(log, root_fd, step, directory, passthrough=not chosen.no_passthrough, watches=True) as bridged:

            def end(_number: int, _frame: object) -> None:
                bridged.server.end()

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, end)
            print("mounted", flush=True)  # noqa: T201 - it is a program
            bridged.server.wait()
        desk.close(step, 0)
        log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
