"""What descends from a process, and its end, orphans included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from holdfast.processes.process_tree import children, descendants, hindered_seconds, kill_tree, signal_all

from ...waiting import wait_until

HINDERED = """
import os, subprocess, sys
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(flush=True)
sys.stdin.read()
"""
PROGRAM = """
import os, subprocess, sys, time
from holdfast.processes.process_tree import (
    become_subreaper, children, descendants, end_descendants, end_in_order, reap_orphans
)
assert not become_subreaper()
spared = subprocess.Popen(["sleep", "100"])
subprocess.run(["sh", "-c", "sleep 100 & (setsid sh -c 'sleep 100 & sleep 100' &) ; exit"])
while len(descendants(os.getpid(), spare={spared.pid})) < 4:
    time.sleep(0.01)
before = descendants(os.getpid(), spare={spared.pid})
end_descendants({spared.pid})
assert descendants(os.getpid()) == [spared.pid], descendants(os.getpid())
assert children() == {spared.pid}
spared.kill()
os.waitid(os.P_PID, spared.pid, os.WEXITED | os.WNOWAIT)
subprocess.run(["sh", "-c", "(sleep 0.01 &)"])
while len(children()) < 2:
    time.sleep(0.005)
while children() != {spared.pid}:
    reap_orphans({spared.pid})
    time.sleep(0.005)
assert spared.wait() == -9
ready, told = os.pipe()
obeys = "trap 'exit 0' TERM; echo; while :; do sleep 0.01; done"
for script in (obeys, "trap '' TERM; (sleep 100 & sleep 100)& echo; wait"):
    subprocess.Popen(["sh", "-c", script], stdout=told)
while len(os.read(ready, 1)) + len(os.read(ready, 1)) < 2:
    pass
end_in_order(0.2, {spared.pid})
assert children() == set(), children()
assert become_subreaper(wanted=False)
print("done")
"""


def test_all_that_descends_is_ended_but_for_what_is_spared() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.stdout == "done\n", found.stderr


def test_parents_come_first_and_the_ended_are_no_descendants() -> None:
    others = set(descendants(os.getpid()))
    with subprocess.Popen(["sh", "-c", "sh -c 'echo up; read x; :'; :"], stdin=-1, stdout=-1) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"up\n"
        found = descendants(os.getpid(), spare=others)
        assert found[0] == outer.pid
        assert len(found) == 2
        assert outer.pid in children()
        assert descendants(os.getpid(), spare={outer.pid, *others}) == []
        assert outer.stdin is not None
        outer.stdin.close()
        os.waitid(os.P_PID, outer.pid, os.WEXITED | os.WNOWAIT)
        assert descendants(os.getpid(), spare=others) == []


def test_a_signal_reaches_those_that_are_named_once_more_and_no_other_of_their_number() -> None:
    with subprocess.Popen(["sleep", "100"]) as meant, subprocess.Popen(["sleep", "100"]) as stranger:
        # (The stranger has the number of one that ended after it was named.)
        named = iter([[meant.pid, stranger.pid], [meant.pid]])
        signal_all(lambda: next(named), (signal.SIGTERM, signal.SIGCONT))
        assert meant.wait(20) == -signal.SIGTERM
        named = iter([[meant.pid], [meant.pid]])
        signal_all(lambda: next(named), (signal.SIGTERM,))  # (it is gone)
        stranger.kill()
        assert stranger.wait(20) == -signal.SIGKILL, "it was the first that it got"


def test_what_waits_for_a_processor_is_hindered() -> None:
    assert hindered_seconds(os.getpid()) < 10_000
    with subprocess.Popen([sys.executable, "-c", HINDERED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as top:
        try:
            assert top.stdout is not None
            top.stdout.readline()
            first = hindered_seconds(top.pid)
            wait_until(lambda: hindered_seconds(top.pid) > first + 0.2)
        finally:
            kill_tree(top.pid)
    assert hindered_seconds(top.pid) == 0
