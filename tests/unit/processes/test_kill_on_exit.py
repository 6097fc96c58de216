"""What is run ends with the process that has started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ...waiting import has_ended, wait_until

STARTER = """
import os, sys, threading, time
from holdfast.processes import kill_on_exit
from holdfast.processes.child import Limits, run

def work(number):
    word = f"echo $$ > {number}.new; mv {number}.new {number}; exec sleep 1000"
    run(["sh", "-c", f"sh -c '{word}' & wait"], Limits(1000))

for number in range(2):
    threading.Thread(target=work, args=(number,)).start()
# A program runs for a moment before it is known to what ends it.
while len(kill_on_exit._WATCHER._groups) < 2:
    time.sleep(0.01)
with kill_on_exit._WATCHER._lock:
    open("told", "w").close()
"""


def running(place: Path) -> list[int]:
    wait_until(lambda: all((place / name).exists() for name in ("0", "1", "told")), "both to run")
    return [int((place / name).read_text()) for name in "01"]


def groups_of(processes: list[int]) -> list[int]:
    return [os.getpgid(process) for process in processes]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_programs_and_what_they_have_started_end_when_their_starter_is_killed(tmp_path: Path, number: int) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=tmp_path)
    found = running(tmp_path)
    found += groups_of(found)
    os.kill(starter.pid, number)
    starter.wait()
    for process in found:
        wait_until(lambda process=process: has_ended(process), "its end")


def test_also_when_what_watches_was_ended_meanwhile_and_only_what_still_runs(tmp_path: Path) -> None:
    script = f"""
import os, subprocess, sys
from pathlib import Path
from holdfast.processes import kill_on_exit
from holdfast.processes.child import Limits, run

mine = Path(f"/proc/self/task/{{os.getpid()}}/children")
run(["true"], Limits(10))
[watching] = map(int, mine.read_text().split())
bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with kill_on_exit.ends_with_us(bystander.pid):
    pass
os.kill(watching, 9)
while Path(f"/proc/{{watching}}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
    pass
Path("bystander.new").write_text(str(bystander.pid))
os.rename("bystander.new", "bystander")
{STARTER}"""
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    found = running(tmp_path)
    bystander = int((tmp_path / "bystander").read_text())
    try:
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        for process in found:
            wait_until(lambda process=process: has_ended(process), "its end")
        assert not has_ended(bystander)
    finally:
        os.kill(bystander, signal.SIGKILL)


def test_a_fork_of_the_starter_keeps_nothing_alive(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from holdfast.processes.child import Limits, run
run(["true"], Limits(10))
child = os.fork()
if not child:
    time.sleep(1000)
open("child.new", "w").write(str(child))
os.rename("child.new", "child")
{STARTER}"""
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    found = running(tmp_path)
    child = int((tmp_path / "child").read_text())
    try:
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        for process in found:
            wait_until(lambda process=process: has_ended(process), "its end")
        assert not has_ended(child)
    finally:
        os.kill(child, signal.SIGKILL)
