"""The logs of processes that go on by themselves, each in the folder of its workspace."""

from __future__ import annotations

import os

from holdfast.model.errors import StorageError
from holdfast.model.paths import display

_MAX_LOG_BYTES = 1 << 20


def open_log(folder: bytes, name: bytes) -> int:
    """Open the log ``name`` of a process that goes on by itself: mode 0600, begun anew when it has grown beyond 1 MiB.

    Raises `StorageError`.
    """
    path = folder + b"/" + name
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(fd).st_size > _MAX_LOG_BYTES:
            os.ftruncate(fd, 0)
        return fd
    except OSError as error:
        raise StorageError(f"cannot open {display(path)}: {error.strerror}") from error
