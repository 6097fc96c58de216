"""Cuts a stream of byte pieces anew: to the lengths that a decoder asks for, or into equal chunks."""

from __future__ import annotations

from holdfast.model.content import CHUNK_BYTES
from holdfast.model.errors import FormatError
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class PieceReader:
    """Reads a stream of pieces by length. Holds only one piece and the result in progress."""

    __slots__ = ("_at", "_piece", "_rest")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._rest = iter(pieces)
        self._piece = b""
        self._at = 0

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes; raises `FormatError` if the stream ends before."""
        end = self._at + length
        if end <= len(self._piece):
            taken = self._piece[self._at : end]
            self._at = end
            return taken
        parts = [self._piece[self._at :]]
        missing = length - len(parts[0])
        while missing > 0:
            piece = next(self._rest, None)
            if piece is None:
                raise FormatError(f"cut short: {missing} bytes are missing")
            parts.append(piece[:missing])
            self._piece, self._at = piece, len(parts[-1])
            missing -= len(parts[-1])
        return b"".join(parts)

    def at_end(self) -> bool:
        """True if nothing is left."""
        return self._at >= len(self._piece) and not any(self._rest)


def chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut into chunks of exactly `CHUNK_BYTES` except the last, which is not empty."""
    rest: list[bytes] = []
    have = 0
    for piece in pieces:
        if not have and len(piece) == CHUNK_BYTES:
            yield piece
            continue
        rest.append(piece)
        have += len(piece)
        if have >= CHUNK_BYTES:
            joined = b"".join(rest)
            end = have - have % CHUNK_BYTES
            for at in range(0, end, CHUNK_BYTES):
                yield joined[at : at + CHUNK_BYTES]
            rest = [joined[end:]]
            have -= end
    if have:
        yield b"".join(rest)
