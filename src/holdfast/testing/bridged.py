"""Mounts a directory over itself or elsewhere, with an undo log beside it, and serves it until it is unmounted:

    python -m holdfast.testing.bridged TREE DIRECTORY [--log LOG] [--no-passthrough]

All changes through the mount are one step. Prints ``mounted`` when it is mounted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING

from holdfast.bridge.fuse.change_watcher import watch_changes
from holdfast.bridge.fuse.live_caches import LiveCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.mount.fuse_device import FuseDevice, mount
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.server.request_threads import ServingThreads
from holdfast.files.linux.metadata import proc_path
from holdfast.model.clock import SystemClock
from holdfast.testing.tree_actor import SystemActor
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.undo.journal.records import StepId


class SingleStep:
    """`World` in which everything belongs to one open step."""

    def __init__(self, log: UndoLog, root_fd: int, step: StepId) -> None:
        self.interceptor = log.recorder
        self.root_fd = root_fd
        self.hidden: tuple[int, ...] = ()
        self.current = step

    def step(self, tid: int, /) -> StepId:
        """The only step."""
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
        self.world = SingleStep(log, root_fd, step)
        self.world.hidden = (*self.world.hidden, log.preimages.fd)
        flags = os.fstatvfs(root_fd).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
        # (After a mount over the tree, it could not be opened any more.)
        own = ServingThreads()
        self._outside = watch_changes(os.fsencode(os.readlink(proc_path(root_fd))), own) if watches else None
        self._device: FuseDevice = mount(directory, allow_other=os.geteuid() == 0, flags=flags)
        transport = DeviceTransport(self._device.descriptor)
        self.caches = LiveCaches(
            self.world, log.preimages, transport, passes=passthrough, is_told=self._outside is not None
        )
        self._served = ServedFileSystem(self.caches.directory, self.caches)
        log.writers = self.caches.directory.objects.held_for_writing
        self.server = FuseServer(transport, self._served, own=own)
        self.server.start()
        self.caches.invalidator.start()
        if self._outside is not None:
            self._outside.start(self.caches.invalidator)

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
        if self.server.stop() and self.caches.invalidator.stop():
            self._device.close()
            self._served.close()
            self.caches.close()


class BridgedActor(SystemActor):
    """`SystemActor` on a directory where the tree of a log is served for as long."""

    def __init__(self, log: UndoLog, root: bytes, step: StepId, below: bytes = b"") -> None:
        """For ``below`` see `TreeOperations`."""
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mount = tempfile.mkdtemp(prefix=b"bridged-", dir=os.path.dirname(root))
        self._bridged = Bridged(log, self._root, step, self._mount)
        super().__init__(self._mount, step, below)

    def __enter__(self) -> BridgedActor:
        """See `TreeOperations`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `TreeOperations`."""
        self._bridged.__exit__(kind, error, trace)
        os.rmdir(self._mount)
        os.close(self._root)


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
        desk = LocalUndoService(log, intercepts=True)
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
