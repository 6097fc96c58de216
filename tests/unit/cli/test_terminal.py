"""Nothing in a name or a label may drive the terminal that shows it."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.terminal import (
    Palette,
    ask,
    columns,
    fit,
    is_terminal,
    show_path,
    table_lines,
    time_ago,
    visible_line,
    wants_colour,
)
from holdfast.model.message_text import visible
from holdfast.model.paths import parse_display


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 日本", "plain ünïcode 日本"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines\r", "two\\x0alines\\x0d"),
        ("del\x7f", "del\\x7f"),
        ("\x9b31m", "\\xc2\\x9b31m"),
        ("evil\u202egpj.exe", "evil\\xe2\\x80\\xaegpj.exe"),
        ("\udcff", "\\xff"),
        ("\ud800", "\\xed\\xa0\\x80"),
    ],
)
def test_what_could_drive_or_deceive_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_visible_text_is_one_harmless_line(text: str) -> None:
    shown = visible(text)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert len(shown.splitlines()) <= 1
    shown.encode()


@given(st.binary(max_size=30))
def test_a_shown_path_can_be_turned_back(path: bytes) -> None:
    assert parse_display(show_path(path)) == path


@given(st.lists(st.text(), max_size=5), st.integers(0, 30))
def test_a_line_is_cut_to_its_columns(texts: list[str], width: int) -> None:
    pieces = [(visible(text), ("red",)) for text in texts]
    whole = "".join(text for text, _ in pieces).rstrip()
    assert fit(Palette(False), pieces, None) == whole
    cut = fit(Palette(False), pieces, width)
    assert columns(cut) <= max(width, 1)
    assert cut == whole if columns(whole) <= width else cut.endswith("…") and whole.startswith(cut[:-1])
    coloured = fit(Palette(True), pieces, width)
    assert coloured.replace("\x1b[31m", "").replace("\x1b[0m", "") == cut


def test_columns_are_what_a_terminal_takes() -> None:
    assert [columns(text) for text in ("", "abc", "日本", "e\u0301", "ü…")] == [0, 3, 4, 1, 2]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "now"),
        (0.9, "now"),
        (1, "1 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (172_799, "47 h ago"),
        (172_800, "2 d ago"),
        (59 * 86_400, "59 d ago"),
        (60 * 86_400, "1 mo ago"),
        (729 * 86_400, "23 mo ago"),
        (730 * 86_400, "2 y ago"),
        (60 * 365 * 86_400, "60 y ago"),
    ],
)
def test_ages_are_told_in_ten_columns(seconds: float, told: str) -> None:
    now = 1_767_225_600_000_000
    assert time_ago(now - round(seconds * 1_000_000), now) == told
    assert len(told) <= 10


def test_content_keeps_its_tabs_and_loses_the_final_newline_alone() -> None:
    assert visible_line(b"\ta\x1b[0m\xff\r\n") == "\ta\\x1b[0m\\xff\\x0d"
    assert visible_line(b"x") == "x"


def test_colours_are_for_terminals_and_can_be_refused() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert wants_colour(Terminal(), {"TERM": "xterm"})
    assert not wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert not wants_colour(Terminal(), {"TERM": "dumb"})
    assert not wants_colour(io.StringIO(), {"TERM": "xterm"})
    closed = Terminal()
    closed.close()
    assert not is_terminal(None)
    assert Palette(False)("x", "red") == "x"
    assert Palette(True)("x", "red", "bold") == "\x1b[31;1mx\x1b[0m"


@pytest.mark.parametrize(
    ("typed", "answer"), [("y\n", "y"), ("N\n", "n"), ("what\nyes\n", "y"), ("", "n"), ("a\nb\nc\ny\n", "n")]
)
def test_a_question_ends_with_the_careful_answer(
    typed: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert ask("Go on? ", "yn") == answer
    assert capsys.readouterr().err.startswith("Go on? ")


COLUMNS = ((">number", 5), ("when", 0), ("note", 0), ("command", 0))
ROWS = [
    ["1", "now", "", "a b"],
    "        a line as it is",
    ["12", ("yesterday", "red"), "", ""],
]


def test_a_table_is_aligned_without_what_is_empty_and_named_where_it_is_to_be() -> None:
    plain = Palette(False)
    assert list(table_lines(plain, COLUMNS, ROWS, named=False)) == [
        "    1  now        a b",
        "        a line as it is",
        "   12  yesterday",
    ]
    assert list(table_lines(plain, COLUMNS, ROWS, named=True)) == [
        "number  when       command",
        "     1  now        a b",
        "        a line as it is",
        "    12  yesterday",
    ]
    assert list(table_lines(plain, COLUMNS, [], named=True)) == []


def test_colours_take_no_room_in_a_table() -> None:
    coloured = list(table_lines(Palette(True), COLUMNS, ROWS, named=True))
    assert "\x1b[31myesterday\x1b[0m" in coloured[3]
    assert coloured[0].startswith("\x1b[2mnumber")
    uncoloured = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in coloured]
    assert uncoloured == list(table_lines(Palette(False), COLUMNS, ROWS, named=True))
