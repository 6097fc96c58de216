"""The session that the README shows happens so: every command is run, and prints what is shown there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
SESSION = "".join(re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
STEPS = [step.partition("\n")[::2] for step in re.split(r"^\$ ", SESSION, flags=re.MULTILINE)[1:]]
CHANGING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "(time)",
    r"\d+ B stored, \d+ ms": "(size and time)",
}


def settled(text: str, ids: dict[str, str]) -> str:
    """``text`` without what is another each time; ids are numbered in the order in which they appear."""
    for pattern, placeholder in CHANGING.items():
        text = re.sub(pattern, placeholder, text)
    text = re.sub(r"\b[0-9a-f]{12}\b", lambda found: ids.setdefault(found[0], f"(id {len(ids) + 1})"), text)
    return text.rstrip()


def test_the_session_of_the_readme_is_what_happens(tmp_path: Path) -> None:
    root = tmp_path / "shop"
    (root / "src").mkdir(parents=True)
    (root / "src/cart.py").write_text("def total(items):\n    return sum(item.price for item in items)\n")
    (root / "README.md").write_text("# Shop\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "debug.log").write_text("started\n")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "holdfast").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m holdfast "$@"\n')
    (bin_ / "holdfast").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "LC_ALL": "C.UTF-8",
    }
    shown: dict[str, str] = {}
    happened: dict[str, str] = {}
    for command, output in STEPS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=root, env=environ, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (command, done)
        printed = (done.stdout + done.stderr).replace(str(tmp_path), "/home/you")
        assert settled(printed, happened) == settled(output, shown), command
    assert len(STEPS) > 15
