"""The score of an attempt: a number at the end of a command's output, or what a function says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engine.experiments.scores import load_function, number_in, score_of
from holdfast.model.errors import NotFoundError, UsageError
from holdfast.model.session_types import CommandResult

from .building import outcome


@pytest.mark.parametrize(
    ("output", "number"),
    [
        ("12\n", 12.0),
        ("size: many\n-1.5e3\n\n", -1500.0),
        ("", None),
        ("twelve", None),
        ("12 kB", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_the_number_is_the_last_line(output: str, number: float | None) -> None:
    assert number_in(output) == number


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "did not run"),
        (CommandResult(exit_code=3, stdout="1", stderr=""), "ended with 3"),
        (CommandResult(exit_code=143, stdout="1", stderr="", timed_out=True), "too long"),
        (CommandResult(exit_code=0, stdout="fine", stderr=""), "no number"),
    ],
)
def test_why_there_is_no_score(result: CommandResult | None, reason: str) -> None:
    score, error = score_of(result)
    assert score is None
    assert reason in error


def test_a_score() -> None:
    assert score_of(CommandResult(exit_code=0, stdout="7\n", stderr="")) == (7.0, "")


def test_a_function_of_a_file_and_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(outcome):\n    return outcome.duration_ms * 2\n")
    assert load_function(f"{tmp_path}/mine.py:score")(outcome(1, ms=21)) == 42
    assert load_function("math:floor")(2.5) == 2  # type: ignore[arg-type]


def test_a_function_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise OSError('no')\n")
    (tmp_path / "empty.py").write_text("score = 3\n")
    for text in ("score", ":score", "mine.py:", "mine.py:a b", "no_such_module:score", f"{tmp_path}/broken.py:score"):
        with pytest.raises(UsageError):
            load_function(text)
    with pytest.raises(UsageError, match="no function score"):
        load_function(f"{tmp_path}/empty.py:score")
    with pytest.raises(NotFoundError):
        load_function(f"{tmp_path}/missing.py:score")
