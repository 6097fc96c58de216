"""What docs/reference/stdio.md shows happens so, and the small client of it works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from . import stdio_session
from .frontend import ROOT

SHOWN = re.findall(r"^```\n(→.*?)^```$", (ROOT / "docs/reference/stdio.md").read_text(), re.MULTILINE | re.DOTALL)


def batches(session: str) -> list[list[str]]:
    """Each request with what comes before the next, the order of which is nobody's promise."""
    found = re.split(r"^(?=→)", session, flags=re.MULTILINE)[1:]
    return [sorted(stdio_session.settled(batch).splitlines()) for batch in found]


def test_the_session_of_the_page_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    (shown,) = SHOWN
    happened = "".join(f"{line}\n" for line in stdio_session.record(tmp_path))
    for one, other in zip(batches(shown), batches(happened), strict=True):
        assert one == other


@pytest.mark.parametrize("answers", [("n", "y"), ("y", "n")])
def test_the_small_client(tree: Path, tmp_path: Path, answers: tuple[str, str]) -> None:
    for number in range(60):
        (tree / str(number)).write_text("1")
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOLDFAST_HOME": str(tmp_path / "home"),
    }

    def run(command: str, said: str) -> str:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(ROOT / "examples/stdio_client.py"), command],
            input=said,
            capture_output=True,
            text=True,
            cwd=tree,
            env=os.environ | variables,
            timeout=120,
            check=True,
        )
        return done.stdout

    said = run("echo going; rm *; exit 0", "\n".join(answers) + "\n")
    assert said.startswith("going\n")
    assert "is about to delete its file number 50" in said
    if answers[0] == "n":
        assert "denied" in said
        assert len(os.listdir(tree)) == 60
    else:
        assert "60 paths changed" in said
        assert os.listdir(tree) == []
    said = run("touch new", "y\n")
    assert "exit code 0, 1 paths changed" in said
    assert "taken back: step " in said
    assert "new" not in os.listdir(tree)
