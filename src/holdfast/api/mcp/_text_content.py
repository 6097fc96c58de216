"""Content as a model gives and gets it."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from holdfast.model.errors import UsageError

Encoding = Literal["utf-8", "base64"]


def decode_text(content: str, encoding: Encoding) -> bytes:
    """A request's text as bytes. Raises `UsageError`."""
    if encoding == "utf-8":
        return content.encode()
    try:
        return base64.b64decode(content.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise UsageError(f"content is not Base64: {error}") from None


def encode_bytes(content: bytes) -> tuple[str, Encoding]:
    """Bytes as text: as they are if they are UTF-8, else in Base64."""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"


def whole_characters(content: bytes) -> bytes:
    """``content`` without an incomplete character at its end; unchanged if nothing else would be left."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 != 0x80:
            length = (
                1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
            )
            return content[:-back] if length > back and len(content) > back else content
    return content


class OutputExcerpt:
    """The beginning and the end of an output, in bounded memory."""

    def __init__(self, most: int) -> None:
        """``most`` bytes are kept: a quarter from the beginning, the rest from the end."""
        self._most_head = most // 4
        self._most_tail = most - most // 4
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0
        """Of all that came."""

    def add(self, data: bytes) -> None:
        """More of the output."""
        self.size += len(data)
        room = self._most_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._most_tail:
            del self._tail[: -self._most_tail]

    @property
    def omitted(self) -> int:
        """How many bytes `text` leaves out."""
        return max(0, self.size - self._most_head - self._most_tail)

    def text(self) -> str:
        """The kept output as text: invalid UTF-8 is replaced, and a note stands for the omitted part."""
        tail = self._tail[-self._most_tail :] if self._most_tail else b""
        if not self.omitted:
            return bytes(self._head + tail).decode(errors="replace")
        return (
            f"{self._head.decode(errors='replace')}\n… {self.omitted} bytes left out …\n{tail.decode(errors='replace')}"
        )

    def last_line(self, most: int = 200) -> str:
        """The newest line that is not empty, cut to ``most`` characters."""
        lines = (self._head + self._tail)[-4 * most :].decode(errors="replace").split("\n")
        return next((line.strip()[-most:] for line in reversed(lines) if line.strip()), "")
