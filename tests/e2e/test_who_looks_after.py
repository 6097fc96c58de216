"""What no domain keeps a tree from doing to those who look after it: limits, priorities, and the terminal."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.supervisor.syscalls.table import ARCHITECTURES

from ..fuse import ONLY_WITH_FUSE
from .conftest import INSTALLED

if TYPE_CHECKING:
    from e2e.conftest import Cli

ROOT = Path(__file__).parents[2]

LIMITS = """
import ctypes, errno, json, os, resource, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = json.loads(sys.argv[1])

def raw(name, *arguments):
    if libc.syscall(NUMBERS[name], *arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

# (What is set is what was set before, so that nothing comes to harm if it is let through.)
files = resource.getrlimit(resource.RLIMIT_NOFILE)
attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0)
CALLS = {
    "prlimit": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, files),
    "affinity": lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    "scheduler": lambda pid: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)),
    "param": lambda pid: os.sched_setparam(pid, os.sched_param(0)),
    "attributes": lambda pid: raw("sched_setattr", pid, attributes, 0),
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0)),
    "input and output": lambda pid: raw("ioprio_set", 1, pid, 0),
}

def tried(pid):
    said = {}
    for name, call in CALLS.items():
        try:
            call(pid)
            said[name] = "done"
        except OSError as error:
            said[name] = errno.errorcode[error.errno]
    return said

def status(pid, field):
    with open(f"/proc/{pid}/status") as lines:
        return int(next(line for line in lines if line.startswith(field)).split()[1])

parent = os.getppid()
with open(f"/proc/{parent}/task/{parent}/children") as file:
    (keeper,) = {int(word) for word in file.read().split()} - {os.getpid()}
theirs = [parent, keeper, status(parent, "PPid"), int(sys.argv[2])]
threads = [int(name) for pid in theirs for name in os.listdir(f"/proc/{pid}/task")]
for pid in theirs + threads:
    assert set(tried(pid).values()) == {"EPERM"}, (theirs, pid, tried(pid))
    resource.prlimit(pid, resource.RLIMIT_NOFILE)
for which in (os.PRIO_PGRP, os.PRIO_USER):
    try:
        os.setpriority(which, 0, os.getpriority(os.PRIO_PROCESS, 0))
        raise AssertionError("a group's priority was set")
    except PermissionError:
        pass

end = threading.Event()
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
child = subprocess.Popen(["sh", "-c", "(sleep 100 >/dev/null & echo $!); echo; read end"], stdin=-1, stdout=-1)
orphan = int(child.stdout.readline())
child.stdout.readline()
assert status(orphan, "PPid") == parent
for pid in (0, os.getpid(), thread.native_id, child.pid, orphan):
    assert set(tried(pid).values()) == {"done"}, (pid, tried(pid))
os.kill(orphan, 9)
child.communicate()
assert set(tried(child.pid).values()) == {"ESRCH"}
end.set()
if not (libc.unshare(0x30000000) if os.geteuid() else libc.unshare(0x20000000)):
    if not os.fork():
        assert os.getpid() == 1
        assert set(tried(1).values()) == {"done"}
        os._exit(0)
    assert os.wait()[1] == 0
"""


UNDER = """
import os, sys
from holdfast.supervisor.confinement import seccomp_program
from holdfast.supervisor.confinement import seccomp_notify
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
seccomp_notify.give_up_privileges()
filter = seccomp_program.INSTRUCTION.pack(6, 0, 0, seccomp_program.ALLOW)
os.set_inheritable(seccomp_notify.install(filter), True)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command under a filter with a listener, which lets everything pass."""
OWN_ALONE = """
import os, subprocess
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
try:
    os.setpriority(os.PRIO_PROCESS, os.getpid(), 0)
except PermissionError:
    print("own alone")
"""


def launched(base: Path, *command: str) -> list[str]:
    launch = [sys.executable, "-P", "-m", "holdfast.supervisor.launch.supervised_run"]
    return [*launch, "--log", str(base / "log"), "--root", str(base / "tree"), "--", *command]


@pytest.fixture(name="base")
def _base(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path


def test_limits_and_priorities_are_set_within_the_tree_alone(base: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with limiting() as program:
        words = launched(base, *program)
        run = subprocess.run(words, cwd=base / "tree", env=environment, timeout=60, check=False)
    assert run.returncode == 0


@ONLY_WITH_FUSE
def test_so_they_are_where_a_mount_records(cli: Cli) -> None:
    with limiting() as program:
        cli.process("run", "--bridge", "fuse", "--", *program)


@ONLY_WITH_FUSE
def test_where_another_supervisor_has_a_listener_a_mount_lets_the_caller_set_its_own_alone(cli: Cli) -> None:
    run = [sys.executable, "-c", UNDER, *INSTALLED, "run", "--bridge", "fuse", "--", sys.executable, "-c", OWN_ALONE]
    done = subprocess.run(run, cwd=cli.root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "own alone\n"), done


@contextmanager
def limiting() -> Generator[list[str]]:
    """The program that tries all, with its arguments."""
    numbers = json.dumps(ARCHITECTURES[platform.machine()].numbers)
    with subprocess.Popen(["sh", "-c", "read end"], stdin=subprocess.PIPE) as outsider:
        yield [sys.executable, "-c", LIMITS, numbers, str(outsider.pid)]
        outsider.communicate()
