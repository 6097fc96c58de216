"""Directories that are needed for a while, and are removed also where the process that made one was killed."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.files.directories.replication import remove_whole
from holdfast.model.errors import StorageError, room_hint
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

_LOG = Log(__name__)
_LOCK = b".lock"


@contextmanager
def scratch(above: bytes) -> Generator[bytes]:
    """An empty private directory in ``above``, a private directory for only these; removed after the block with its
    content.

    First removes those left by killed processes: a process locks its directory while it uses it, and the kernel drops
    the lock. Raises `StorageError` if none can be made.
    """
    try:
        path, held = _made(above)
    except OSError as error:
        raise StorageError(
            f"cannot make a directory in {display(above)}: {error.strerror}", hint=room_hint(error)
        ) from error
    try:
        yield path
    finally:
        _remove(path)
        os.close(held)


def _made(above: bytes) -> tuple[bytes, int]:
    guard = os.open(os.path.join(above, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)  # (no directory is there unlocked while this lock is held)
        _sweep(above)
        path = os.path.join(above, secrets.token_hex(8).encode())
        os.mkdir(path, 0o700)
        return path, _locked(path)
    finally:
        os.close(guard)


def _sweep(above: bytes) -> None:
    """Remove what no process uses any more. Needs the lock."""
    for name in os.listdir(above):
        path = os.path.join(above, name)
        if name == _LOCK:
            continue
        try:
            held = _locked(path)
        except BlockingIOError:
            continue
        except OSError as error:
            _LOG.warning("%s cannot be looked at: %s", display(path), error.strerror)
            continue
        try:
            _remove(path)
        finally:
            os.close(held)


def _locked(path: bytes) -> int:
    """A descriptor that holds the directory's lock. Raises `OSError`, `BlockingIOError` if another process has it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        os.chmod(path, 0o700)  # the process that worked in it has closed it
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove(path: bytes) -> None:
    try:
        remove_whole(path)
    except OSError as error:
        _LOG.warning("%s is not removed: %s; the next one that is made there removes it", display(path), error.strerror)
