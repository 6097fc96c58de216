"""Files that list runs: those with steps that the undo log has dropped, which only their first checkpoint undoes
completely; and those whose undo may overwrite others' changes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.model.errors import StorageError, room_hint
from holdfast.model.paths import display

if TYPE_CHECKING:
    from collections.abc import Collection


class ForgottenRuns:
    """A file that only grows: one line for each such run, once. docs/formats/undo-log.md specifies it."""

    def __init__(self, path: bytes) -> None:
        """Read it. Raises `OSError`."""
        self._path = path
        try:
            with open(path, "rb") as file:
                # The rest of a line that was cut off is no run's id.
                lines = file.read().split()
        except FileNotFoundError:
            lines = []
        self._runs = dict.fromkeys(line.decode("ascii", "replace") for line in lines)

    @property
    def runs(self) -> Collection[str]:
        """Their ids, in the order in which they were noted."""
        return self._runs.keys()

    def add(self, run: str) -> None:
        """Note a run. Idempotent; raises `StorageError`."""
        if not run or run in self._runs:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                # A leading newline, too, since the line before may have been cut off.
                os.write(fd, b"\n%s\n" % run.encode("ascii", "replace"))
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageError(f"{display(self._path)}: {error.strerror}", hint=room_hint(error)) from error
        self._runs[run] = None
