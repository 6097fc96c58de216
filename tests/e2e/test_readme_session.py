"""The session that the README shows happens so: every command is run, and prints what is shown there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ..waiting import wait_until

PROJECT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```console\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
CHANGING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "(time)",
    r" +(now|\d+ (s|min) ago)": " (age)",
    r"\d+ B stored, \d+ ms": "(size and time)",
    r" +\d+\.\d\d s +\d+ B ": " (seconds and size) ",
    r"   attempt .*": "(columns)",
    r" by (fanotify|inotify), process \d+": " (how)",
    r"auto-\S+Z": "(automatic label)",
    r"session-[0-9a-f]{10}": "(session)",
    # Tests beside this one begin mount namespaces, which take copies of all mounts along.
    r"holdfast: warning: .* is removed, though what was mounted there is still in use.*\n?": "",
}


def steps(blocks: list[str]) -> list[tuple[str, str]]:
    """Command lines, each with what it prints."""
    lines = re.split(r"^\$ ", "".join(blocks), flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (step.partition("\n") for step in lines)]


def settled(text: str, ids: dict[str, str]) -> str:
    """``text`` without what is another each time; ids are numbered in the order in which they appear."""
    for pattern, placeholder in CHANGING.items():
        text = re.sub(pattern, placeholder, text)
    text = re.sub(r"\b[0-9a-f]{12}\b", lambda found: ids.setdefault(found[0], f"(id {len(ids) + 1})"), text)
    return text.rstrip()


def check(shown_steps: list[tuple[str, str]], root: Path, tmp_path: Path) -> None:
    """Run every command in ``root``; it has to print what is shown."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, words in (("holdfast", "-m holdfast"), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (bin_ / name).chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "LC_ALL": "C.UTF-8",
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=root, env=environ, capture_output=True, text=True, check=False, timeout=60
        )

    shown: dict[str, str] = {}
    happened: dict[str, str] = {}
    for command, output in shown_steps:
        if command.startswith("sleep "):  # however long it takes, until the watcher has saved
            wait_until(lambda: "auto" in run("holdfast log -n 1").stdout)
            continue
        done = run(command)
        assert done.returncode == 0, (command, done)
        printed = (done.stdout + done.stderr).replace(str(tmp_path), "/home/you")
        assert settled(printed, happened) == settled(output, shown), command


def test_the_session_of_the_readme_is_what_happens(tmp_path: Path) -> None:
    root = tmp_path / "shop"
    (root / "src").mkdir(parents=True)
    (root / "src/cart.py").write_text("def total(items):\n    return sum(item.price for item in items)\n")
    (root / "README.md").write_text("# Shop\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "debug.log").write_text("started\n")
    shown = steps([block for block in BLOCKS if "experiment" not in block])
    assert len(shown) > 15
    check(shown, root, tmp_path)


def test_the_picture_of_the_readme_is_what_happens() -> None:
    done = subprocess.run(
        [sys.executable, "docs/timeline.py", "--check"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done


def test_the_experiment_of_the_readme_comes_out_so(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "examples" / "anagrams", tmp_path / "anagrams", ignore=shutil.ignore_patterns("__*"))
    (block,) = [block for block in BLOCKS if "experiment" in block]
    check(steps([block]), tmp_path / "anagrams", tmp_path)
