"""A stream is cut into the same messages however it was cut before; what cannot be a message ends it (I12)."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.wire.p9.framing import FrameSplitter
from holdfast.wire.p9.protocol_constants import FIRST_FRAME_BYTES


def message(length: int, tag: int = 0) -> bytes:
    return struct.pack("<IBH", 7 + length, 120, tag) + b"x" * length


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(st.lists(st.integers(0, 100), max_size=20), st.lists(st.integers(0, 3000), max_size=40))
def test_it_does_not_matter_how_a_stream_is_cut(lengths: list[int], cuts: list[int]) -> None:
    messages = [message(length, tag) for tag, length in enumerate(lengths)]
    splitter = FrameSplitter(107)
    found = [bytes(frame) for piece in pieces(b"".join(messages), cuts) for frame in splitter.split(piece)]
    assert found == messages
    assert splitter.held_bytes == 0


def test_one_byte_at_a_time() -> None:
    splitter = FrameSplitter()
    data = message(20) + message(0)
    counts = [len(list(splitter.split(data[at : at + 1]))) for at in range(len(data))]
    assert [at for at, count in enumerate(counts) if count] == [26, 33]


def test_a_whole_message_is_not_copied() -> None:
    data = message(3) + message(4)
    first, second = FrameSplitter().split(data)
    assert first.obj is data
    assert second.obj is data


def test_messages_stay_as_they_are() -> None:
    splitter = FrameSplitter()
    data = message(10, 1) + message(10, 2)
    frames = [frame for piece in pieces(data, [5, 20, 25]) for frame in splitter.split(piece)]
    assert [bytes(frame) for frame in frames] == [message(10, 1), message(10, 2)]
    assert all(frame.readonly for frame in frames)


@pytest.mark.parametrize("size", [0, 1, 6, FIRST_FRAME_BYTES + 1, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("start", [b"", message(5)])
def test_a_size_that_cannot_be_ends_the_stream(size: int, start: bytes) -> None:
    for cut in range(len(start), len(start) + 4):
        splitter = FrameSplitter()
        data = start + struct.pack("<I", size) + b"more"
        with pytest.raises(FormatError, match=f"size {size}"):
            list(chain.from_iterable(splitter.split(piece) for piece in (data[:cut], data[cut:])))
        with pytest.raises(FormatError):
            list(splitter.split(message(0)))


def test_the_longest_message_and_one_byte_more() -> None:
    assert [len(frame) for frame in FrameSplitter(50).split(message(43))] == [50]
    with pytest.raises(FormatError):
        list(FrameSplitter(50).split(message(44)))


def test_another_limit_counts_from_the_next_message_on() -> None:
    """It may have come in the same read."""
    splitter = FrameSplitter(20)
    frames: list[int] = []
    for frame in splitter.split(message(1) + message(100) + message(100)):
        frames.append(len(frame))
        splitter.limit = 107 if len(frames) == 1 else 50
        if len(frames) == 2:
            break
    assert frames == [8, 107]
    splitter = FrameSplitter(200)
    found = splitter.split(message(1) + message(100))
    next(found)
    splitter.limit = 20
    with pytest.raises(FormatError):
        next(found)


def test_a_message_that_never_ends_holds_no_more_than_it_may() -> None:
    limit = 1 << 17
    splitter = FrameSplitter(limit)
    tracemalloc.start()
    try:
        assert not list(splitter.split(struct.pack("<I", limit)))
        for _ in range(limit // 8 - 1):
            assert not list(splitter.split(b"x" * 8))
        assert tracemalloc.get_traced_memory()[1] < 3 * limit
    finally:
        tracemalloc.stop()
    assert splitter.held_bytes == limit - 4
