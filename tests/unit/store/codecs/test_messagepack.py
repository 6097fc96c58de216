"""The own part of MessagePack, compared with a library that knows all of it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.store.codecs.messagepack import Unpacker, array_head, binary, number, numbers

EDGES = [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]
NUMBER = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1) | st.integers(0, 300)
OF_ONE_WIDTH = st.sampled_from([(0, 127), (128, 255), (256, 65535), (65536, (1 << 32) - 1), (1 << 32, (1 << 64) - 1)])
COLUMN = st.lists(NUMBER, max_size=40) | OF_ONE_WIDTH.flatmap(lambda ends: st.lists(st.integers(*ends), max_size=40))


@given(NUMBER)
def test_a_number_is_what_the_library_makes_of_it(value: int) -> None:
    assert number(value) == msgspec.msgpack.encode(value)
    reader = Unpacker(number(value))
    assert reader.number() == value
    reader.end()


@given(COLUMN)
def test_a_column_is_what_the_library_makes_of_it(values: list[int]) -> None:
    assert numbers(values) == msgspec.msgpack.encode(values)
    reader = Unpacker(numbers(values))
    assert reader.numbers() == values
    reader.end()


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65535, 65536])
def test_bytes_are_what_the_library_makes_of_them(length: int) -> None:
    value = b"\xcd" * length
    assert binary(value) == msgspec.msgpack.encode(value)
    reader = Unpacker(binary(value))
    assert reader.binary() == value
    reader.end()


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_the_head_of_an_array_is_what_the_library_makes_of_it(count: int) -> None:
    assert array_head(count) + b"\0" * count == msgspec.msgpack.encode([0] * count)
    Unpacker(array_head(count)).array(count)


def test_a_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(struct.error):
        number(1 << 64)
    with pytest.raises(struct.error):
        numbers([1 << 32, 1 << 64])


Take = Callable[[Unpacker], object]
BAD: dict[str, tuple[Take, bytes]] = {
    "nothing": (Unpacker.number, b""),
    "a number cut short": (Unpacker.number, b"\xcd\1"),
    "a negative number": (Unpacker.number, b"\xff"),
    "a text for a number": (Unpacker.number, b"\xa1a"),
    "a number longer than it need be": (Unpacker.number, b"\xcd\0\xff"),
    "a text for bytes": (Unpacker.binary, b"\xa1a"),
    "bytes cut short": (Unpacker.binary, b"\xc4\2a"),
    "more bytes than there can be": (Unpacker.binary, b"\xc6\xff\xff\xff\xff"),
    "a length longer than it need be": (Unpacker.binary, b"\xc5\0\1a"),
    "no array": (Unpacker.numbers, b"\xc0"),
    "a map for an array": (Unpacker.numbers, b"\x81\1\1"),
    "more numbers than there can be": (Unpacker.numbers, b"\xdd\xff\xff\xff\xff\1"),
    "a column cut short": (Unpacker.numbers, b"\x92\1"),
    "a column of one width cut short": (Unpacker.numbers, b"\x92\xcd\1\1\xcd\1"),
    "a column of numbers longer than they need be": (Unpacker.numbers, b"\x92\xcd\1\1\xcd\0\1"),
    "a negative number in a column": (Unpacker.numbers, b"\x92\1\xe0"),
    "bytes in a column": (Unpacker.numbers, b"\x92\xcc\xff\xc4\0"),
    "a count longer than it need be": (Unpacker.numbers, b"\xdc\0\1\1"),
    "another number of values": (lambda reader: reader.array(2), b"\x91\1"),
    "a rest": (Unpacker.end, b"\0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_refused(name: str) -> None:
    take, data = BAD[name]
    with pytest.raises(FormatError):
        take(Unpacker(data))


@given(st.binary(max_size=60), st.sampled_from([Unpacker.number, Unpacker.binary, Unpacker.numbers, Unpacker.end]))
def test_any_bytes_are_read_or_refused(data: bytes, take: Take) -> None:
    try:
        take(Unpacker(data))
    except FormatError:
        pass
