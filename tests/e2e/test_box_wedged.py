"""A box that ends, or stands still, before the command in it is there: the run ends, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..waiting import has_ended, wait_until
from .isolated import need_namespaces

ROOT = Path(__file__).parents[2]
LIMIT = 60

RUNNER = """
import os, sys
from contextlib import contextmanager
from holdfast.model.errors import HoldfastError
from holdfast.supervisor.launch.sandbox_port import PreparedCommand
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.supervisor.launch.supervised_run import SupervisedCommand, supervise
class Broken:
    @contextmanager
    def prepare(self, command, *, directory, environment, keep=()):
        yield PreparedCommand([b"/bin/sh", b"-c", os.fsencode(sys.argv[3])], environment, [])
tree, log = map(os.fsencode, sys.argv[1:3])
try:
    sys.exit(supervise(SupervisedCommand([b"true"], directory=tree), KeeperSettings(root=tree, log=log), box=Broken()))
except HoldfastError as error:
    sys.exit(f"{error.code}: {error.message}")
"""
WEDGED = "trap '' TERM INT; echo $PPID $$; exec sleep 1000"


@contextmanager
def run_in_box(folder: Path, script: str) -> Generator[subprocess.Popen[str]]:
    """A run whose box is this script of the shell's."""
    (folder / "tree").mkdir()
    (folder / "log").mkdir(mode=0o700)
    words = [sys.executable, "-P", "-c", RUNNER, str(folder / "tree"), str(folder / "log"), script]
    with subprocess.Popen(
        words,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def processes_of(process: subprocess.Popen[str]) -> list[int]:
    """The parent of the tree and the box of one that is `WEDGED`, which stands still from now on."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


@pytest.mark.parametrize("script", ["exit 1", "sleep 1000 & exit 1"])
def test_a_box_that_ends_early_is_told_of(tmp_path: Path, script: str) -> None:
    """Also if another process holds what the report would have come through."""
    with run_in_box(tmp_path, script) as process:
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert said == "unsupported: the command cannot be supervised here: its box has ended\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_box_that_stands_still_can_be_ended(tmp_path: Path, number: int) -> None:
    with run_in_box(tmp_path, WEDGED) as process:
        parent, box = processes_of(process)
        process.send_signal(number)
        assert process.wait(LIMIT) == 128 + number
    assert has_ended(parent)
    assert has_ended(box)


def test_a_box_that_stands_still_ends_when_the_launcher_is_killed(tmp_path: Path) -> None:
    with run_in_box(tmp_path, WEDGED) as process:
        found = processes_of(process)
        process.kill()
        wait_until(lambda: all(map(has_ended, found)), "the end of the tree")


def test_a_variable_that_names_what_a_box_needs_hides_nothing(tmp_path: Path) -> None:
    need_namespaces()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "f").write_text("seen")
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"), "HOLDFAST_HOME": str(tmp_path / "home"), "SSH_AUTH_SOCK": "/usr",
    }  # fmt: skip
    holdfast = [sys.executable, "-P", "-m", "holdfast"]
    for words in (["init"], ["run", "--isolation", "namespace", "--", "cat", "f"]):
        done = subprocess.run(
            [*holdfast, *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert done.returncode == 0, done
    assert done.stdout == "seen"
