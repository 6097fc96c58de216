"""A workspace's file that is wrong stops only what saves by its rules: whoever broke it must not take history away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

GOOD = '[capture]\nexclude = ["/private/"]\n'
BROKEN = '[capture]\nexclude = ["/private/"\n'


@pytest.fixture
def run(tree: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command in a workspace with two checkpoints, whose file was broken after them."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["--home", str(home), *words])
        out, err = capfd.readouterr()
        return code, out, err

    monkeypatch.chdir(tree)

    (tree / "holdfast.toml").write_text(GOOD)
    (tree / "private").mkdir()
    (tree / "private/key").write_text("nobody saves this")
    (tree / "file").write_text("one\n")
    assert run("init")[0] == run("checkpoint", "-m", "one")[0] == 0
    (tree / "file").write_text("two\n")
    assert run("checkpoint", "-m", "two")[0] == 0
    (tree / "holdfast.toml").write_text(BROKEN)
    yield run
    (tree / "holdfast.toml").write_text(GOOD)
    assert run("verify", "--read-data")[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "log",
        "show",
        "cat @:file",
        "diff one",
        "diff one two",
        "verify",
        "stats",
        "gc",
        "forget one",
        "forget --keep-last 1",
        "restore one",
        "restore --dry-run one",
        "undo 2",
        "fork one ../fork",
        "export one ../bundle",
        "watch --stop",
    ],
)
def test_what_looks_or_goes_back_goes_on_with_a_warning(run: Run, line: str) -> None:
    code, _, said = run(*line.split())
    assert code in (0, 3) if line == "watch --stop" else code == 0, said
    assert said.count("holdfast.toml: it is not TOML") == 1
    assert "the last saved version applies" in said


@pytest.mark.parametrize("named", [[], ["-s", "one"]])
def test_no_session_is_locked_out(run: Run, tree: Path, named: list[str]) -> None:
    (tree / "holdfast.toml").write_text(GOOD)
    assert run("session", "start", "one")[0] == 0
    assert run("session", "branch", "here")[0] == 0
    (tree / "holdfast.toml").write_text(BROKEN)
    for words in (
        ["session", "list"],
        ["session", "info", *named],
        ["session", "exec", *named, "echo three > file; echo theirs > private/key"],
        ["session", "history", *named],
        ["session", "branches", *named],
        ["session", "checkpoint", *named],
        ["session", "checkout", *named, "here"],
    ):
        code, out, said = run(*words)
        assert code == 0, said
        assert said.count("holdfast.toml: it is not TOML") == 1, words
        assert "echo three" in out or words[1] != "history"
    assert (tree / "private/key").read_text() == "theirs\n"
    (tree / "holdfast.toml").write_text(BROKEN)
    code, _, said = run("session", "fork", *named, "side", "--provider", "holdfast")
    assert code == 2, "what the file excludes would be saved in it"
    assert "it is not TOML" in said
    code, _, said = run("session", "delete", "one")
    assert (code, said.count("it is not TOML")) == (0, 1)
    assert "private" not in run("diff", "one", "@", "--name-status")[1], "what was excluded stays so"


def test_with_json_the_warning_is_an_object(run: Run) -> None:
    code, out, said = run("status", "--json")
    assert (code, json.loads(out)["modified"]) == (0, ["holdfast.toml"])
    line = json.loads(said)
    assert (line["level"], line["component"]) == ("warn", "cli")
    assert "not TOML" in line["message"]


@pytest.mark.parametrize("line", ["checkpoint", "watch"])
def test_what_saves_by_the_rules_stops_and_says_how_to_go_on(run: Run, line: str) -> None:
    code, _, said = run(line)
    assert code == 2
    assert "holdfast.toml: it is not TOML" in said
    assert "hint: correct it" in said


def test_nothing_is_forgotten_by_rules_that_may_not_be_meant(run: Run, tree: Path) -> None:
    (tree / "holdfast.toml").write_text('[retention]\ndaily = "400d"\n')
    code, _, said = run("forget")
    assert code == 2
    assert "nothing is forgotten" in said
    assert "--keep-last" in said
    assert run("forget", "--dry-run")[0] == 2


def test_i5_what_the_file_excluded_is_neither_saved_nor_deleted(run: Run, tree: Path) -> None:
    for words in (["restore", "one"], ["undo"]):
        (tree / "holdfast.toml").write_text(BROKEN)
        assert run(*words)[0] == 0
        assert (tree / "private/key").read_text() == "nobody saves this"
    assert "private" not in run("log")[1] + run("diff", "two", "--name-status")[1]
    assert run("cat", "@:private/key")[0] == 3


def test_a_file_that_was_never_saved_whole_leaves_the_defaults(run: Run, tree: Path) -> None:
    assert run("restore", "one")[0] == 0  # the rescue checkpoint holds the broken file
    (tree / "holdfast.toml").write_text(BROKEN)
    assert "the last saved version applies" in run("status")[2]
    (tree / "holdfast.toml").unlink()
    assert run("checkpoint")[0] == 0
    (tree / "holdfast.toml").write_text(BROKEN)
    code, _, said = run("status")
    assert code == 0
    assert "no rules apply in its place" in said


@pytest.mark.parametrize("words", [[], ["--json"], ["-q"]])
def test_i13_what_is_logged_is_said_in_the_form_that_was_asked_for(run: Run, tree: Path, words: list[str]) -> None:
    (tree / "holdfast.toml").write_text(GOOD)
    (tree / "dir\x1b[2J").mkdir()
    (tree / "dir\x1b[2J/.gitignore").write_text("".join(f"a{number}?x\n" for number in range(1001)))
    (tree / "dir\x1b[2J/file").write_text("x")
    code, _, said = run("checkpoint", *words)
    assert code == 0
    assert "\x1b" not in said
    if words == ["--json"]:
        assert "1 ignore patterns" in json.loads(said)["message"]
    elif words:
        assert not said
    else:
        assert said.startswith("holdfast: warning: 1 ignore patterns in dir")
