"""Pins that keep a mounted checkpoint from being forgotten and collected, exactly as long as it is mounted.

A mount has a pin in the catalog, and a file ``mounts/TOKEN`` in the workspace's folder, which holds the pin's number
and is locked by the serving process: the kernel releases the lock when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from holdfast.model.errors import HoldfastError, NotFoundError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from typing import Final

    from holdfast.engine.opening.context import Context, StoreContext
    from holdfast.model.checkpoint import Checkpoint
    from holdfast.model.ids import CheckpointId

_LOG = Log(__name__)
_FOLDER: Final = b"mounts"
_LASTS: Final = 24 * 3600 * 1_000_000
"""Microseconds that a pin lasts if the mount's fate is unknown, as on another machine."""
RENEWED: Final = 3600.0
"""Seconds after which a pin must be renewed."""


class MountPin:
    """Keeps one checkpoint, from its construction until `release`. A read-only home forgets none, so needs none."""

    def __init__(self, context: Context, checkpoint: Checkpoint, directory: bytes) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._reason = f"mounted on {display(directory)}"
        self._number: int | None = None
        if context.catalog.database.read_only:
            return
        self._path, self._file = _locked_file(context)
        try:
            self._pin(checkpoint.id)
        except BaseException:
            self._let_go()
            raise

    def renew(self) -> None:
        """Extend the pin by another day. A failure is logged: the next attempt may succeed."""
        if self._number is None:
            return
        catalog = self._context.catalog
        try:
            if not catalog.extend_pin(self._number, catalog.clock.now() + _LASTS):
                self._pin_again()
        except HoldfastError as error:
            _LOG.error("%s, and may be collected: %s", self._reason, error.message, checkpoint=self._checkpoint.id)

    def release(self) -> None:
        """Keep it no more. Harmless a second time."""
        if self._number is None:
            return
        try:
            self._context.catalog.unpin(self._number)
        except HoldfastError as error:
            _LOG.warning("%s no more, and kept for another day: %s", self._reason, error.message)
        self._number = None
        self._let_go()

    def _pin_again(self) -> None:
        try:
            self._pin(self._checkpoint.id)
        except NotFoundError:
            self._pin(None)  # Forgotten meanwhile: the pin keeps the mounted contents from collection.

    def _pin(self, checkpoint: CheckpointId | None) -> None:
        catalog = self._context.catalog
        self._number = catalog.pin(
            self._checkpoint.root,
            self._reason,
            checkpoint=checkpoint,
            expires_at=catalog.clock.now() + _LASTS,
        )
        try:
            os.pwrite(self._file, b"%020d" % self._number, 0)
        except OSError as error:
            catalog.unpin(self._number)
            self._number = None
            raise StorageError(
                f"cannot write {display(self._path)}: {error.strerror}", hint=room_hint(error)
            ) from error

    def _let_go(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)


def release_dead_pins(context: StoreContext) -> None:
    """Release pins, in the whole home, of mounts whose processes ended without a release."""
    if context.store.catalog.database.read_only:
        return
    for workspace in context.store.catalog.workspaces():
        folder = context.folder_of(workspace) + b"/" + _FOLDER
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        for name in names:
            _release_if_dead(context, folder + b"/" + name)


def _release_if_dead(context: StoreContext, path: bytes) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return  # it was released just now
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        number = os.pread(file, 20, 0)
        if number.isdigit():
            context.store.catalog.unpin(int(number))
        os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        return  # its mount is served
    finally:
        os.close(file)


def _locked_file(context: Context) -> tuple[bytes, int]:
    folder = context.folder + b"/" + _FOLDER
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        while True:
            path = folder + b"/" + context.random(8).hex().encode()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return path, file
            os.close(file)  # it was taken for a dead one's before it was locked
    except OSError as error:
        raise StorageError(f"cannot write in {display(folder)}: {error.strerror}", hint=room_hint(error)) from error
