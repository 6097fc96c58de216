"""The little of MessagePack that pages and changesets are made of: arrays, byte strings, columns of numbers from 0 up.

A library that knows all of MessagePack takes longer to load than all the pages take that a usual command reads. Only
the shortest form of each value is written, and read: one value has one encoding. Pure: values in, bytes out.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct

from holdfast.model.errors import FormatError
from holdfast.model.fast_namedtuple import NamedTuple
from holdfast.model.fast_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SMALL = 128
"""Numbers below this are a byte of their own."""
_FEW = 8
"""So few numbers are not worth a look at what all of them have in common."""


class _Width(NamedTuple):
    """One form of numbers: its first byte, how many bytes follow, the least number that has no shorter one."""

    mark: int
    bytes: int
    least: int
    code: str
    """Of `array`."""


_WIDTHS = {
    0xCC: _Width(0xCC, 1, _SMALL, "B"),
    0xCD: _Width(0xCD, 2, 1 << 8, "H"),
    0xCE: _Width(0xCE, 4, 1 << 16, "I"),
    0xCF: _Width(0xCF, 8, 1 << 32, "Q"),
}
_BYTES = [bytes((value,)) if value < _SMALL else bytes((0xCC, value)) for value in range(1 << 8)]
"""Each number below 256, encoded."""
_SHORT = "it is cut short"
_two, _four, _eight = Struct(">BH").pack, Struct(">BI").pack, Struct(">BQ").pack


def array_head(count: int) -> bytes:
    """The head of an array of ``count`` values."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def binary(value: bytes) -> bytes:
    """A byte string."""
    length = len(value)
    if length < 1 << 8:
        return bytes((0xC4, length)) + value
    head = b"\xc5" + length.to_bytes(2, "big") if length < 1 << 16 else b"\xc6" + length.to_bytes(4, "big")
    return head + value


def number(value: int) -> bytes:
    """A number from 0 to 2⁶⁴ - 1."""
    return _join((value,))


def numbers(values: Sequence[int]) -> bytes:
    """An array of numbers from 0 to 2⁶⁴ - 1."""
    return array_head(len(values)) + _join(values)


def _join(values: Sequence[int]) -> bytes:
    # One comprehension, no call in Python for each: a checkpoint may write a hundred columns of a hundred numbers.
    return b"".join(
        [
            _BYTES[value]
            if value < 1 << 8
            else _two(0xCD, value)
            if value < 1 << 16
            else _four(0xCE, value)
            if value < 1 << 32
            else _eight(0xCF, value)
            for value in values
        ]
    )


class Unpacker:
    """Decodes the values of the functions above, one after the other.

    Every method raises `FormatError` for another type, a truncated value, and one that is not in its shortest form.
    Memory is at most a few times the length of ``data``, whatever lengths it claims.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def array(self, count: int) -> None:
        """The head of an array of exactly ``count`` values."""
        found = self._count()
        if found != count:
            raise FormatError(f"an array of {found} values instead of {count}")

    def binary(self) -> bytes:
        """A byte string."""
        data, at = self._data, self._at
        if data[at : at + 1] == b"\xc4" and (end := at + 2 + int.from_bytes(data[at + 1 : at + 2], "big")) <= len(data):
            self._at = end  # a short one, as most are: without a call for each of its parts
            return data[at + 2 : end]
        mark = self._byte()
        if not 0xC4 <= mark <= 0xC6:
            raise FormatError(f"a value that begins with {mark:#04x} where there should be bytes")
        length = self._big_endian(1 << (mark - 0xC4), (0, 1 << 8, 1 << 16)[mark - 0xC4])
        begin = self._at
        self._skip(length)
        return self._data[begin : self._at]

    def number(self) -> int:
        """A number."""
        mark = self._byte()
        if mark < _SMALL:
            return mark
        width = _WIDTHS.get(mark)
        if width is None:
            raise FormatError(f"a value that begins with {mark:#04x} where there should be a number from 0 up")
        return self._big_endian(width.bytes, width.least)

    def numbers(self) -> list[int]:
        """An array of numbers."""
        count = self._count()
        if count > len(self._data) - self._at:
            raise FormatError(_SHORT)
        if count < _FEW:
            return self._one_by_one(count)
        mark = self._data[self._at]
        width = _WIDTHS.get(mark)
        if width is None:
            some = self._data[self._at : self._at + count]
            if max(some) < _SMALL:
                self._at += count
                return list(some)
        elif (same := self._apart(count, width)) is not None:
            return same
        return self._one_by_one(count)

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._data):
            raise FormatError(f"{len(self._data) - self._at} bytes too many")

    def _apart(self, count: int, width: _Width) -> list[int] | None:
        """``count`` numbers, if all are of this width."""
        step = width.bytes + 1
        some = self._data[self._at : self._at + count * step]
        if some[::step] != bytes((width.mark,)) * count or len(some) != count * step:
            return None
        plain = bytearray(count * width.bytes)
        for at in range(width.bytes):
            plain[at :: width.bytes] = some[at + 1 :: step]
        values = array(width.code, bytes(plain))
        if sys.byteorder == "little":
            values.byteswap()
        found = values.tolist()
        if min(found) < width.least:
            raise FormatError("a number that is not in its shortest form")
        self._at += count * step
        return found

    def _one_by_one(self, count: int) -> list[int]:
        """``count`` numbers of any widths: `number`, without calls for those of usual widths."""
        data, at = self._data, self._at
        found: list[int] = []
        try:
            for _ in range(count):
                mark = data[at]
                at += 1
                if mark < _SMALL:
                    found.append(mark)
                elif mark == 0xCD and data[at]:
                    found.append(data[at] << 8 | data[at + 1])
                    at += 2
                elif mark == 0xCC and data[at] >= _SMALL:
                    found.append(data[at])
                    at += 1
                else:
                    self._at = at - 1
                    found.append(self.number())
                    at = self._at
        except IndexError:
            raise FormatError(_SHORT) from None
        self._at = at
        return found

    def _count(self) -> int:
        """How many values an array has."""
        some = self._data[self._at : self._at + 1]
        if b"\x90" <= some <= b"\x9f":
            self._at += 1
            return some[0] & 0x0F
        mark = self._byte()
        if mark == 0xDC:
            return self._big_endian(2, 16)
        if mark == 0xDD:
            return self._big_endian(4, 1 << 16)
        raise FormatError(f"a value that begins with {mark:#04x} where there should be an array")

    def _byte(self) -> int:
        begin = self._at
        self._skip(1)
        return self._data[begin]

    def _big_endian(self, length: int, least: int) -> int:
        begin = self._at
        self._skip(length)
        value = int.from_bytes(self._data[begin : self._at], "big")
        if value < least:
            raise FormatError("a number or a length that is not in its shortest form")
        return value

    def _skip(self, length: int) -> None:
        if length > len(self._data) - self._at:
            raise FormatError(_SHORT)
        self._at += length
