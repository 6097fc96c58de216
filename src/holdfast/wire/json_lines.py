"""Cuts a stream of bytes, in any pieces, into lines, in bounded memory, and counts their values.

Two bytes of JSON can become hundreds in memory, so values are counted before any of them is made. Nothing here checks
that a line is JSON (RFC 8259) at all.
"""

from __future__ import annotations

import re
from itertools import islice

from holdfast.model.errors import FormatError


class Lines:
    """Give it what arrived (`feed`), then take lines until there is none (`take`)::

        lines.feed(data)
        while (line := lines.take()) is not None:
            ...

    Never keeps more than the longest line, and the bytes fed since `take` last returned None.
    """

    __slots__ = ("_buffer", "_is_skipping", "_most", "_searched")

    def __init__(self, most: int) -> None:
        """A line has at most ``most`` bytes, its newline not counted."""
        self._most = most
        self._buffer = bytearray()
        self._searched = 0
        """Number of bytes at the beginning without a newline: each byte is searched once."""
        self._is_skipping = False

    def limit(self, most: int) -> None:
        """From here on, what arrived already included, a line has at most ``most`` bytes."""
        self._most = most

    def feed(self, data: bytes) -> None:
        """Add what arrived."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next line without its newline, or None if it has not arrived whole.

        Raises `FormatError` (code ``line_too_long``) once for each line that is too long, as soon as that is known; the
        rest of it is dropped, and the data after its newline is processed as usual.
        """
        at = self._buffer.find(b"\n", self._searched)
        if self._is_skipping:
            if at < 0:
                self._drop(len(self._buffer))
                return None
            self._drop(at + 1)
            self._is_skipping = False
            at = self._buffer.find(b"\n")
        length = len(self._buffer) if at < 0 else at
        if length > self._most:
            self._is_skipping = at < 0
            self._drop(length if at < 0 else at + 1)
            raise FormatError(f"a line is longer than {self._most} bytes", code="line_too_long")
        if at < 0:
            self._searched = length
            return None
        line = bytes(self._buffer[:at])
        self._drop(at + 1)
        return line

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._searched = 0


_PART = re.compile(rb'[^",\[{]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]|\Z)', re.DOTALL)
"""Up to the end of the next string, or of what begins or parts values. No byte is examined twice."""


def has_more_values(text: bytes, most: int) -> bool:
    """Whether a text holds many more than ``most`` values, names of members included.

    True for every text that holds more than twice as many, False for every one that holds ``most`` or less, either in
    between. Takes time linear in the length of ``text``, and hardly any memory.
    """
    # Every value except the outermost has its own part before it: a bracket, a comma, or the name of its member. And
    # there are no more strings and brackets than values, and fewer commas.
    parts = 2 * most
    if sum(map(text.count, (b'"', b",", b"[", b"{"))) < parts:
        return False  # so few even if none of them is inside a string
    return sum(1 for _ in islice(_PART.finditer(text), parts + 1)) > parts  # (one is the end)
