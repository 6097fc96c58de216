"""At most one watcher for a workspace."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine.opening.home import WATCH_LOCK
from holdfast.model.errors import LockedError, StorageError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def hold_watch_lock(folder: bytes) -> Generator[None]:
    """Be the only watcher of the workspace with this folder for the length of the block; `LockedError` if there is one.

    The kernel releases the lock when its holder dies, so a dead process never blocks another.
    """
    path = folder + b"/" + WATCH_LOCK
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open {display(path)}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).strip().decode("ascii", "replace")
            raise LockedError(
                f"a watcher is at work in this workspace already (pid {pid})", hint="`holdfast watch --stop` stops it"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)
