"""Lines as HTML: the text stays what it is, whatever it is, and marks stand where they belong."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.web.diff_page import changed_words
from holdfast.api.web.highlight import MOST_BYTES, line_html, pieces, text_lines


def shown(html):
    return unescape(re.sub("<[^>]*>", "", html))


@given(st.text(max_size=200), st.sampled_from([b"a.py", b"a.html", b"a.c", b"a.md", b"a.json", b"a", b"Makefile"]))
def test_the_text_of_each_line_stays(text, name):
    lines = text_lines(text.encode("utf-8", "surrogatepass"))
    assert [shown(line_html(line)) for line in pieces(name, lines)] == lines


@given(st.text(alphabet="ab <>&\"'", max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_marks_stand_at_their_characters(text, cuts):
    edges = sorted({min(cut, len(text)) for cut in cuts})
    ranges = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False) if start < end]
    (line,) = pieces(b"a.html", [text])
    html = line_html(line, ranges)
    assert shown(html) == text
    marked = "".join(map(shown, re.findall("<mark>(.*?)</mark>", html)))
    assert marked == "".join(text[start:end] for start, end in ranges)


def test_what_could_deceive_shows_as_its_bytes():
    (line,) = text_lines("if a: \u202e# b\x1b[2J\n".encode())
    assert line == r"if a: \xe2\x80\xae# b\x1b[2J"
    assert text_lines(b"a\tb\r\n") == ["a\tb"]
    assert text_lines(b"a\r\n", crlf=False) == [r"a\x0d"]
    assert text_lines(b"\xff") == [r"\xff"]


def test_a_long_text_stays_plain():
    lines = ["x = 1"] * (MOST_BYTES // 5 + 1)
    assert pieces(b"a.py", lines)[0] == [("x = 1", "")]
    assert [piece.text for piece in pieces(b"a.py", ["x" * 3000])[0]] == ["x" * 3000]


def test_words_that_changed_are_found():
    before, after = "return sum(one.price)", "return sum(one.cost)"
    assert changed_words(before, after) == ([(15, 20)], [(15, 19)])
    assert changed_words("a b c", "completely other text") == ([], [])
    assert changed_words("same", "same") == ([], [])


@pytest.mark.parametrize(
    ("name", "lines"),
    [(b"a.c", [""] * (200 << 10)), (b"a.java", ["a " * 500] * 200), (b"a.md", [""] * (100 << 10))],
    ids=["blank lines", "words", "blank lines of a document"],
)
def test_a_text_that_its_lexer_never_ends_with_is_plain(name, lines):
    assert pieces(name, lines) == [[(line, "")] for line in lines]
    assert [piece.style for piece in pieces(b"a.py", ["def f(): pass"])[0]][:1] == ["tk"]
