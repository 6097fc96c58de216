"""Cuts a stream of bytes into messages: ``size[4] type[1] tag[2]``, and the body."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.wire.p9.protocol_constants import FIRST_FRAME_BYTES, HEADER_BYTES
from holdfast.wire.p9.request_errors import BAD_FRAME

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZE: Final = struct.Struct("<I")
HEADER: Final = struct.Struct("<IBH")


class Header(NamedTuple):
    """The beginning of every message, without its size."""

    type: int
    tag: int


def decode_header(frame: memoryview) -> Header:
    """The header of one whole message. Raises `FormatError` (code ``bad_frame``) if its size is another: the
    connection is of no more use then.
    """
    if len(frame) < HEADER_BYTES:
        raise FormatError(f"header: {len(frame)} bytes are too few", code=BAD_FRAME)
    size, kind, tag = HEADER.unpack_from(frame)
    if size != len(frame):
        raise FormatError(f"header: size {size} in a frame of {len(frame)}", code=BAD_FRAME)
    return Header(kind, tag)


class FrameSplitter:
    """Cuts the bytes of a stream into messages, each at most `limit` bytes.

    `limit` may be set between two messages, by Tversion: it applies to the next one, even if its bytes are here
    already. A message that is whole in the data is returned as a view, without a copy; one in several pieces is joined
    once. At most `limit` bytes are kept, and less than twice as many allocated.
    """

    __slots__ = ("_failure", "_part", "_size", "limit")

    def __init__(self, limit: int = FIRST_FRAME_BYTES) -> None:
        self.limit = limit
        self._part = bytearray()
        self._size = 0
        self._failure: FormatError | None = None

    @property
    def held_bytes(self) -> int:
        """How much of the next message is here; at the end of the stream it is 0 unless that was cut off."""
        return len(self._part)

    def split(self, data: bytes) -> Iterator[memoryview]:
        """The messages completed by ``data``; take all of them before the next call. The caller may keep them.

        Raises `FormatError` (code ``bad_frame``) at an impossible size, then and ever after: the beginning of the next
        message is unknown.
        """
        if self._failure is not None:
            raise self._failure
        rest = memoryview(data)
        while rest:
            if self._part:
                # (The size is known after four bytes; until then one more can be waited for.)
                wanted = (self._size or _SIZE.size) - len(self._part)
                self._part += rest[:wanted]
                rest = rest[wanted:]
                if not self._size:
                    if len(self._part) < _SIZE.size:
                        return
                    self._size = self._checked(self._part)
                if len(self._part) < self._size:
                    continue
                frame = memoryview(self._part).toreadonly()
                self._part, self._size = bytearray(), 0
                yield frame
            elif len(rest) < _SIZE.size:
                self._part += rest
                return
            else:
                size = self._checked(rest)
                if len(rest) < size:
                    self._part += rest
                    self._size = size
                    return
                frame, rest = rest[:size], rest[size:]
                yield frame

    def _checked(self, start: bytearray | memoryview) -> int:
        size: int = _SIZE.unpack_from(start)[0]
        if not HEADER_BYTES <= size <= self.limit:
            self._failure = FormatError(
                f"header: size {size}, where {HEADER_BYTES} to {self.limit} bytes are allowed", code=BAD_FRAME
            )
            raise self._failure
        return size
