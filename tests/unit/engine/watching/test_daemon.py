"""The watch service in a process of its own."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.opening.watch_client import connect
from holdfast.engine.watching.daemon import LOG, start_detached
from holdfast.engine.watching.service import WatchSetup
from holdfast.model.command_results import CheckpointRequest
from holdfast.model.errors import HoldfastError, LockedError

from ....waiting import wait_until
from .watch_service import reach

PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from watch_service import FakeSaver, Nothing
from holdfast.engine.watching._schedule import Pace
from holdfast.engine.watching.service import WatchSetup, run_service
from holdfast.model.clock import SystemClock
root, folder, out = (os.fsencode(text) for text in sys.argv[2:5])

class Noting(FakeSaver):
    def checkpoint(self, request):
        result = super().checkpoint(request)
        with open(out, "a") as file:
            print(request.kind, sorted(self.taken[-1].paths), file=file)
        return result
    def close(self):
        with open(out, "a") as file:
            print("closed", file=file)

print("watching", flush=True)
setup = WatchSetup(root, folder, "inotify", Pace(debounce=1000, latest=1000), rest=0.0)
run_service(setup, Noting, Nothing(), SystemClock())
"""


def command(setup: WatchSetup, out: Path, program: str = PROGRAM) -> list[str]:
    here = str(Path(__file__).parent)
    return [sys.executable, "-c", program, here, os.fsdecode(setup.root), os.fsdecode(setup.folder), str(out)]


ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(holdfast.__path__[0]).parent)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_cleanly(setup: WatchSetup, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    found = start_detached(command(setup, out), setup.folder, environ=ENVIRON)
    with reach(setup) as watcher:
        watcher.checkpoint(CheckpointRequest())
        (Path(os.fsdecode(setup.root)) / "late").touch()
        wait_until(lambda: watcher.ping().unsaved)
        for _ in range(3):  # some send it to the process and again to its group
            os.kill(found.pid, number)
        wait_until(lambda: out.read_text().endswith("closed\n"))
    assert out.read_text().splitlines() == ["manual []", "auto [b'late']", "closed"]
    wait_until(lambda: connect(setup.folder) is None)
    os.waitpid(found.pid, 0)


def test_detached_it_has_a_session_and_a_private_log(setup: WatchSetup, tmp_path: Path) -> None:
    found = start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    assert os.getsid(found.pid) == found.pid
    log = Path(os.fsdecode(setup.folder + b"/" + LOG))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text() == "watching\n"
    with pytest.raises(LockedError, match=f"pid {found.pid}"):
        start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    os.kill(found.pid, signal.SIGKILL)
    os.waitpid(found.pid, 0)
    assert connect(setup.folder) is None
    # A killed one leaves its socket and lock behind: the next takes their place.
    assert (Path(os.fsdecode(setup.folder)) / "watch.sock").exists()
    again = start_detached(command(setup, tmp_path / "out"), setup.folder, environ=ENVIRON)
    with reach(setup) as watcher:
        watcher.stop()
    os.waitpid(again.pid, 0)


def test_detached_it_says_why_it_could_not_start(setup: WatchSetup, tmp_path: Path) -> None:
    failing = "import sys; print('the reason'); sys.exit(3)"
    with pytest.raises(HoldfastError, match=r"status 3: the reason"):
        start_detached(command(setup, tmp_path / "out", failing), setup.folder, environ=ENVIRON)
    silent = "import signal; signal.pause()"
    with pytest.raises(HoldfastError, match=r"did not answer within 0\.2 s"):
        start_detached(command(setup, tmp_path / "out", silent), setup.folder, limit=0.2, environ=ENVIRON)


def test_a_client_is_cheap_to_start() -> None:
    """Where no watcher is, asking for one loads nothing that takes time."""
    connecting = "from holdfast.engine.opening.watch_client import connect; connect(b'/nowhere')"
    code = f"import sys; {connecting}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "holdfast.wire.watch_messages" in loaded
    assert not loaded & {
        "socket",
        "json",
        "asyncio",
        "ctypes",
        "logging",
        "msgspec",
        "sqlite3",
        "holdfast.engine.watching.service",
    }
