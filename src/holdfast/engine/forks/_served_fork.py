"""A fork by mount while it is mounted: its checkpoint, served by this process, with an overlay above."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bridge.mount.fuse_device import clear_dead, detach
from holdfast.bridge.mount.overlayfs import attributes_for, detach_overlays, mount_overlay, unmount_overlay
from holdfast.engine.forks.checkpoint_mount import ServedCheckpoint
from holdfast.engine.opening.fork_layers import (
    claim_layers,
    lower_path,
    make_layers,
    merged_path,
    upper_path,
    work_path,
)
from holdfast.model.errors import LockedError, RefusedError, StorageError
from holdfast.model.ids import Hash
from holdfast.model.log import Log
from holdfast.model.paths import display
from holdfast.vfs.checkpoint_appearance import CheckpointAppearance

if TYPE_CHECKING:
    from holdfast.engine.opening.context import Context
    from holdfast.engine.opening.fork_layers import ForkNote

_LOG = Log(__name__)


class ServedFork:
    """A mounted fork, served by threads of this process. Use it as a context manager, or `close` it."""

    def __init__(self, context: Context, note: ForkNote, directory: bytes) -> None:
        """Mount it on ``directory``, which is an empty one. Raises `LockedError` if a process serves it already, and
        `UnsupportedError` where it cannot be mounted.
        """
        self.directory = directory
        folder = context.folder
        make_layers(folder, note)
        lock = claim_layers(folder)
        if lock is None:
            raise LockedError(f"the fork {display(context.workspace.path)} is mounted already")
        self._lock = lock
        lower = lower_path(folder)
        try:
            _refuse_other_attributes(folder, note)
            clear_dead(lower)
            detach_overlays(merged_path(folder))  # no process serves what a killed one has left there
            looks = CheckpointAppearance(note.uid, note.gid, note.changed_at, note.root_permissions, note.permissions)
            self._served = ServedCheckpoint(
                context.store, Hash(bytes.fromhex(note.root)), looks, lower, allow_other=False
            )
            try:
                mount_overlay(lower, upper_path(folder), work_path(folder), directory, note.attributes)
            except BaseException:
                self._served.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        # The overlay itself holds the file system, so unmounting the overlay ends the server, too.
        detach(lower, helped=False)

    def wait(self) -> None:
        """Wait until no process has it mounted or uses it."""
        self._served.wait(None)

    def try_to_end(self) -> None:
        """Unmount it, unless a process uses it: then that is logged."""
        try:
            unmount_overlay(self.directory)
        except (RefusedError, StorageError) as error:
            _LOG.warning("it stays mounted: %s", error.message)

    def close(self) -> None:
        """Stop serving. A process that still has it mounted can then read changed files only."""
        self._served.close()
        os.close(self._lock)

    def __enter__(self) -> ServedFork:
        """The fork itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Serve it no more."""
        self.close()


def _refuse_other_attributes(folder: bytes, note: ForkNote) -> None:
    if note.attributes == "trusted" and attributes_for(folder) != "trusted":
        raise RefusedError(
            "only the machine's own root can read the changes of this fork, because root wrote them",
            hint="mount it again outside of the namespace",
            code="not_privileged",
        )
