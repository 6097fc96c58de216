"""Runs where the keeper may not look into their processes by itself, as Yama has it on many desktops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.processes.process_tree import descendants
from holdfast.testing.tree_state import differences, photograph
from holdfast.testing.yama_stub import keepers_that_see_nothing

from ..waiting import stop, wait_until

if TYPE_CHECKING:
    from e2e.conftest import Cli

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_REALLY = _SCOPE.exists() and _SCOPE.read_text().strip() == "1" and os.geteuid() != 0

_EVERYTHING = """
import os, pathlib, shutil, socket, subprocess, threading
assert open("large").read(1) == "0"
with open("large", "r+") as file:  # large enough to be captured on a thread of its own
    file.write("1")
os.truncate("small", 1)
os.rename("small", "renamed")
os.setxattr("renamed", "user.name", b"value" * 500)
os.utime("renamed", (1, 2))
os.chmod("renamed", 0o600)
os.symlink("x" * 3000, "link")
os.link("large", "other")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("node")
os.makedirs("deep/" + "d" * 200 + "/" + "e" * 200)
shutil.rmtree("directory")
threads = [threading.Thread(target=lambda n=n: pathlib.Path(f"of {n}").write_text("")) for n in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
# Whoever loses its parent is still below the parent of the tree, and who shares memory until it executes as well.
subprocess.run(["sh", "-c", "(until [ -e go ]; do :; done; echo orphan > orphan) &"], check=True)
pathlib.Path("go").touch()
while not os.path.exists("orphan"): pass
os.spawnlp(os.P_WAIT, "touch", "touch", "spawned")
print(sorted(os.listdir(".")))
"""


@pytest.fixture(name="place", params=["stand-in", "Yama"])
def _place(cli: Cli, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A workspace in which nothing can be read of a process but by its ancestors."""
    if request.param == "stand-in":
        path = os.pathsep.join((str(Path(__file__).parents[2] / "src"), keepers_that_see_nothing(cli.root.parent)))
        monkeypatch.setenv("PYTHONPATH", path)
    elif not _REALLY:
        pytest.skip("needs kernel.yama.ptrace_scope to be 1, and an ordinary user")
    cli.write("small", "content")
    cli.write("large", "0" * (2 << 20))
    cli.write("directory/in/it", "content")
    return cli


def test_all_kinds_of_arguments_are_read_and_what_they_do_is_taken_back(place: Cli) -> None:
    before = photograph(place.root)
    done = place.process("run", "--", sys.executable, "-c", _EVERYTHING)
    assert b"'orphan'" in done.stdout
    assert b"'spawned'" in done.stdout
    assert differences(before, photograph(place.root))
    place("undo", "--run")
    assert differences(before, photograph(place.root)) == []


def test_a_run_whose_parent_is_stopped_holds_no_other_one_up(place: Cli) -> None:
    script = "echo loaded; until [ -e go ]; do :; done; touch mine"
    waiting: subprocess.Popen[Any] = place.start("run", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"loaded\n"  # (Its loader, too, opens by way of the parent.)
    (parent,) = _of(waiting, b"holdfast.supervisor.launch.tree_parent")
    stop(parent)
    try:
        place.write("go")
        wait_until(lambda: bool(_of(waiting, b"touch\0mine", b"touch")) and not _runs(waiting))
        place.process("run", "--", "sh", "-c", "touch other; mv other another")
        assert (place.root / "another").exists()
        assert not (place.root / "mine").exists()
    finally:
        os.kill(parent, signal.SIGCONT)
        waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert (place.root / "mine").exists()


def _of(run: subprocess.Popen[Any], words: bytes, name: bytes = b"") -> list[int]:
    """The processes of a run whose command line has the words; whose first one is the name."""
    found: list[int] = []
    for pid in descendants(run.pid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words in line and line.startswith(name):
            found.append(pid)
    return found


def _runs(run: subprocess.Popen[Any]) -> bool:
    """Whether the run's `touch` does anything but to wait."""
    (touch,) = _of(run, b"touch\0mine", b"touch")
    stat = Path(f"/proc/{touch}/stat").read_bytes().rpartition(b") ")[2]
    return stat[:1] not in (b"S", b"D")  # (a call that was taken in waits for the keeper and for signals that kill)
