"""One writer per workspace at a time, across processes; the kernel drops the lock of a process that dies."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.model.errors import LockedError, StorageError
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.model.clock import Clock

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


@contextmanager
def exclusive(path: bytes, *, timeout: float, clock: Clock, what: str) -> Generator[None]:
    """Hold the lock file ``path`` for the length of the block; wait at most ``timeout`` seconds for it.

    ``what`` is named in the message of the `LockedError` that is raised when the wait runs out. Not reentrant.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open the lock {display(path)}: {error.strerror}") from error
    try:
        _wait(fd, timeout, clock, what)
        _say_who(fd)
        yield
    finally:
        os.close(fd)


def _wait(fd: int, timeout: float, clock: Clock, what: str) -> None:
    deadline = clock.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                raise LockedError(
                    f"{what} is busy in another process{_holder(fd)}, and {timeout:g} s of waiting were not enough",
                    hint="try again when it is done, or wait longer with lock.timeout in config.toml",
                ) from None
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _say_who(fd: int) -> None:
    """Write the holder's pid into the file, for the message of whoever waits in vain; the lock does not depend on
    it.
    """
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError:
        pass


def _holder(fd: int) -> str:
    try:
        pid = os.pread(fd, 32, 0).strip()
    except OSError:
        return ""
    return f" (pid {pid.decode()})" if pid.isdigit() else ""
