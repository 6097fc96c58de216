"""A command scans a large tree while it loads itself: what it finds is right whatever happens in between."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.files.scan.parallel_scan import MIN_FILES
from holdfast.model.ids import hash_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.conftest import Cli

REPORTING = """
import sys
from holdfast.files.scan import parallel_scan, scanner
real_adopt, real_start = parallel_scan.adopt_early, parallel_scan.start_early
def adopt_early(*arguments):
    found = real_adopt(*arguments)
    sys.stderr.write("adopted\\n" if found is not None else "alone\\n")
    return found
def start_early(*arguments):
    real_start(*arguments)
    sys.stderr.write("started\\n")
scanner.adopt_early, parallel_scan.start_early = adopt_early, start_early
from holdfast.cli.main import run
run()
"""


@pytest.fixture
def large(cli: Cli) -> Cli:
    """A workspace large enough, saved, with nothing racy in it."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors, as a second process does")
    for number in range(MIN_FILES + 100):
        cli.write(f"d{number // 50}/f{number}", str(number))
    cli.process("checkpoint")
    cli.process("checkpoint")
    return cli


def reported(cli: Cli, *words: str, code: int = 0) -> str:
    """What such a command reports of its early scan."""
    done = subprocess.run(
        [sys.executable, "-c", REPORTING, *words], cwd=cli.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def places(cli: Cli) -> dict[str, str]:
    """The home's notes of where workspaces are."""
    return {path.name: os.readlink(path) for path in (cli.home / "places").iterdir()}


def used(cli: Cli, *words: str) -> None:
    """Run a command until it has adopted its early scan, which may not have begun in time on a busy machine."""
    for _ in range(20):
        if "adopted" in reported(cli, *words):
            return
    pytest.fail("no early scan was adopted")


def test_the_home_notes_where_large_workspaces_are(large: Cli) -> None:
    name = hash_bytes(bytes(large.root)).hex()
    assert places(large) == {name: large.json("init")["workspace"]}


@pytest.mark.parametrize("words", [["checkpoint"], ["status"], ["diff"], ["restore", "@"]])
def test_what_an_early_scan_has_found_is_used(large: Cli, words: list[str]) -> None:
    used(large, *words)


def test_every_change_is_found(large: Cli) -> None:
    for round_ in range(5):
        large.write(f"d{round_}/f{round_ * 50}", "edited")
        (large.root / f"d{round_}/f{round_ * 50 + 1}").unlink()
        large.write(f"new{round_}/file", "new")
        reported(large, "checkpoint")
        assert large.json("show")["changes"] == {"added": 1, "modified": 1, "deleted": 1}
    reported(large, "restore", "@-5")
    assert large.json("status")["clean"]
    assert large.tree()["d0/f0"] == b"0"


def test_a_wrong_note_costs_nothing_but_time(large: Cli, tmp_path: Path) -> None:
    name = hash_bytes(bytes(large.root)).hex()
    link = large.home / "places" / name
    for target in ("0123456789abcdef", "../workspaces", "", "x" * 200):
        link.unlink()
        if target:
            link.symlink_to(target)
        large.write("d1/f50", target)
        reported(large, "checkpoint")
        assert large.json("show")["changes"]["modified"] == 1
        assert places(large)[name] == large.json("init")["workspace"], "it is mended"
    other = large.json("fork", "@", str(tmp_path / "other"))["workspace"]
    link.unlink()
    link.symlink_to(other)
    large.write("d1/f50", "again")
    reported(large, "checkpoint")
    assert large.json("show")["changes"]["modified"] == 1


def test_an_index_of_terabytes_starts_no_early_scan(large: Cli) -> None:
    index = large.home / "workspaces" / large.json("init")["workspace"] / "index"
    index.unlink()
    index.touch()
    try:
        os.truncate(index, 15 << 40)
    except OSError:
        pytest.skip("the file system has no such files")
    large.write("d1/f50", "edited")
    reported(large, "checkpoint")
    assert large.json("show")["changes"] == {"added": 0, "modified": 1, "deleted": 0}


def test_no_early_scan_is_started_beside_a_watcher(large: Cli) -> None:
    assert "started" in reported(large, "checkpoint")
    large.process("watch", "--detach", "--yes")
    try:
        assert "started" not in reported(large, "checkpoint")
    finally:
        large.process("watch", "--stop")


def test_an_undo_that_was_cut_short_is_finished_before_anything_is_believed(large: Cli) -> None:
    """The same process changes what is rolled back on the way, behind the back of its early scan."""
    large.process("run", "--", "sh", "-c", "echo supervised > d3/f150; rm d4/f200")
    large.write("d5/f250", "unsaved")
    assert "adopted" not in reported(large, "undo")
    assert large.tree()["d5/f250"] == b"250"
    reported(large, "undo", "--run")
    assert large.tree()["d3/f150"] == b"150"
    assert large.tree()["d4/f200"] == b"200"
    assert large.json("status")["clean"]
