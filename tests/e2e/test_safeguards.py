"""Safeguards over whole trees: a step waits as a whole, others do not, and what nobody allows does not happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.processes.process_tree import descendants
from holdfast.supervisor.control.remote_service import RemoteUndoService, connect
from holdfast.testing.tree_state import differences, photograph
from holdfast.testing.yama_stub import keepers_that_see_nothing
from holdfast.undo.service import TicketInfo

from ..processes import command_of
from ..waiting import wait_until

ROOT = Path(__file__).parents[2]

_LAUNCH = """
import os, sys
from holdfast.supervisor.launch.supervised_run import SupervisedCommand, supervise
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.undo.safeguards.tickets import Thresholds
root, log, deletes, timeout, *command = map(os.fsencode, sys.argv[1:])
thresholds = Thresholds(deletes=int(deletes), timeout=float(timeout))
sys.exit(supervise(SupervisedCommand(command, run="run", thresholds=thresholds), KeeperSettings(root=root, log=log)))
"""


class Place:
    """A tree with files to lose, its undo log, and runs in it that are asked about at the second file."""

    def __init__(self, tmp_path: Path) -> None:
        self.tree = tmp_path / "tree"
        self.log = tmp_path / "log"
        self.tree.mkdir()
        for number in range(200):
            (self.tree / f"f{number}").write_text(f"content {number}")
        self.timeout = 100.0
        self.path = [str(ROOT / "src")]

    def start(self, *command: str, deletes: int = 2) -> subprocess.Popen[str]:
        """``deletes``: at which file it asks; 0 for never."""
        words = [sys.executable, "-P", "-c", _LAUNCH, str(self.tree), str(self.log), str(deletes), str(self.timeout)]
        words += command
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(self.path)}
        return subprocess.Popen(words, cwd=self.tree, text=True, env=environment, stdout=subprocess.PIPE)

    def kept(self) -> RemoteUndoService:
        """The keeper."""
        remote: list[RemoteUndoService] = []

        def found() -> bool:
            connected = connect(os.fsencode(self.log))
            if connected is not None:
                remote.append(connected)
            return connected is not None

        wait_until(found)
        return remote[0]

    def held(self, remote: RemoteUndoService) -> TicketInfo:
        """The first ticket, as soon as there is one."""
        wait_until(lambda: bool(remote.held()))
        return remote.held()[0]

    def files(self) -> int:
        return sum(name.startswith("f") for name in os.listdir(self.tree))


def finish(run: subprocess.Popen[str], code: int = 0) -> str:
    out, _ = run.communicate(timeout=60)
    assert run.returncode == code, out
    return out


@pytest.fixture(name="place", params=["by the keeper", "by the parent"])
def _place(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Place]:
    """Where processes are stopped by the keeper, or, as under Yama, by the parent of their tree."""
    before = set(descendants(os.getpid()))
    place = Place(tmp_path)
    if request.param == "by the parent":
        place.path.append(keepers_that_see_nothing(tmp_path))
    yield place
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    # (That nobody has answered is the only thing that a keeper has to say here.)
    notes = (place.log / "keeper.log").read_text().splitlines()
    assert {json.loads(line)["component"] for line in notes} <= {"safeguard"}, notes


_TWO_PROCESSES = """
import os, subprocess, sys
counter = subprocess.Popen([sys.executable, "-c", '''
import os
fd = os.open("counted", os.O_RDWR | os.O_CREAT)
number = 0
while True:
    number += 1
    os.pwrite(fd, b"%20d" % number, 0)
'''])
while not os.path.exists("counted") or os.path.getsize("counted") < 20: pass
for number in range(3):
    os.unlink(f"f{number}")
before = open("counted").read()
while open("counted").read() == before: pass
counter.kill()
sys.exit(counter.wait() != -9)
"""


def test_while_one_of_its_processes_waits_a_step_changes_nothing(place: Place) -> None:
    """Not even through a descriptor that was open before, of which the keeper sees nothing."""
    run = place.start("sh", "-c", '"$@"; echo code $?', "sh", sys.executable, "-c", _TWO_PROCESSES)
    with place.kept() as remote:
        ticket = place.held(remote)
        step = [pid for pid in descendants(run.pid) if b"counted" in command_of(pid)]
        counter = next(pid for pid in step if pid == max(step))
        wait_until(lambda: Path(f"/proc/{counter}/stat").read_bytes().rpartition(b") ")[2][:1] == b"t")
        before = photograph(place.tree)
        for _ in range(20):  # the keeper looks after its tickets meanwhile
            assert remote.held()
        assert differences(before, photograph(place.tree)) == []
        assert remote.answer(ticket.id, allow=True).id == ticket.id
    assert finish(run) == "code 0\n"
    assert place.files() == 197


_LOOP = 'for i in $(seq 0 199); do rm -f "f$i" || failed=$((failed+1)); done; echo $failed failed; ! echo new > new'


def test_what_is_denied_is_taken_back_alone_and_fails_until_it_ends(place: Place) -> None:
    before = photograph(place.tree)
    run = place.start("sh", "-c", f"sh -c '{_LOOP}' 2>errors && echo refused; mkdir after && echo after")
    with place.kept() as remote:
        ticket = place.held(remote)
        assert (ticket.path, place.files()) == (b"f1", 199)
        # Everybody else goes on.
        other = place.start("sh", "-c", 'mkdir d; for i in 1 2 3 4 5 6 7 8 9; do sh -c "echo $i > d/$i"; done; echo ok')
        assert finish(other) == "ok\n"
        assert [found.id for found in remote.held()] == [ticket.id]
        assert place.files() == 199
        remote.answer(ticket.id, allow=False)
        assert finish(run) == "199 failed\nrefused\nafter\n"
    after = photograph(place.tree)
    assert len(os.listdir(place.tree / "d")) == 9
    assert "Operation not permitted" in (place.tree / "errors").read_text()
    assert {name: seen for name, seen in after.items() if name.startswith(b"f")} == {
        name: seen for name, seen in before.items() if name.startswith(b"f")
    }


def test_whom_nobody_answers_is_denied(place: Place) -> None:
    place.timeout = 0.3
    run = place.start("sh", "-c", f"sh -c '{_LOOP}' 2>/dev/null && echo refused; echo done > done")
    assert finish(run) == "199 failed\nrefused\n"
    assert place.files() == 200
    assert (place.tree / "done").read_text() == "done\n"


_REMOVING = """
import os, threading
threading.Thread(target=lambda: [os.unlink(name) for name in ("f0", "f1", "f2")]).start()
while True: pass
"""


def test_a_command_that_is_killed_while_it_waits_has_ended_by_that(place: Place) -> None:
    """What is stopped here is a child of what may be stopping it."""
    # (A thread whose call waits has no need to be stopped, and does not show.)
    run = place.start(sys.executable, "-c", _REMOVING)
    with place.kept() as remote:
        place.held(remote)
        (command,) = [pid for pid in descendants(run.pid) if b"f0" in command_of(pid)]
        wait_until(lambda: Path(f"/proc/{command}/stat").read_bytes().rpartition(b") ")[2][:1] == b"t")
        os.kill(command, signal.SIGKILL)
        finish(run, 128 + signal.SIGKILL)
    assert place.files() == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_asked_to_end_while_it_waits_is_denied_and_ends(place: Place, number: signal.Signals) -> None:
    run = place.start("sh", "-c", "rm f0 f1 f2; echo $?; mkdir after")
    with place.kept() as remote:
        remote.visit()
        place.held(remote)
        (held,) = [pid for pid in descendants(run.pid) if command_of(pid).startswith(b"rm")]
        wait_until(lambda: Path(f"/proc/{held}/status").read_text().partition("TracerPid:\t")[2][0] != "0")
        os.kill(held, number)
        assert finish(run) == f"{128 + number}\n"
        assert [(step.state, step.command[0]) for step in remote.steps()] == [("undone", b"rm"), ("done", b"mkdir")]
    assert place.files() == 200


_LEAVES_WHAT_WAITS = """
import os, subprocess, sys
from holdfast.supervisor.control.remote_service import connect
keeper = connect(os.fsencode(sys.argv[1]))
keeper.begin("mine")
subprocess.Popen(["rm", "f0", "f1", "f2", "f3"])
while not keeper.held(): pass
"""


def test_what_waits_in_a_step_that_ends_with_its_run_does_not_happen_in_another(place: Place) -> None:
    run = place.start(sys.executable, "-c", _LEAVES_WHAT_WAITS, str(place.log))
    with place.kept() as remote:
        remote.visit()
        finish(run)
        assert [step.state for step in remote.steps()] == ["undone"]
    assert place.files() == 200


def test_a_run_that_is_ended_while_it_waits_leaves_nobody_behind(place: Place) -> None:
    run = place.start("sh", "-c", f"sh -c '{_LOOP}'; true")
    with place.kept() as remote:
        place.held(remote)
        run.kill()
        run.communicate(timeout=60)
    wait_until(lambda: place.files() == 200)


def test_what_one_run_asks_for_holds_for_the_others_too(place: Place) -> None:
    """Also where the keeper was started by a run that asks for nothing, and for what one that asks leaves behind."""
    waits = "until [ -e go ]; do sleep 0.01; done"
    unguarded = place.start("sh", "-c", f"touch first; {waits}; rm f0 f1 f2", deletes=0)
    wait_until((place.tree / "first").exists)
    with place.kept() as remote:
        assert not remote.thresholds().asks
        finish(place.start("sh", "-c", "(until [ -e leave ]; do sleep 0.01; done) >&- & true"))
        assert remote.thresholds().deletes == 2
        (place.tree / "go").touch()
        remote.answer(place.held(remote).id, allow=False)
        finish(unguarded, 1)
        assert place.files() == 201  # and "first"
        (place.tree / "leave").touch()
