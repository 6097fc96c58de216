"""Mounting a checkpoint: a directory that shows it, that no process can change, read from the store as it is used."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.bridge.fuse.frozen_caches import FrozenCaches
from holdfast.bridge.fuse.served_file_system import ServedFileSystem
from holdfast.bridge.mount.fuse_device import clear_dead, mount
from holdfast.bridge.server.device_transport import DeviceTransport
from holdfast.bridge.server.loop import FuseServer
from holdfast.engine.forks._file_ownership import shown_ownership
from holdfast.engine.forks._stored_content import StoredContent
from holdfast.engine.history.mount_pins import RENEWED, MountPin, release_dead_pins
from holdfast.engine.opening.context import with_disk_reserve
from holdfast.engine.opening.home import refuse_own
from holdfast.model.errors import NotFoundError, RefusedError, StorageError
from holdfast.model.log import Log
from holdfast.model.paths import display, under
from holdfast.vfs.checkpoint_tree import CheckpointTree

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId, Hash
    from holdfast.store.store import Store
    from holdfast.vfs.checkpoint_appearance import CheckpointAppearance

_LOG = Log(__name__)


class ServedCheckpoint:
    """A checkpoint on a directory, served by threads of this process until `close`."""

    def __init__(
        self, store: Store, root: Hash, looks: CheckpointAppearance, directory: bytes, *, allow_other: bool
    ) -> None:
        """Mount the manifest ``root`` on ``directory``, an empty one. Raises `UnsupportedError` where nothing can be
        mounted.
        """
        content = StoredContent(store, root)
        self._device = mount(directory, allow_other=allow_other)
        # Contents may have to come from a remote store.
        served = ServedFileSystem(CheckpointTree(content, looks), FrozenCaches())
        transport = DeviceTransport(self._device.descriptor)
        self._server = FuseServer(transport, served, alone=False)
        try:
            self._server.start()
        except BaseException:
            self.close()
            raise

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is unmounted, or `end`, at most ``timeout`` seconds; returns whether it was."""
        return self._server.wait(timeout)

    def end(self) -> None:
        """Have `wait` return. May be called by a signal handler."""
        self._server.end()

    def close(self) -> None:
        """Unmount it."""
        self._device.unmount()
        if self._server.stop():
            self._device.close()


class Mounted:
    """A mounted checkpoint. Threads of this process serve it. Use it as a context manager, or `close` it."""

    def __init__(self, context: Context, checkpoint: Checkpoint, directory: bytes, *, allow_other: bool) -> None:
        self.checkpoint: CheckpointId = checkpoint.id
        self.path = directory
        """Where it is, the real path."""
        self._served: ServedCheckpoint | None = None
        with with_disk_reserve(context):
            self._pin = MountPin(context, checkpoint, directory)
        self._made = False
        try:
            self._made = _prepare(directory)
            looks = shown_ownership(context, checkpoint)
            self._served = ServedCheckpoint(context.store, checkpoint.root, looks, directory, allow_other=allow_other)
        except BaseException:
            self._end()
            raise
        self._renewed = time.monotonic()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is unmounted, or `end`, at most ``timeout`` seconds; whether it was.

        To be called now and then, as it is what keeps the checkpoint from being collected for longer than a day.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._served is not None:
            now = time.monotonic()
            if now - self._renewed >= RENEWED:
                self._pin.renew()
                self._renewed = now
            left = RENEWED if deadline is None else max(0.0, min(deadline - now, RENEWED))
            if self._served.wait(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def end(self) -> None:
        """Have `wait` return as if it had been unmounted. May be called by a signal handler."""
        if self._served is not None:
            self._served.end()

    def close(self) -> None:
        """Unmount it. Files that are still open in it are of no more use. Harmless a second time."""
        served, self._served = self._served, None
        if served is not None:
            served.close()
            self._end()

    def _end(self) -> None:
        self._pin.release()
        if self._made:
            try:
                os.rmdir(self.path)
            except OSError as error:
                _LOG.warning("%s stays: %s", display(self.path), error.strerror)

    def __enter__(self) -> Mounted:
        """The mount itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount it."""
        self.close()


def mount_checkpoint(
    context: Context, checkpoint: CheckpointId, directory: bytes, *, home: bytes, allow_other: bool = False
) -> Mounted:
    """Mount ``checkpoint`` on ``directory``, which must be empty or is made for the duration.

    Our own mount there, left by a killed process, is removed. Raises `UnsupportedError` where mounting is impossible,
    `RefusedError` for a directory that is not empty, or that a workspace would capture.
    """
    # Not its own real path: looking at a dead mount fails.
    above, name = os.path.split(os.path.abspath(directory))
    place = os.path.join(os.path.realpath(above), name)
    if clear_dead(place):
        _LOG.info("%s was a mount whose process had ended; it is cleared away", display(place))
    release_dead_pins(context)
    real = os.path.realpath(place)
    refuse_own(real, home)
    for workspace in context.catalog.workspaces():
        if workspace.live and under(real, workspace.path):
            raise RefusedError(
                f"{display(real)} lies in the workspace "
                f"{display(workspace.path)}, which would capture the mounted files",
                hint="mount on a directory outside of it",
            )
    return Mounted(context, context.catalog.checkpoint(checkpoint), real, allow_other=allow_other)


def newest_checkpoint_at(context: Context, moment: int) -> CheckpointId:
    """The workspace's newest checkpoint taken at or before ``moment`` (microseconds since 1970), by the clock of then;
    of several with the same time, the one recorded last.
    """
    for one in context.catalog.checkpoints(context.workspace.id):
        if one.created_at <= moment:
            return one.id
    raise NotFoundError("there was no checkpoint yet at that time", hint="holdfast log lists the checkpoints")


def _prepare(directory: bytes) -> bool:
    """Make sure that there is an empty directory; whether it was made."""
    try:
        os.mkdir(directory, 0o700)
        return True
    except FileExistsError:
        pass
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no {display(os.path.dirname(directory))} to make {display(os.path.basename(directory))} in",
            hint="mount on a directory that is there, or make the one above it",
            code="no_such_path",
        ) from error
    except OSError as error:
        raise StorageError(f"cannot make {display(directory)}: {error.strerror}") from error
    try:
        with os.scandir(directory) as inside:
            empty = next(inside, None) is None
    except OSError as error:
        raise RefusedError(f"cannot mount on {display(directory)}: {error.strerror}") from error
    if not empty:
        raise RefusedError(
            f"{display(directory)} is not empty", hint="mount on a directory that does not exist or is empty"
        )
    return False
