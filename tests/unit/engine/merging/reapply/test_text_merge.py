"""The rung ``text``: against `git merge-file`, and against what a merge by lines must never do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.engine.merging.reapply._strategy import Declined, NewContent, ReapplyTask
from holdfast.engine.merging.reapply._text_merge import TextRung, merge_text

LINES = st.lists(st.sampled_from(["a", "b", "c", "d", "e", ""]), max_size=8)
TEXTS = st.builds(lambda lines, end: "\n".join(lines).encode() + end, LINES, st.sampled_from([b"", b"\n"]))
EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "replace"]), st.integers(0, 30), st.sampled_from(["x", "y", "z"])),
    max_size=4,
)
NUMBERED = [f"line {number}\n" for number in range(30)]


def edited(edits: list[tuple[str, int, str]], who: str) -> bytes:
    lines = list(NUMBERED)
    for what, at, text in edits:
        at = min(at, len(lines))
        if what == "insert":
            lines.insert(at, f"{who} {text}\n")
        elif at < len(lines):
            lines[at : at + 1] = [] if what == "delete" else [f"{who} {text}\n"]
    return "".join(lines).encode()


def by_git(folder: Path, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    for name, content in (("base", base), ("ours", ours), ("theirs", theirs)):
        (folder / name).write_bytes(content)
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def test_hunks_that_do_not_touch_come_together() -> None:
    base = b"1\n2\n3\n4\n5\n"
    assert merge_text(base, b"one\n2\n3\n4\n5\n", b"1\n2\n3\n4\nfive") == b"one\n2\n3\n4\nfive"
    assert merge_text(base, b"2\n3\n4\n5\n", b"1\n2\n3\n4\n5\n6\n") == b"2\n3\n4\n5\n6\n"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (b"1\ntwo\n3\n", b"1\nzwei\n3\n"),
        (b"1\ntwo\n3\n", b"1\n2\nthree\n"),
        (b"1\n2\n3\nours\n", b"1\n2\n3\ntheirs\n"),
        (b"1\n3\n", b"1\n2\nnew\n3\n"),
        (b"", b"1\n2\n3\n4\n"),
    ],
)
def test_hunks_that_touch_are_declined(ours: bytes, theirs: bytes) -> None:
    assert merge_text(b"1\n2\n3\n", ours, theirs) is None


@settings(max_examples=150, deadline=None)
@given(EDITS, EDITS)
def test_every_line_that_either_has_written_is_there_and_none_that_either_has_deleted(one, two) -> None:
    base, ours, theirs = "".join(NUMBERED).encode(), edited(one, "ours"), edited(two, "theirs")
    found = merge_text(base, ours, theirs)
    assert found == (swapped := merge_text(base, theirs, ours)) or swapped is None
    if found is None:
        return
    lines = found.splitlines()
    for side in (ours, theirs):
        written = [line for line in side.splitlines() if line not in base.splitlines()]
        assert all(lines.count(line) >= 1 for line in written)
        for line in set(base.splitlines()) - set(side.splitlines()):
            assert line not in lines


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.tuples(TEXTS, TEXTS, TEXTS), st.builds(lambda one, two: (one, two), EDITS, EDITS)))
def test_what_it_merges_git_merges_to_the_same_or_not_at_all(tmp_path: Path, given_) -> None:
    if len(given_) == 2:
        given_ = ("".join(NUMBERED).encode(), edited(given_[0], "ours"), edited(given_[1], "theirs"))
        found, git = merge_text(*given_), by_git(tmp_path, *given_)
        assert found is None or git is None or found == git
    else:
        found = merge_text(*given_)
        base, ours, theirs = given_
        if ours == base:
            assert found == theirs
        if theirs in (base, ours):
            assert found == ours


def test_what_is_no_text_or_has_no_three_versions_is_declined() -> None:
    task = ReapplyTask(b"f", "content", b"a\0", b"b", b"c", [1], {})
    assert TextRung().apply(task) == Declined("it is no text")
    assert isinstance(TextRung().apply(task._replace(now=None)), Declined)
    assert TextRung().apply(task._replace(now=b"b")) == NewContent(b"c", "by lines")


def test_a_large_text_takes_no_longer_than_its_diffs() -> None:
    base = b"".join(b"%d\n" % (number % 977) for number in range(60_000))
    assert merge_text(base, b"first\n" + base, base + b"last\n") == b"first\n" + base + b"last\n"


FUNCTIONS = b"".join(b"def f%d():\n    x = 1\n    return\n\n\n" % number for number in range(6))
ADDED = b"def added():\n    one\n    two\n    three\n    return\n\n\n"


def test_what_both_have_added_alike_is_there_once() -> None:
    """Whatever else they have done around it, so that their diffs may find it in another place."""
    at = FUNCTIONS.index(b"def f3")
    ours = FUNCTIONS[:at] + ADDED + FUNCTIONS[at:]
    theirs = (FUNCTIONS[:at] + ADDED + FUNCTIONS[at:]).replace(b"def f0", b"def g0")
    assert merge_text(FUNCTIONS, ours, theirs) == theirs
    elsewhere = FUNCTIONS[: FUNCTIONS.index(b"def f5")] + ADDED + FUNCTIONS[FUNCTIONS.index(b"def f5") :]
    assert merge_text(FUNCTIONS, ours, elsewhere) is None
