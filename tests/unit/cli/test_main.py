"""Taking a command line apart, and what becomes of failures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.cli import command_table, early_scan
from holdfast.cli.argparse_parser import build_parser
from holdfast.cli.command import Command, parse
from holdfast.cli.console import relative_to_root
from holdfast.cli.global_options import LINE, CommandLine, split_options
from holdfast.cli.main import main
from holdfast.files.scan import parallel_scan
from holdfast.model.errors import (
    HoldfastError,
    IntegrityError,
    LockedError,
    NotFoundError,
    RefusedError,
    UsageError,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], CommandLine(None, [])),
        (["status"], CommandLine("status", [])),
        (["--json", "status", "-q"], CommandLine("status", ["--json", "-q"])),
        (
            ["-w", "d", "--home=h", "-qv", "log", "-n", "3"],
            CommandLine("log", ["-w", "d", "--home=h", "-qv", "-n", "3"]),
        ),
        (["-wd", "log"], CommandLine("log", ["-wd"])),
        (["--home", "log", "undo"], CommandLine("undo", ["--home", "log"])),
        (["-q", "--help", "log"], CommandLine("--help", ["-q"])),
        (["--version"], CommandLine("--version", [])),
        (["log", "--help"], CommandLine("log", ["--help"])),
    ],
)
def test_the_command_is_found_among_global_options(words: list[str], line: CommandLine) -> None:
    assert split_options(words) == line


@pytest.mark.parametrize("words", [["--frob", "log"], ["-x"], ["--home"], ["-w"]])
def test_what_is_no_global_option_is_refused_in_front_of_the_command(words: list[str]) -> None:
    with pytest.raises(UsageError):
        split_options(words)


@pytest.mark.parametrize("name", command_table.every())
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.startswith(f"usage: holdfast {name}")
    assert "examples:\n  " in out
    assert LINE in out.splitlines()
    assert argparse.SUPPRESS not in out
    own = command_table.every()[name].exits
    assert ("exit codes of its own:\n" in out) == bool(own)
    assert all(f"\n  {code}  {meaning}" in out for code, meaning in own)
    for action in build_parser(name, command_table.every()[name])._actions:
        assert action.help, f"{action.dest} is not explained"


@pytest.mark.parametrize("name", command_table.every())
def test_the_examples_of_every_command_can_be_parsed(name: str) -> None:
    import shlex

    command = command_table.every()[name]
    for line, _ in command.examples:
        for part in line.replace('eval "$(', "").replace(')"', "").replace("|", "&&").split("&&"):
            words = shlex.split(part.split(">")[0])
            if words[:1] != ["holdfast"]:
                continue
            found = split_options(words[1:])
            assert found.command is not None
            meant = command_table.ALIASES.get(found.command, found.command)
            assert parse(meant, command_table.load(meant), found.arguments) is not None


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["-h"]) == 0
    out, err = capsys.readouterr()
    assert all(f"\n  {name} " in out for name in command_table.names())
    assert not err
    assert main([]) == 2
    assert "usage: holdfast" in capsys.readouterr().err


def test_paths_behind_dashes_are_kept_apart() -> None:
    command = command_table.load("diff")
    parsed = parse("diff", command, ["@", "--stat", "--", "--stat", "a", "--"])
    assert parsed is not None
    assert (parsed.names, parsed.stat, parsed.paths) == (["@"], True, ["--stat", "a", "--"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chekpoint"], "did you mean `holdfast checkpoint`?"),
        (["\x1b[2J"], "there is no command '\\x1b[2J'"),
        (["log", "-n", "0"], "not a whole number from 1"),
        (["restore"], "needs the name of a checkpoint"),
        (["restore", "--continue", "@"], "stand alone"),
        (["restore", "--continue", "--abort"], "not allowed with"),
        (["diff", "a", "b", "c"], "at most two checkpoints"),
        (["diff", "--stat", "--name-status"], "not allowed with"),
        (["forget", "--keep-last", "1", "abcd"], "either name checkpoints"),
        (["completion", "csh"], "invalid choice"),
        (["checkpoint", "-m", "\udcff"], "not valid UTF-8"),
        (["status", "--jso"], "unrecognized arguments"),
        (["log", "src"], "holdfast log -- src"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_message(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert expected in err
    assert err.startswith("holdfast: ")
    assert "Traceback" not in err


def test_wrong_usage_is_a_json_object_when_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "--frob", "--json"]) == 2
    out, err = capsys.readouterr()
    assert not out
    error = json.loads(err)["error"]
    assert sorted(error) == ["code", "hint", "message"]
    assert error["code"] == "usage"


def _raising(error: BaseException) -> Command:
    def run(_console: object, _arguments: argparse.Namespace) -> int:
        raise error

    return Command("It fails.", lambda _parser: None, run, (("holdfast status", "fails"),))


@pytest.fixture(name="fails_with")
def _fails_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    def arrange(error: BaseException) -> None:
        monkeypatch.setattr(command_table, "load", lambda _name: _raising(error))

    return arrange


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HoldfastError("x"), 1),
        (UsageError("x"), 2),
        (NotFoundError("x"), 3),
        (RefusedError("x"), 4),
        (LockedError("x"), 4),
        (IntegrityError("x"), 5),
        (OSError(28, "No space left on device", "/f"), 1),
        (MemoryError(), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_failure_has_its_exit_code_and_no_traceback(
    error: BaseException, code: int, fails_with: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(error)
    assert main(["status"]) == code
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("holdfast: ")
    assert "Traceback" not in err


def test_messages_and_hints_reach_people_without_control_characters(
    fails_with: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(RefusedError("a\x1b[2J", hint="b\x9bc"))
    assert main(["status"]) == 4
    assert capsys.readouterr().err == "holdfast: a\\x1b[2J\n  hint: b\\xc2\\x9bc\n"


def test_failures_are_json_objects_on_standard_error(
    fails_with: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(LockedError("held", hint="wait"))
    assert main(["--json", "status"]) == 4
    out, err = capsys.readouterr()
    assert not out
    assert json.loads(err) == {"error": {"code": "locked", "message": "held", "hint": "wait"}}


def test_a_bug_shows_its_traceback_only_with_v(
    fails_with: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(ZeroDivisionError("oops"))
    assert main(["status"]) == 1
    assert "this is a bug: ZeroDivisionError: oops" in capsys.readouterr().err
    assert main(["-v", "status"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "current", "expected"),
    [
        (b"a", b"/w", b"a"),
        (b"a", b"/w/sub", b"sub/a"),
        (b"../a", b"/w/sub", b"a"),
        (b".", b"/w", b""),
        (b"..", b"/w/sub", b""),
        (b"/w/x/y", b"/elsewhere", b"x/y"),
        (b"a", b"/elsewhere", b"a"),
        (b"a", b"/wide", b"a"),
        (b"x\xff", b"/w", b"x\xff"),
    ],
)
def test_paths_are_relative_to_the_current_directory_if_that_is_inside(
    path: bytes, current: bytes, expected: bytes
) -> None:
    assert relative_to_root(b"/w", path, current) == expected


@pytest.mark.parametrize("path", [b"../a", b"/etc/passwd", b"/wide"])
def test_paths_outside_the_workspace_are_refused(path: bytes) -> None:
    with pytest.raises(UsageError, match="outside the workspace"):
        relative_to_root(b"/w", path, b"/w")


@pytest.mark.parametrize(("words", "times"), [("status", 1), ("undo", 1), ("log", 0)])
def test_what_a_command_began_ends_with_it_also_if_it_fails(
    words: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(early_scan, "start", lambda *_: told.append("started"))
    monkeypatch.setattr(parallel_scan, "end_early", lambda: told.append("ended"))
    assert main(["-w", str(tmp_path), "--home", str(tmp_path / "home"), words]) == NotFoundError.exit_code
    assert told == ["started", "ended"] * times


def test_a_second_interrupt_while_the_first_is_told_of_shows_no_traceback() -> None:
    code = (
        "from holdfast.cli import main\n"
        "def interrupted(_): raise KeyboardInterrupt\n"
        "main._guarded = main._wants = interrupted\n"
        "main.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
