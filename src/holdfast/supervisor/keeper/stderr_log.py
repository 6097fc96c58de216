"""The keeper's own log: ``keeper.log`` beside the undo log, which is its standard error.

When it has grown to 1 MiB it replaces ``keeper.log.1``, and a new one begins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.log import set_sender

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from holdfast.model.log import Level

_NAME = b"keeper.log"
_MOST_BYTES = 1 << 20
_STDERR = 2


def open_log(directory: bytes) -> int:
    """A descriptor for what a keeper of the undo log in ``directory`` has to say; the caller closes it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(os.path.join(directory, _NAME), flags, 0o600)


class LogReader:
    """Reads what keepers of one undo log say from now on, a line at a time. For one thread."""

    def __init__(self, directory: bytes) -> None:
        """``directory`` is that of the undo log. The present contents of `keeper.log` are skipped."""
        self._path = os.path.join(directory, _NAME)
        self._rest = b""
        self._fd = self._open()
        if self._fd >= 0:
            os.lseek(self._fd, 0, os.SEEK_END)

    def lines(self) -> Sequence[bytes]:
        """The complete lines since the last call, without their ends; if there are many, only some of them."""
        if self._fd < 0:
            self._fd = self._open()
        if self._fd < 0:
            return []
        data = os.read(self._fd, _MOST_BYTES)
        if not data and self._is_another():
            os.close(self._fd)
            self._fd = self._open()
            data = os.read(self._fd, _MOST_BYTES) if self._fd >= 0 else b""
        elif not data and os.lseek(self._fd, 0, os.SEEK_CUR) > os.fstat(self._fd).st_size:
            os.lseek(self._fd, 0, os.SEEK_SET)  # it was truncated, since it could not be replaced
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole

    def close(self) -> None:
        """Read no more. Harmless a second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return -1

    def _is_another(self) -> bool:
        """Whether the log was begun anew."""
        try:
            return not os.path.samestat(os.stat(self._path, follow_symlinks=False), os.fstat(self._fd))
        except FileNotFoundError:
            return False


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
        os.ftruncate(_STDERR, 0)  # an empty log is better than an endless one
        return
    os.dup2(fd, _STDERR)
    os.close(fd)
