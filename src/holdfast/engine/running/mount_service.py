"""Serves the mounts of runs and of virtual machines, in their keeper: what `holdfast.supervisor.keeper.mounted_trees`
asks for, made of the bridge's parts.

The keeper imports this when the first such run joins (`Settings.server`).
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Protocol

from holdfast.bridge.fuse.change_watcher import watch_changes
from holdfast.bridge.fuse.live_caches import BRIEFLY, LiveCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.p9.p9_server import P9Server
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.bridge.server.loop import FuseServer
from holdfast.bridge.server.request_threads import ServingThreads
from holdfast.bridge.virtio.vhost_user_backend import VhostUserBackend
from holdfast.files.linux.metadata import proc_path
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.log import Log
from holdfast.vfs.recorded.callers import RecordingHost
from holdfast.vfs.recorded.recorded_directory import RecordedDirectory

if TYPE_CHECKING:
    from holdfast.bridge.server.transport import Transport
    from holdfast.supervisor.control.keeper_port import ServedBy
    from holdfast.supervisor.keeper import mounted_trees
    from holdfast.supervisor.keeper.mounted_trees import MountHost
    from holdfast.vfs.recorded.callers import LogNames

_LOG = Log(__name__)
_FIRST_SECONDS = 5.0
"""The kernel has begun to talk when the mount was made."""
_SETTLE_SECONDS = 0.05
"""No call is served meanwhile. Files that are known too late to be closed are checked again."""
_GUEST_SETTLE_SECONDS = 0.1
_STALE_SECONDS = BRIEFLY.seconds + 0.25
"""A guest counts from when it has taken an answer in, which may have been on its way."""
_UNSETTLED_SECONDS = 1.0
"""A guest that did not come to rest is not waited for again for this time; it would cost as much each time."""
_END_SECONDS = 1.0
"""How long `close` waits for work in progress before it returns to serve others, and tries again later."""


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

    def stale_seconds(self) -> float:
        """See `ServedMount.stale_seconds`."""
        return 0.0

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
        if not (self._server.stop(_END_SECONDS) and self._caches.invalidator.stop(_END_SECONDS)):
            return False
        self._is_open = False
        os.close(self._device)
        self._close_files()
        return True

    def _close_files(self) -> None:
        self._served.close()
        self._caches.close()


class MachineFiles(RecordingHost, Protocol):
    """The port to the owner of a directory that a machine sees."""

    @property
    def preimages(self) -> LogNames:
        """The names of preimages in the undo log."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether nothing may be changed."""
        ...

    @property
    def waiting(self) -> int:
        """How many serving threads wait for the thread that calls `settle`."""
        ...


class ServedVirtiofs:
    """Implements `holdfast.supervisor.keeper.mounted_trees.ServedMount` for a virtual machine, whose guest may mount
    the tree any number of times, one after the other.

    While a change is held the machine is stopped, so that a request is kept back for as long as its safeguard says.
    Nothing tells a guest of what others change: what its kernel remembers it asks for again after a second.
    """

    def __init__(self, connection: int, host: MachineFiles) -> None:
        """See `serve`."""
        self._host = host
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._mount: _GuestMount | None = None
        self._unsettled_until = self._stale_until = 0.0
        self._socket = socket.socket(fileno=connection)
        try:
            self._backend = VhostUserBackend(self._socket)
        except BaseException:
            self._socket.detach()  # the caller owns it
            os.close(self._over)
            raise
        self._thread = threading.Thread(target=self._serve, name="holdfast-machine", daemon=True)
        self._thread.start()
        self._is_open = True

    @property
    def over(self) -> int:
        """See `ServedMount.over`."""
        return self._over

    def held_for_writing(self) -> frozenset[int]:
        """See `ServedMount.held_for_writing`."""
        mount = self._mount
        return frozenset() if mount is None else mount.caches.directory.objects.held_for_writing(True)

    def forget(self) -> None:
        """See `ServedMount.forget`: there is no way to tell a guest, which has forgotten it after a second."""
        self._stale_until = time.monotonic() + _STALE_SECONDS

    def stale_seconds(self) -> float:
        """See `ServedMount.stale_seconds`."""
        return max(0.0, self._stale_until - time.monotonic())

    def settle(self) -> None:
        """See `ServedMount.settle`: a guest's kernel has sent what a process wrote and closed before that is known to
        have ended.
        """
        mount = self._mount
        if mount is None or time.monotonic() < self._unsettled_until:
            return
        if not mount.server.settle(_GUEST_SETTLE_SECONDS, lambda: self._host.waiting):
            self._unsettled_until = time.monotonic() + _UNSETTLED_SECONDS

    def close(self) -> bool:
        """See `ServedMount.close`."""
        if not self._is_open:
            return True
        with suppress(OSError):  # the monitor has hung up
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            return False
        self._is_open = False
        self._backend.close()
        os.close(self._over)
        return True

    def _serve(self) -> None:
        try:
            while (transport := self._backend.accept()) is not None:
                self._serve_mount(transport)
        finally:
            os.eventfd_write(self._over, 1)

    def _serve_mount(self, transport: Transport) -> None:
        mount = _GuestMount(transport, self._host)
        try:
            mount.server.start()
            self._mount = mount
            mount.server.wait()
        except HoldfastError as error:
            _LOG.warning("a virtual machine cannot mount the tree: %s", error.message)
        finally:
            mount.close()
            self._mount = None  # last, since work in progress writes until then


class _GuestMount:
    """One mount in a guest."""

    def __init__(self, transport: Transport, host: MachineFiles) -> None:
        self.caches = LiveCaches(host, host.preimages, transport, is_read_only=host.is_read_only)
        self._served = ServedFileSystem(self.caches.directory, self.caches)
        self.server = FuseServer(transport, self._served, patience=inf)

    def close(self) -> None:
        """Stop answering, and close all files; requests in progress are waited for."""
        while not self.server.stop():
            pass
        self._served.close()
        self.caches.close()


class Served9p:
    """The same by 9P: ``connection`` is a stream to the guest's kernel, which mounts the tree once."""

    def __init__(self, connection: int, host: MachineFiles) -> None:
        """See `serve`."""
        self._host = host
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._directory = RecordedDirectory(host, host.preimages, makes_devices=False, is_read_only=host.is_read_only)
        self._server = P9Server(
            socket.socket(fileno=connection), self._directory, is_read_only=host.is_read_only, patience=inf
        )
        self._server.start()
        self._thread = threading.Thread(target=self._wait, name="holdfast-machine", daemon=True)
        self._thread.start()
        self._is_open = True

    @property
    def over(self) -> int:
        """See `ServedMount.over`."""
        return self._over

    def held_for_writing(self) -> frozenset[int]:
        """See `ServedMount.held_for_writing`."""
        return self._directory.objects.held_for_writing(True)

    def forget(self) -> None:
        """See `ServedMount.forget`: a guest that mounts so remembers nothing."""

    def stale_seconds(self) -> float:
        """See `ServedMount.stale_seconds`."""
        return 0.0

    def settle(self) -> None:
        """See `ServedMount.settle`."""
        self._server.settle(_GUEST_SETTLE_SECONDS, lambda: self._host.waiting)

    def close(self) -> bool:
        """See `ServedMount.close`."""
        if not self._is_open:
            return True
        if not self._server.stop(_END_SECONDS):
            return False
        self._thread.join()
        self._is_open = False
        self._directory.close()
        os.close(self._over)
        return True

    def _wait(self) -> None:
        self._server.wait()
        os.eventfd_write(self._over, 1)


def serve(device: int, host: MountHost, served_by: ServedBy) -> mounted_trees.ServedMount:
    """See `holdfast.supervisor.keeper.mounted_trees.MountFactory`."""
    if served_by == "virtiofs":
        return ServedVirtiofs(device, host)
    return Served9p(device, host) if served_by == "9p" else ServedMount(device, host)
