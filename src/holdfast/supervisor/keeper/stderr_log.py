"""The keeper's own log: ``keeper.log`` beside the undo log, which is its standard error.

When it has grown to 1 MiB it becomes ``keeper.log.1``, in place of the one before, and is begun anew.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.log import set_sender

if TYPE_CHECKING:
    import logging

    from holdfast.model.log import Level

_NAME = b"keeper.log"
_MOST_BYTES = 1 << 20
_STDERR = 2


def open_log(directory: bytes) -> int:
    """A descriptor for what a keeper of the undo log in ``directory`` has to say; the caller closes it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(os.path.join(directory, _NAME), flags, 0o600)


def log_to_stderr(directory: bytes, level: Level) -> None:
    """Send the records of this process from ``level`` on to its standard error, which is `open_log` of the directory,
    as JSON, and keep that small.
    """

    def begin() -> None:
        from holdfast.model.log_format import LineHandler, send

        class Notes(LineHandler):
            def emit(self, record: logging.LogRecord) -> None:
                super().emit(record)
                if os.fstat(_STDERR).st_size >= _MOST_BYTES:
                    _begin_anew(directory)

        send(level, Notes(as_json=True))

    set_sender(level, begin)


def _begin_anew(directory: bytes) -> None:
    path = os.path.join(directory, _NAME)
    try:
        os.replace(path, path + b".1")
        fd = open_log(directory)
    except OSError:
        os.ftruncate(_STDERR, 0)  # better none than one without an end
        return
    os.dup2(fd, _STDERR)
    os.close(fd)
