"""What is kept of a command's output."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.sessions.shell.execution import OutputExcerpt


def kept(most: int, *pieces: bytes) -> OutputExcerpt:
    found = OutputExcerpt(most)
    for piece in pieces:
        found.add(piece)
    return found


def test_what_is_short_is_kept_whole() -> None:
    found = kept(10, b"01234", b"56789")
    assert (found.text(), found.truncated) == ("0123456789", False)


def test_of_what_is_long_the_beginning_and_the_end_are_kept() -> None:
    found = kept(10, b"01234", b"x" * 1000, b"56789")
    assert (found.text(), found.truncated) == ("01234\n[… 1,000 bytes left out …]\n56789", True)


def test_bytes_that_are_not_utf_8_are_shown() -> None:
    assert kept(100, b"a\xffb\\n").text() == "a\\xffb\\n"


def test_one_byte_is_one() -> None:
    assert kept(10, b"01234x56789").text() == "01234\n[… 1 byte left out …]\n56789"


def test_no_character_is_cut_in_two() -> None:
    found = kept(10, "ää€€€€€€ää".encode())
    assert found.text() == "ää\n[… 18 bytes left out …]\nää"


@given(st.lists(st.binary(max_size=30)), st.integers(2, 40))
def test_any_pieces_are_kept_as_the_whole_is(pieces: list[bytes], most: int) -> None:
    whole = b"".join(pieces)
    found = kept(most, *pieces)
    assert found.text() == kept(most, whole).text()
    if found.truncated:
        left_out = re.search(r"\n\[… ([\d,]+) bytes? left out …\]\n", found.text())
        assert left_out is not None
        assert len(whole) - most <= int(left_out[1].replace(",", "")) <= len(whole) - most + 7
    else:
        assert found.text() == whole.decode("utf-8", "backslashreplace")
