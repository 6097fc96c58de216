"""What a caller relies on: places in the command, programs of the user, the environment, real scripts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from holdfast.engine.safety.classes import levels_of
from holdfast.engine.safety.classify import classify, examine
from holdfast.engine.safety.parse import MAX_BYTES
from holdfast.engine.safety.places import VERDICTS, Kind
from holdfast.engine.safety.programs import PROGRAMS
from holdfast.engine.safety.tools import TOOLS
from holdfast.model.config import Settings
from holdfast.model.errors import UsageError
from holdfast.model.session import LEVELS, Level
from holdfast.model.values import parse_value

PROJECT = Path(__file__).parents[4]
DOCUMENT = (PROJECT / "docs" / "guide/safety.md").read_text()
ROOT = b"/home/ann/project"
ENV = {"HOME": "/home/ann", "PATH": "/bin"}


def level(command: str, programs: dict[str, Level] | None = None, **env: str) -> Level:
    return examine(command, cwd=ROOT, root=ROOT, env={**ENV, **env}, programs=programs or {}).level


def test_a_reason_says_what_where_and_who() -> None:
    command = "echo 'über' && rm -rf 'größe/alt' | sudo tee b"
    safety = classify(command, cwd=ROOT, root=ROOT, env=ENV)
    shown = [(one.program, command[one.start : one.end]) for one in safety.reasons]
    assert shown == [("rm", "'größe/alt'"), ("sudo", "sudo tee b"), ("tee", "b")]
    assert [one.level for one in safety.reasons] == ["risky", "dangerous", "changes"]
    assert [one.reversible for one in safety.reasons] == [False, False, True]


def test_what_is_in_a_script_is_shown_where_the_script_is() -> None:
    command = "ls; bash -c 'cd src; bash -c \"rm a\"'"
    safety = classify(command, cwd=ROOT, root=ROOT, env=ENV)
    assert [command[one.start : one.end] for one in safety.reasons] == ["'cd src; bash -c \"rm a\"'"]


def test_variables_come_from_the_environment() -> None:
    assert level('rm "$OUT/a"', OUT="src") == "changes"
    assert level('rm -r "$OUT"', OUT="/") == "dangerous"
    assert level('rm "$OUT"', OUT="x" * 5000) == "risky"
    assert level("rm -r $OUT", OUT="a / b") == "dangerous"
    assert level('rm -r "$OUT"', OUT="a / b") == "risky"
    assert level("rm -rf ~/x", HOME="/home/ann/project/home") == "risky"


def test_a_relative_path_for_programs_is_one_in_the_workspace() -> None:
    assert level("ls", PATH="/bin:.") == "unknown"
    assert level("ls", PATH="/bin:") == "unknown"
    assert level("echo a", PATH="/bin:.") == "safe"


def test_where_it_runs_decides_what_a_name_means() -> None:
    for cwd, expected in ((b"/home/ann/project/src", "changes"), (b"/home/ann", "risky"), (b"/etc", "dangerous")):
        assert examine("rm a", cwd=cwd, root=ROOT, env=ENV).level == expected
    assert examine("rm -r ../..", cwd=ROOT + b"/a/b/c", root=ROOT, env=ENV).level == "risky"
    assert examine("rm -r ../../../..", cwd=ROOT + b"/a/b/c", root=ROOT, env=ENV).level == "dangerous"
    # A workspace in a temporary directory is a workspace all the same.
    assert examine("rm a", cwd=b"/tmp/w", root=b"/tmp/w", env=ENV).level == "changes"
    assert examine("rm a\udcff", cwd=b"/w/\xff", root=b"/w/\xff", env=ENV).level == "changes"


def test_programs_of_the_user_go_before_what_is_known() -> None:
    programs = levels_of(["frobnicate=safe", "ls=dangerous", "./gradlew=changes", "rm=risky", "rm=safe"])
    assert level("frobnicate --all", programs) == "safe"
    assert level("ls", programs) == "dangerous"
    assert level("./gradlew build", programs) == "changes"
    assert level("rm -rf /", programs) == "safe"
    assert level("sh -c 'frobnicate; ls'", programs) == "dangerous"
    assert level("frobnicate > /etc/passwd", programs) == "dangerous"


@pytest.mark.parametrize("entry", ["frobnicate", "=safe", "a=harmless", "", "a=", "a=SAFE"])
def test_what_says_nothing_of_a_program_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="says of no program"):
        levels_of([entry])
    with pytest.raises(ValueError, match="does not match"):
        parse_value("safety.programs", ["ls=safe", entry])


def test_the_configuration_takes_what_is_understood() -> None:
    entries = tuple(f"program{number}={one}" for number, one in enumerate(LEVELS))
    assert parse_value("safety.programs", list(entries)) == entries
    assert list(levels_of(entries).values()) == list(LEVELS)
    assert Settings().safety.programs == ()


def test_the_limit_of_length_is_exact() -> None:
    fits = "ls #" + "x" * (MAX_BYTES - 4)
    assert level(fits) == "safe"
    assert level(fits + "x") == "unknown"


def test_every_kind_of_place_has_a_meaning() -> None:
    assert set(VERDICTS) == set(get_args(Kind))
    for verdicts in VERDICTS.values():
        for verdict in verdicts:
            assert verdict.reversible == (verdict.level in ("safe", "changes"))


def test_every_level_is_used_and_documented() -> None:
    section = DOCUMENT.split("## Levels")[1].split("## What")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(LEVELS)
    for tool in TOOLS.values():
        assert all(does.level in LEVELS for does in (*tool.commands.values(), tool.bare))


def test_programs_that_the_document_names_are_known() -> None:
    table = DOCUMENT.split("## Programs")[1].split("The tables are")[0]
    columns = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    names = {text.split()[0] for column in columns for text in re.findall(r"`([^`]+)`", column)}
    unknown = {name for name in names if name not in PROGRAMS} - {"log", "diff", "show", "…"}
    # The commands of git stand there as well, without its name.
    assert unknown <= {"commit", "fetch", "merge", "checkout", "reset", "clean", "stash", "push", "-T", "-X"}


def test_the_example_of_the_document_is_so() -> None:
    safety = classify(
        "cd build && rm -rf *", cwd=b"/home/ann/project", root=b"/home/ann/project", env={"HOME": "/home/ann"}
    )
    assert (safety.level, safety.reversible) == ("risky", False)
    reason = safety.reasons[0]
    assert reason.text.startswith("removes *: such files are usually ignored, ")
    assert (reason.program, reason.start, reason.end) == ("rm", 19, 20)


SCRIPTS = Path(__file__).parent / "scripts"
LEVELS_OF_SCRIPTS = {
    "build": "risky",
    "install": "dangerous",
    "report": "unknown",
    "checks": "safe",
    "release": "dangerous",
    "clean": "changes",
}


@pytest.mark.parametrize("name", LEVELS_OF_SCRIPTS)
def test_whole_scripts_have_the_level_of_their_worst_line(name: str) -> None:
    text = (SCRIPTS / f"{name}.sh").read_text()
    assert level(text) == LEVELS_OF_SCRIPTS[name], examine(text, cwd=ROOT, root=ROOT, env=ENV)


def test_scripts_of_this_project_and_machine_get_an_answer() -> None:
    folders = ("/etc/init.d", "/etc/profile.d", "/usr/lib/git-core", "/usr/share/bash-completion/completions")
    there = [Path(folder) for folder in folders if Path(folder).is_dir()]
    found = [path for folder in there for path in sorted(folder.iterdir()) if path.is_file()]
    texts = [path.read_bytes()[:60_000].decode("utf-8", "surrogateescape") for path in found[:60]]
    texts += [path.read_text() for path in SCRIPTS.iterdir()]
    for text in texts:
        assert examine(text, cwd=ROOT, root=ROOT, env=ENV).level in LEVELS


def test_nobody_loads_the_parser_who_does_not_ask() -> None:
    code = (
        "import sys, holdfast.engine.safety.classify, holdfast.engine.workspace.workspace\n"
        "assert not any('tree_sitter' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
