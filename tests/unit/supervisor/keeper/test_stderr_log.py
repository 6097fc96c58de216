"""The keeper's log is lines of JSON, goes on in a new file when it has grown, and has an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from holdfast.model.log import Log
from holdfast.supervisor.keeper.stderr_log import log_to_stderr, open_log
directory = os.fsencode(sys.argv[1])
os.dup2(open_log(directory), 2)
log_to_stderr(directory, sys.argv[2])
log = Log("holdfast.supervisor.keeper.keeper")
for number in range(int(sys.argv[3])):
    log.info("x" * 9000, number=number)
    log.warning("y" * 1000, number=number)
os.write(2, b"the interpreter's own last words\\n")
"""


def keep(directory: Path, level: str, times: int) -> None:
    words = [sys.executable, "-c", SCRIPT, str(directory), level, str(times)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize(("level", "levels"), [("warn", ["warn"]), ("info", ["info", "warn"])])
def test_what_is_asked_for_is_kept(tmp_path: Path, level: str, levels: list[str]) -> None:
    keep(tmp_path, level, 1)
    *records, last = lines(tmp_path / "keeper.log")
    assert [json.loads(line)["level"] for line in records] == levels
    assert last == "the interpreter's own last words"
    assert os.stat(tmp_path / "keeper.log").st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["keeper.log"]


def test_it_is_begun_anew_and_the_one_before_is_kept(tmp_path: Path) -> None:
    keep(tmp_path, "info", 300)
    assert sorted(os.listdir(tmp_path)) == ["keeper.log", "keeper.log.1"]
    older, newer = lines(tmp_path / "keeper.log.1"), lines(tmp_path / "keeper.log")
    assert newer.pop() == "the interpreter's own last words"
    numbers = [json.loads(line)["number"] for line in older + newer]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 299
    assert all((tmp_path / name).stat().st_size < 1_100_000 for name in os.listdir(tmp_path))


def test_without_a_place_for_the_old_one_it_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "keeper.log.1").mkdir()
    keep(tmp_path, "info", 300)
    assert (tmp_path / "keeper.log").stat().st_size < 1_100_000
