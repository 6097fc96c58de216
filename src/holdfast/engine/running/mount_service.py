"""Serves the mounts of runs, in their keeper: what `holdfast.supervisor.keeper.mounted_trees` asks for, made of the
bridge's parts.

The keeper imports this when the first such run joins (`Settings.server`).
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from holdfast.bridge.fuse.change_watcher import watch_changes
from holdfast.bridge.fuse.live_caches import LiveCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.server.request_threads import ServingThreads
from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from holdfast.supervisor.keeper.mounted_trees import MountHost

_FIRST_SECONDS = 5.0
"""The kernel has begun to talk when the mount was made."""
_SETTLE_SECONDS = 0.05
"""Meanwhile no call is served. What is known too late to be closed is looked at once more."""


class ServedMount:
    """Implements `holdfast.supervisor.keeper.mounted_trees.ServedMount`."""

    def __init__(self, device: int, host: MountHost) -> None:
        """See `serve`."""
        begun = select.poll()
        begun.register(device, select.POLLIN)
        if not begun.poll(_FIRST_SECONDS * 1000):
            raise StorageError("nothing is mounted by the device that came with the run")
        self._device = device
        self._host = host
        own = ServingThreads()
        self._outside = watch_changes(os.fsencode(os.readlink(proc_path(host.root_fd))), own)
        transport = DeviceTransport(device)
        self._caches = LiveCaches(host, host.preimages, transport, is_told=self._outside is not None)
        self._served = ServedFileSystem(self._caches.directory, self._caches)
        self._server = FuseServer(transport, self._served, own=own, lapsed=host.lapse)
        try:
            self._server.start()
        except BaseException:
            self._server.stop()
            self._close_files()
            if self._outside is not None:
                self._outside.stop()
            raise
        self._caches.invalidator.start()
        if self._outside is not None:
            self._outside.start(self._caches.invalidator)
        self._is_open = True

    @property
    def over(self) -> int:
        """See `ServedMount.over`."""
        return self._server.fileno()

    def held_for_writing(self) -> frozenset[int]:
        """See `ServedMount.held_for_writing`."""
        return self._caches.directory.objects.held_for_writing(True)

    def forget(self) -> None:
        """See `ServedMount.forget`."""
        self._caches.invalidator.invalidate_all()

    def settle(self) -> None:
        """See `ServedMount.settle`: the kernel says that a file is closed before a process's end can be seen, without
        waiting for an answer.
        """
        self._server.settle(_SETTLE_SECONDS, lambda: self._host.waiting)

    def close(self) -> bool:
        """See `ServedMount.close`."""
        if not self._is_open:
            return True
        if self._outside is not None:
            self._outside.stop()
            self._outside = None
        if not (self._server.stop() and self._caches.invalidator.stop()):
            return False
        self._is_open = False
        os.close(self._device)
        self._close_files()
        return True

    def _close_files(self) -> None:
        self._served.close()
        self._caches.close()


def serve(device: int, host: MountHost) -> ServedMount:
    """See `holdfast.supervisor.keeper.mounted_trees.MountFactory`."""
    return ServedMount(device, host)
