"""Lines out of pieces: whatever the pieces, the lines are the same; none is held that is too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import FormatError
from holdfast.wire.json_lines import Lines

MOST = 8
TOO_LONG = "line_too_long"


def taken(lines: Lines) -> list[bytes | str]:
    """All that is there; in the place of an error its code."""
    found: list[bytes | str] = []
    while True:
        try:
            line = lines.take()
        except FormatError as error:
            found.append(error.code)
            continue
        if line is None:
            return found
        found.append(line)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


def test_a_line_is_there_when_its_newline_is() -> None:
    lines = Lines(MOST)
    lines.feed(b"on")
    assert taken(lines) == []
    lines.feed(b"e\n\ntwo\nthr")
    assert taken(lines) == [b"one", b"", b"two"]


def test_the_longest_line_is_taken_and_a_longer_one_is_not() -> None:
    lines = Lines(MOST)
    lines.feed(b"12345678\n123456789\nnext\n")
    assert taken(lines) == [b"12345678", TOO_LONG, b"next"]


def test_a_line_without_an_end_is_told_once_and_takes_no_memory() -> None:
    lines = Lines(MOST)
    found: list[bytes | str] = []
    for _ in range(1000):
        lines.feed(b"x" * 100)
        found += taken(lines)
        assert len(lines._buffer) <= MOST
    assert found == [TOO_LONG]
    lines.feed(b"x\nback\n")
    assert taken(lines) == [b"back"]


def test_the_end_of_one_that_is_too_long_can_be_followed_by_another() -> None:
    lines = Lines(MOST)
    lines.feed(b"x" * 9)
    assert taken(lines) == [TOO_LONG]
    lines.feed(b"x\n" + b"y" * 9)
    assert taken(lines) == [TOO_LONG]
    lines.feed(b"\nz\n")
    assert taken(lines) == [b"z"]


def test_how_long_a_line_may_be_can_change_in_between() -> None:
    lines = Lines(3)
    lines.feed(b"one\nlonger\n")
    assert lines.take() == b"one"
    lines.limit(MOST)
    assert taken(lines) == [b"longer"]


CONTENT = st.binary(max_size=2 * MOST).map(lambda line: line.replace(b"\n", b""))


@given(st.lists(CONTENT), st.lists(st.integers(0, 2 * MOST)))
def test_the_pieces_make_no_difference(wanted: list[bytes], sizes: list[int]) -> None:
    lines = Lines(MOST)
    found: list[bytes | str] = []
    for piece in cut(b"".join(line + b"\n" for line in wanted), sizes):
        lines.feed(piece)
        found += taken(lines)
    assert found == [line if len(line) <= MOST else TOO_LONG for line in wanted]


def test_the_error_says_how_long_a_line_may_be() -> None:
    lines = Lines(MOST)
    lines.feed(b"123456789\n")
    with pytest.raises(FormatError, match="longer than 8 bytes"):
        lines.take()
