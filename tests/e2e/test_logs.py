"""I13: the log of whole commands, and of the keeper that works for them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECRET = "what is in the file is nobody's business"


class Place:
    """A workspace and its home, and commands that are run as processes of their own."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self.home = base / "home"
        self.tree.mkdir()
        (self.tree / "a").write_text(SECRET)
        self.run("init")

    def run(self, *words: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_HOME": str(self.home)}
        words = (sys.executable, "-P", "-m", "holdfast", *words)
        done = subprocess.run(words, cwd=self.tree, env=environment, text=True, timeout=100, check=False, **options)
        assert done.returncode == code, done
        return done

    def notes(self) -> list[dict[str, Any]]:
        (path,) = self.home.glob("workspaces/*/undo/keeper.log")
        return parsed(path.read_text())


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def parsed(text: str) -> list[dict[str, Any]]:
    """Every line is an object with the fields of a record."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert list(line)[:4] == ["timestamp", "level", "component", "message"], line
    return lines


def said(lines: list[dict[str, Any]], component: str) -> list[str]:
    return [line["message"] for line in lines if line["component"] == component]


def test_the_keeper_tells_what_it_does_without_the_content_of_files(place: Place) -> None:
    place.run("--log-level", "trace", "run", "--", "sh", "-c", f"echo '{SECRET[:20]}' > b; rm a b")
    lines = place.notes()
    assert said(lines, "fs_backend")[0] == "keeper started"
    assert said(lines, "fs_backend")[-1] == "keeper ended"
    assert {"preimage captured", "step committed"} <= set(said(lines, "undo"))
    kept = next(line for line in lines if line["message"] == "preimage captured")
    assert (kept["level"], kept["path"], kept["step_id"]) == ("debug", "a", kept["step_id"])
    assert {line["call"] for line in lines if line["message"] == "call"} >= {"openat", "unlinkat"}
    assert {line["level"] for line in lines if "bytes" in line} == {"trace"}
    assert SECRET not in json.dumps(lines)
    for line in lines:
        assert SECRET.encode().hex(" ") not in str(line.get("bytes"))


def test_the_keeper_is_silent_unless_something_is_wrong(place: Place) -> None:
    place.run("-q", "run", "--", "sh", "-c", "rm a")
    assert place.notes() == []


def test_safeguards_are_told_of(place: Place) -> None:
    (place.home / "config.toml").write_text("[safeguard]\ndeletes = 1\ntimeout = 1\n")
    place.run("--log-level", "info", "run", "--", "sh", "-c", "rm a || true", code=0)
    told = [line for line in place.notes() if line["component"] == "safeguard"]
    assert [line["level"] for line in told] == ["info", "warn", "info"]
    assert [line["message"].split(":")[0] for line in told] == [
        "safeguard triggered",
        "it was denied, because no answer came in time",
        "safeguard denied",
    ]
    assert len({(line["ticket"], line["step_id"]) for line in told}) == 1


def test_an_undo_is_told_of_on_standard_error(place: Place) -> None:
    place.run("run", "--", "sh", "-c", "rm a")
    lines = parsed(place.run("--log-level", "info", "undo").stderr)
    assert next(line for line in lines if line["message"] == "rollback executed")["steps"] == [1]


def test_at_a_terminal_it_is_readable_and_elsewhere_only_who_asks_gets_objects(place: Place) -> None:
    (place.tree / "holdfast.toml").write_text("not [TOML")
    ours, its = pty.openpty()
    place.run("--log-level", "warn", "status", stderr=its)
    os.close(its)
    assert os.read(ours, 10_000).startswith(b"holdfast: warning: ")
    os.close(ours)
    assert place.run("status").stderr.startswith("holdfast: warning: ")
    assert [line["level"] for line in parsed(place.run("status", "--log-level=warn").stderr)] == ["warn"]
    assert place.run("--log-level", "error", "status").stderr == ""
