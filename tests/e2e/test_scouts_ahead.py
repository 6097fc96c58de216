"""A command looks at a large tree while it loads itself: what it finds is right whatever happens in between."""

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

TOLD = """
import sys
from holdfast.files.scan import scanner
from holdfast.files.scan import parallel_scan
real, real_send = parallel_scan.take_over, parallel_scan.send_ahead
def take_over(*arguments):
    found = real(*arguments)
    sys.stderr.write("taken over\\n" if found is not None else "alone\\n")
    return found
def send_ahead(*arguments):
    real_send(*arguments)
    sys.stderr.write("sent\\n")
scanner.take_over, parallel_scan.send_ahead = take_over, send_ahead
from holdfast.cli.main import run
run()
"""


@pytest.fixture
def large(cli: Cli) -> Cli:
    """A workspace large enough, saved, with nothing racy in it."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors, as a scout does")
    for number in range(MIN_FILES + 100):
        cli.write(f"d{number // 50}/f{number}", str(number))
    cli.process("checkpoint")
    cli.process("checkpoint")
    return cli


def told(cli: Cli, *words: str, code: int = 0) -> str:
    """What is said of scouts by such a command."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD, *words], cwd=cli.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def places(cli: Cli) -> dict[str, str]:
    """The home's notes of where workspaces are."""
    return {path.name: os.readlink(path) for path in (cli.home / "places").iterdir()}


def used(cli: Cli, *words: str) -> None:
    """Run a command until it has taken its scout over: on a busy machine that may not have begun in time."""
    for _ in range(20):
        if "taken over" in told(cli, *words):
            return
    pytest.fail("no scout was taken over")


def test_the_home_notes_where_large_workspaces_are(large: Cli) -> None:
    name = hash_bytes(bytes(large.root)).hex()
    assert places(large) == {name: large.json("init")["workspace"]}


@pytest.mark.parametrize("words", [["checkpoint"], ["status"], ["diff"], ["restore", "@"]])
def test_what_a_scout_ahead_has_seen_is_used(large: Cli, words: list[str]) -> None:
    used(large, *words)


def test_every_change_is_found(large: Cli) -> None:
    for round_ in range(5):
        large.write(f"d{round_}/f{round_ * 50}", "edited")
        (large.root / f"d{round_}/f{round_ * 50 + 1}").unlink()
        large.write(f"new{round_}/file", "new")
        told(large, "checkpoint")
        assert large.json("show")["changes"] == {"added": 1, "modified": 1, "deleted": 1}
    told(large, "restore", "@-5")
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
        told(large, "checkpoint")
        assert large.json("show")["changes"]["modified"] == 1
        assert places(large)[name] == large.json("init")["workspace"], "it is mended"
    other = large.json("fork", "@", str(tmp_path / "other"))["workspace"]
    link.unlink()
    link.symlink_to(other)
    large.write("d1/f50", "again")
    told(large, "checkpoint")
    assert large.json("show")["changes"]["modified"] == 1


def test_an_index_of_terabytes_sends_nobody(large: Cli) -> None:
    index = large.home / "workspaces" / large.json("init")["workspace"] / "index"
    index.unlink()
    index.touch()
    try:
        os.truncate(index, 15 << 40)
    except OSError:
        pytest.skip("the file system has no such files")
    large.write("d1/f50", "edited")
    told(large, "checkpoint")
    assert large.json("show")["changes"] == {"added": 0, "modified": 1, "deleted": 0}


def test_nobody_is_sent_ahead_beside_a_watcher(large: Cli) -> None:
    assert "sent" in told(large, "checkpoint")
    large.process("watch", "--detach", "--yes")
    try:
        assert "sent" not in told(large, "checkpoint")
    finally:
        large.process("watch", "--stop")


def test_an_undo_that_was_cut_short_is_finished_before_anything_is_believed(large: Cli) -> None:
    """What is rolled back on the way is changed by the same process, behind a scout that is ahead."""
    large.process("run", "--", "sh", "-c", "echo supervised > d3/f150; rm d4/f200")
    large.write("d5/f250", "unsaved")
    assert "taken over" not in told(large, "undo")
    assert large.tree()["d5/f250"] == b"250"
    told(large, "undo", "--run")
    assert large.tree()["d3/f150"] == b"150"
    assert large.tree()["d4/f200"] == b"200"
    assert large.json("status")["clean"]
