"""Cuts a stream of bytes into pieces that do not end inside a character of UTF-8. Pure."""

from __future__ import annotations


class WholeCharacters:
    """Holds back the beginning of a character until the rest has come. Bytes that are no UTF-8 pass as they are."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on after ``data`` has arrived."""
        data = self._tail + data
        cut = len(data) - incomplete_utf8(data)
        self._tail = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """The bytes held back, at the end of the stream: at most 3."""
        tail, self._tail = self._tail, b""
        return tail


def incomplete_utf8(data: bytes | bytearray) -> int:
    """How many bytes at the end of ``data`` begin a character of UTF-8 that they do not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC2 or byte > 0xF4 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0
