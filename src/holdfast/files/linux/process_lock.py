"""One writer at a time, across processes; the kernel drops the lock of a process that dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager

from holdfast.model.errors import LockedError, StorageError, room_hint
from holdfast.model.fast_typing import TYPE_CHECKING
from holdfast.model.log import Log
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.model.clock import Clock

_LOG = Log(__name__)
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
_SILENT = 1.0
"""Seconds of waiting until a message names the holder."""
_MOST_OF_COMMAND = 100
_LOOKS = 3
"""The kernel gives its list of locks in pieces, and leaves one out if others end in between."""


@contextmanager
def exclusive(path: bytes, *, timeout: float, clock: Clock, what: str) -> Generator[None]:
    """Hold the lock file ``path`` for the length of the block; wait at most ``timeout`` seconds for it.

    A wait of more than a second for another process is logged, with who holds the lock. ``what`` is named there, and in
    the message of the `LockedError` that is raised when the wait runs out. Threads of one process wait for each other
    as well. Not reentrant. Its holder may remove the file.
    """
    fd = _open(path)
    try:
        _wait(fd, timeout, clock, what)
        while not _is_at(fd, path):
            # Its holder removed it: the lock to hold is that of the present file.
            os.close(fd)
            fd = -1
            fd = _open(path)
            _wait(fd, timeout, clock, what)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _open(path: bytes) -> int:
    try:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            # One that is there can be held for looking; the catalog refuses a process that comes to write.
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        message = f"cannot open the lock {display(path)}: {error.strerror}"
        raise StorageError(message, hint=room_hint(error)) from error


def _is_at(fd: int, path: bytes) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _wait(fd: int, timeout: float, clock: Clock, what: str) -> None:
    begun = clock.monotonic()
    told = False
    pause = _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = clock.monotonic() - begun
            if waited >= timeout:
                raise LockedError(
                    f"{what} is busy in {_where(holder_of(fd))}, and {timeout:g} s of waiting were not enough",
                    hint="try again when it is done, or wait longer with lock.timeout in config.toml",
                ) from None
            if waited >= _SILENT and not told:
                holder = holder_of(fd)
                if holder != os.getpid():  # (the user can do nothing about threads of this process)
                    told = True
                    _LOG.warning("%s is busy in %s; waiting at most %g s", what, _where(holder), timeout)
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _where(holder: int | None) -> str:
    """The holder of a lock, for people."""
    if holder is None:
        return "another process"
    if holder == os.getpid():
        return "another thread of this process"
    return f"another process (process {holder}{_command(holder)})"


def holder_of(fd: int) -> int | None:
    """The process that holds the lock, as far as the kernel tells (Linux, proc_locks(5))."""
    try:
        about = os.fstat(fd)
        exact = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        for _ in range(_LOOKS):
            with open("/proc/locks", encoding="ascii") as locks:
                lines = [line.split() for line in locks]
            # On btrfs and overlays the device is another one than stat(2) tells: then the inode number has to do.
            ends = f":{about.st_ino}"
            found = [line for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5].endswith(ends)]
            if found:
                return int(next((line for line in found if line[5] == exact), found[0])[4])
    except OSError:
        pass
    return None


def _command(process: int) -> str:
    """The beginning of what a process was called with, as far as we may know it (Linux, proc_pid_cmdline(5))."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return ""
    text = display(b" ".join(words).strip())
    return f": {text[:_MOST_OF_COMMAND]}" if text else ""
