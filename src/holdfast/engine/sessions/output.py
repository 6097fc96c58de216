"""What is kept of a command's output: the beginning and the end, with a mark between where something is left out."""

from __future__ import annotations

from holdfast.model.wording import plural


class Kept:
    """Takes the bytes of one stream, any number of them, in bounded memory."""

    __slots__ = ("_half", "_head", "_tail", "_taken")

    def __init__(self, most: int) -> None:
        """So many bytes are kept at most, the mark not counted: the first half and the last."""
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._taken = 0

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        self._taken += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:
            # (Not at every piece: each time costs as much as all that is kept.)
            del self._tail[: -self._half]

    @property
    def truncated(self) -> bool:
        """Whether something is left out."""
        return self._taken > 2 * self._half

    def text(self) -> str:
        r"""What is kept. A byte that is not UTF-8 is ``\xHH``; no character is cut in two by the mark."""
        if not self.truncated:
            return _text(self._head + self._tail)
        head = self._head[: len(self._head) - _unfinished(self._head)]
        tail = self._tail[-self._half :]
        tail = tail[_continued(tail) :]
        left_out = self._taken - len(head) - len(tail)
        return f"{_text(head)}\n[… {plural(left_out, 'byte')} left out …]\n{_text(tail)}"


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")


def _unfinished(data: bytes | bytearray) -> int:
    """How many bytes at the end begin a character that they do not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0xC2 or byte > 0xF4 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0


def _continued(data: bytes | bytearray) -> int:
    """How many bytes at the beginning go on with a character that began before them."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
