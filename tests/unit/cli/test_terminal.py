"""Nothing in a name or a label may drive the terminal that shows it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.terminal import Palette, ask, is_terminal, show_path, visible_line, wants_colour
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
