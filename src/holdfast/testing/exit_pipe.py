"""A named pipe that shows when the last process that has it open has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ExitPipe:
    """Have a command open `path` for writing: its children inherit that, and keep it open too."""

    def __init__(self, path: Path) -> None:
        """Makes the pipe. To open it for writing does not block."""
        os.mkfifo(path)
        self.path = path
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def until_all_are_gone(self) -> None:
        """Wait until no process has it open any more. Call this once, when the command has opened it."""
        os.set_blocking(self._end, True)
        try:
            assert os.read(self._end, 1) == b""
        finally:
            os.close(self._end)
