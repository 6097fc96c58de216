"""What is taken out of what an interactive shell shows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.sessions.shell._terminal_relay import PromptMarks, shown_text

SHOWN = b"$ ls\r\n@B@a b\r\n\x1b[1mc\x1b[0m\r\n@E@$ \x1b]0;title\x07 true\r\n@B@@E@$ x\r\n@B@rest"


def marked(marks: PromptMarks, text: bytes) -> bytes:
    return text.replace(b"@B@", marks.begin).replace(b"@E@", marks.end)


@given(st.lists(st.integers(0, 200)))
def test_marks_are_found_wherever_it_is_cut(cuts: list[int]) -> None:
    marks = PromptMarks("secret", 1000)
    whole = marked(marks, SHOWN)
    at = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    shown, outputs = b"", list[str]()
    for start, end in pairwise(at):
        passed, ended = marks.feed(whole[start:end])
        shown += passed
        outputs += [shown_text(kept) for kept in ended]
    assert shown == SHOWN.replace(b"@B@", b"").replace(b"@E@", b"")
    assert outputs == ["a b\n\x1b[1mc\x1b[0m\n", ""]
    assert shown_text(marks.close()) == "rest"


def test_what_only_looks_like_a_mark_is_shown() -> None:
    marks = PromptMarks("secret", 1000)
    other = PromptMarks("other", 1000).end
    assert marks.feed(marks.begin + other)[0] == other
    assert marks.feed(b"\x1b]77")[0] == b""
    assert marks.feed(b"18\x07")[0] == b"\x1b]7718\x07"
    kept = marks.feed(marks.end)[1]
    assert [shown_text(one) for one in kept] == [(other + b"\x1b]7718\x07").decode()]


def test_of_a_long_output_the_beginning_and_the_end_are_kept() -> None:
    marks = PromptMarks("secret", 10)
    kept = marks.feed(marks.begin + b"01234" + b"x" * 90 + b"56789" + marks.end)[1][0]
    assert (kept.text(), kept.truncated) == ("01234\n[… 90 bytes left out …]\n56789", True)
