"""Whose an undo log is: of which version of the format, and which process keeps it."""

from __future__ import annotations

import fcntl
import os
import signal
import time

from holdfast.files.locking import holder_of
from holdfast.model.errors import FormatError, LockedError, StorageError, room_hint
from holdfast.model.paths import display

LOCK = b"lock"
"""The file in a log's directory that whoever keeps it has locked."""

_DYING_SECONDS = 5.0
_PAUSE = 0.005
_VERSION = b"HFUNDO 1\n"
_SPARED = frozenset({LOCK, b"aside"})


class VersionMismatchError(FormatError):
    """The undo log was written by another version of Holdfast. Nothing of it was touched."""

    code = "undo_version_mismatch"


def check_version(directory: bytes) -> None:
    """Raises `VersionMismatchError` for a log of another version. Changes nothing; none there is fine."""
    try:
        with open(os.path.join(directory, b"version"), "rb") as file:
            found = file.read(64)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}") from error
    if found != _VERSION:
        raise VersionMismatchError(
            f"the undo log in {display(directory)} was written by another version of Holdfast",
            hint="its steps cannot be undone with this one; holdfast steps --discard begins a new log",
        )


def begin_version(directory: bytes) -> None:
    """Mark the log in ``directory``, which is locked, as one of this version, if it is new.

    Raises as `check_version`, and `OSError`.
    """
    check_version(directory)
    path = os.path.join(directory, b"version")
    if not os.path.lexists(path):
        _mark(path)


def discard_log(directory: bytes) -> None:
    """Forget a log of whatever version, and begin a new one; what lies aside stays.

    Only for when a person has asked for it. Raises `LockedError` while a keeper has it, and `StorageError`. Cut
    short, it is of its old version still: to be called again.
    """
    import shutil

    lock = locked(directory)
    try:
        for entry in list(os.scandir(directory)):
            if entry.name not in _SPARED and entry.name != b"version":
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        _mark(os.path.join(directory, b"version"))
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
    finally:
        os.close(lock)


def is_kept(directory: bytes) -> bool:
    """Whether a process keeps the log just now, as far as this one may find that out (else yes). One that was killed,
    and has not let go of it yet, is waited for.
    """
    try:
        fd = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        deadline = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if not _was_killed(holder_of(fd)) or time.monotonic() > deadline:
                    return True
                time.sleep(_PAUSE)
            else:
                return False
    finally:
        os.close(fd)


def _was_killed(process: int | None) -> bool:
    """Whether SIGKILL was sent to a process; it is there while any thread of it is (Linux, proc_pid_status(5))."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            pending = next((line for line in file if line.startswith(b"ShdPnd:")), b": 0")
    except OSError:
        return process is not None  # it is gone
    return bool(int(pending.split()[1], 16) & 1 << (signal.SIGKILL - 1))


def locked(directory: bytes) -> int:
    """A descriptor that holds the lock of the log, which is made if it is missing; closing it gives the lock up.

    Raises `LockedError` if another process has it, and `StorageError`.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        fd = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"{display(directory)}: {error.strerror}", hint=room_hint(error)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise LockedError("another process keeps the undo log of this workspace") from error
    return fd


def _mark(path: bytes) -> None:
    temporary = path + b".new"
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(_VERSION)
    os.rename(temporary, path)
