"""A guest's console output: kept in bounded memory and a bounded file, and harmless when it is shown."""

from __future__ import annotations

import os
import re

TAIL_BYTES = 1 << 16
FILE_BYTES = 1 << 20
"""When the log has become so long, it is put aside as ``console.log.old``, and a new one begun."""
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""Terminal commands (ECMA-48): control sequences, strings with their end, other escapes."""
_MOST_LINE = 500


class Console:
    """The log of one machine. A guest may write without end, and anything."""

    def __init__(self, folder: bytes) -> None:
        """``folder`` gets ``console.log`` (mode 0600); an earlier one is put aside. Raises `OSError`."""
        self._path = os.path.join(folder, b"console.log")
        self._tail = bytearray()
        self._begin()

    def _begin(self) -> None:
        try:
            os.rename(self._path, self._path + b".old")
        except FileNotFoundError:
            pass
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._size = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        try:
            if self._size > FILE_BYTES:
                os.close(self._fd)
                self._fd = -1
                self._begin()
            self._size += os.write(self._fd, data)
        except OSError:
            pass  # a full disk ends no machine; the last output is kept in memory

    def tail(self, lines: int = 20) -> str:
        """The last lines, without what a terminal would take as a command."""
        return "\n".join(harmless_lines(bytes(self._tail[-TAIL_BYTES:]))[-lines:])

    def close(self) -> None:
        """Release the file. The last output stays available."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def harmless_lines(data: bytes) -> list[str]:
    """The non-empty lines, of printable characters alone."""
    text = _SEQUENCES.sub("", data.decode("utf-8", "replace"))
    lines = ("".join(c if c.isprintable() else " " for c in line).strip() for line in re.split(r"[\r\n]+", text))
    return [line[:_MOST_LINE] for line in lines if line]
