"""What an experiment is asked for, and how its outcome and its progress look."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from holdfast import UsageError
from holdfast.cli.experiment_attempts import attempts_of, seconds, table
from holdfast.cli.progress_board import Board
from holdfast.cli.terminal import Palette
from holdfast.engine.experiments import _ranks as ranks
from holdfast.engine.experiments.attempts import Attempt, AttemptProgress, Comparison, Outcome
from holdfast.model.command_results import Diff
from holdfast.model.entries import Change, file_entry
from holdfast.model.ids import hash_bytes
from holdfast.model.session_types import CommandResult, SessionHash, SessionId


def test_several_commands_are_called_by_themselves() -> None:
    found = attempts_of(["make", "ninja"], [], [], 5.0)
    assert found == [Attempt(1, "make", "make", timeout_seconds=5.0), Attempt(2, "ninja", "ninja", timeout_seconds=5.0)]


def test_names_are_given_to_each_and_made_different() -> None:
    assert [one.name for one in attempts_of(["a", "b"], ["first", "second"], [], None)] == ["first", "second"]
    assert [one.name for one in attempts_of(["a", "a"], [], [], None)] == ["a (1)", "a (2)"]


def test_one_command_in_several_ways() -> None:
    found = attempts_of(["make"], [], ["shell=zsh", "CC='gcc -O2' timeout=2.5", "A=1 B=x=y"], 9.0)
    assert found == [
        Attempt(1, "shell=zsh", "make", {}, "zsh", 9.0),
        Attempt(2, "CC='gcc -O2' timeout=2.5", "make", {"CC": "gcc -O2"}, None, 2.5),
        Attempt(3, "A=1 B=x=y", "make", {"A": "1", "B": "x=y"}, None, 9.0),
    ]


@pytest.mark.parametrize(
    ("commands", "names", "variants"),
    [
        ([], [], []),
        (["a", "b"], ["one"], []),
        (["a", "b"], [], ["A=1"]),
        (["a"], [], ["shell=fish"]),
        (["a"], [], ["timeout=soon"]),
        (["a"], [], ["timeout=0"]),
        (["a"], [], ["1A=2"]),
        (["a"], [], ["A"]),
        (["a"], [], ["A='1"]),
    ],
)
def test_what_makes_no_sense(commands: list[str], names: list[str], variants: list[str]) -> None:
    with pytest.raises(UsageError):
        attempts_of(commands, names, variants, None)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "1e12"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        seconds(text)


def an_outcome(number: int, code: int, *, ms: int, score: float | None = None, error: str = "") -> Outcome:
    return Outcome(
        attempt=Attempt(number, f"way {number}", "true"),
        phase="failed" if code else "done",
        fork=None,
        root=b"/nowhere",
        result=CommandResult(exit_code=code, stdout="x" * 1200, stderr=""),
        duration_ms=ms,
        before=None,
        after=None,
        score=score,
        error=error,
    )


def compared(outcomes: list[Outcome], measure: str) -> Comparison:
    ranked = ranks.rank(outcomes, measure)  # type: ignore[arg-type]
    return Comparison(
        experiment="0123456789ab",
        session=SessionId("main"),
        fork_point=SessionHash("0" * 32),
        measure=measure,  # type: ignore[arg-type]
        ranked=ranked,
        winner=ranks.best(ranked, measure),  # type: ignore[arg-type]
        differences=[],
        statistics=ranks.statistics(outcomes),
        kept=False,
    )


def files(outcome: Outcome) -> Diff | None:
    if outcome.attempt.number != 1:
        return None
    entry = file_entry(hash_bytes(b""), 0, 0o644)
    return Diff(None, None, [Change(b"a", None, entry), Change(b"b", entry, None)], [], 0)


def test_the_table() -> None:
    lines = list(
        table(
            Palette(False),
            compared([an_outcome(1, 0, ms=1500), an_outcome(2, 3, ms=20, error="no")], "exit_code"),
            files,
        )
    )
    assert lines == [
        "Experiment 0123456789ab: 2 attempts, 1 succeeded",
        "",
        "   attempt  result    time  output  changes",
        "1  way 1    exit 0  1.50 s  1.2 kB  +1 -1",
        "2  way 2    exit 3  0.02 s  1.2 kB",
        "   no",
    ]


def test_the_table_of_scores() -> None:
    lines = list(table(Palette(False), compared([an_outcome(1, 1, ms=1, score=12.5)], "score"), files))
    assert lines[2:] == [
        "   attempt  result    time  score  output  changes",
        "1  way 1    exit 1  0.00 s   12.5  1.2 kB  +1 -1",
        f"   {'x' * 100}",
    ]


def test_names_that_could_drive_a_terminal_are_escaped_and_cut() -> None:
    outcome = an_outcome(1, 0, ms=1)
    outcome = outcome._replace(attempt=outcome.attempt._replace(name="\x1b[31m" + "x" * 99))
    shown = list(table(Palette(False), compared([outcome], "duration"), files))[3]
    assert "\x1b" not in shown
    assert "…" in shown


def drawn(board: Board) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(board.table())
    return out.getvalue()


def test_the_board_shows_where_each_attempt_is() -> None:
    board = Board([Attempt(1, "one\x1b[2J", "a"), Attempt(2, "two", "b"), Attempt(3, "three", "c")], io.StringIO())
    for moved in (
        AttemptProgress(1, "running"),
        AttemptProgress(1, "running", "compiling [red]main.c"),
        AttemptProgress(2, "running"),
        AttemptProgress(2, "failed"),
    ):
        board(moved)
    shown = drawn(board).splitlines()
    assert [line.split()[0] for line in shown] == ["1", "2", "3"]
    assert "\x1b" not in shown[0]
    assert "running" in shown[0]
    assert "compiling [red]main.c" in shown[0]
    assert "failed" in shown[1]
    assert "waiting" in shown[2]


def test_the_board_clears_up_after_itself() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, legacy_windows=False)
    with Board([Attempt(1, "one", "a")], out, console=console) as board:
        board(AttemptProgress(1, "running"))
        board(AttemptProgress(1, "done"))
    assert "one" in out.getvalue()
    # The last that is written moves up and erases the line.
    assert out.getvalue().rstrip().endswith("\x1b[2K")


def test_a_narrow_terminal_shows_where_attempts_are_rather_than_what_they_say() -> None:
    board = Board([Attempt(1, "a name that is rather long for this", "a")], io.StringIO())
    board(AttemptProgress(1, "setting up"))
    board(AttemptProgress(1, "setting up", "word " * 30))
    out = io.StringIO()
    Console(file=out, width=60).print(board.table())
    (line,) = out.getvalue().splitlines()
    assert "setting up" in line
    assert "word" in line
    assert len(line) <= 60
