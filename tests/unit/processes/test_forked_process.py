"""Processes that are forked where that is safe, and find there what a new interpreter finds."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ...waiting import has_ended, wait_until

if TYPE_CHECKING:
    from pathlib import Path

_PROBE = """
import gc, logging, os, signal, socket, sys, threading
from contextvars import copy_context
from json import dumps

def facts():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    signals = {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd")}
    links = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            links[int(fd)] = (os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(int(fd)) if int(fd) > 2 else None)
        except OSError:
            pass  # it is the one that they are listed by
    logger = logging.getLogger("holdfast")
    return {
        "signals": signals,
        "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "wakeup": signal.set_wakeup_fd(-1),
        "links": {fd: link for fd, link in links.items() if "mountinfo" not in link[0]},
        "session": os.getsid(0) == os.getpid(),
        "group": os.getpgid(0) == os.getpgid(os.getppid()),
        "directory": os.getcwd(),
        "umask": status["Umask"],
        "users": [status[name] for name in ("Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp")],
        "threads": threading.active_count(),
        "context": [name.name for name in copy_context()],
        "log": [len(logger.handlers), logger.level, logger.propagate],
        "line": open("/proc/self/cmdline").read().split("\\0")[0] if forked() else "probe",
    }

def forked():
    return hasattr(sys.modules["__main__"], "STARTER")

def main(fd):
    talk = socket.socket(fileno=fd)
    told = facts() | {"forked": forked()}
    del told["links"][fd]
    talk.sendall(dumps(told).encode() + b"\\n")
    gc.collect()
    talk.recv(1)
    return 3

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
"""

_STARTER = """
import atexit, contextvars, fcntl, gc, logging, os, signal, socket, sys, threading, time
from holdfast.processes import forked_process
STARTER = True
{before}
ours, its = socket.socketpair()
process = forked_process.start("probe", its.fileno(), **dict({options}))
its.close()
{after}
print(ours.makefile().readline(), flush=True)
{then}
ours.close()
print(forked_process.wait(process), flush=True)
"""

_OURS = "forked_process.allow_forks()"

_UNUSUAL = """
os.umask(0o27)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2, signal.SIGWINCH})
awake, wake = socket.socketpair()
wake.setblocking(False)
signal.set_wakeup_fd(wake.fileno())
os.kill(os.getpid(), signal.SIGUSR2)  # (it waits here, and comes to no other)
contextvars.ContextVar("ours").set(1)
logging.getLogger("holdfast").addHandler(logging.FileHandler("log"))
logging.getLogger("holdfast").setLevel(10)
logging.getLogger("holdfast").propagate = False
stray = os.dup2(os.open(".", os.O_RDONLY), 40, inheritable=True)
passed = os.dup2(os.open("/", os.O_PATH), 50)
"""


class _Place:
    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "probe.py").write_text(_PROBE)
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *filter(None, sys.path)])}

    def starter(self, before: str, options: str = "", after: str = "", then: str = "") -> subprocess.Popen[str]:
        code = _STARTER.format(before=before, options=options, after=after, then=then)
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.path,
            env=self.environment,
            text=True,
        )

    def said(self, before: str, options: str = "", after: str = "", then: str = "") -> tuple[dict[str, Any], int, str]:
        """What the process has told, how it ended, and what both have written to standard error."""
        output, errors = self.starter(before, options, after, then).communicate(timeout=60)
        told, code = output.strip().rsplit("\n", 1)
        return json.loads(told), int(code), errors


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> _Place:
    return _Place(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "own_session=True",
        "passed=[50]",
        "streams=(null := os.open(os.devnull, os.O_RDWR), null, os.open('err', os.O_CREAT | os.O_WRONLY))",
    ],
)
def test_a_fork_finds_what_a_new_interpreter_finds(place: _Place, options: str) -> None:
    forked, code, errors = place.said(_OURS + _UNUSUAL, options)
    new, its_code, _ = place.said(_UNUSUAL, options)
    assert (forked.pop("forked"), new.pop("forked")) == (True, False)
    assert (code, its_code, errors) == (3, 3, "")
    # (Whether a pipe is inherited by what it executes is its own business: it was open there by that.)
    for each in (forked, new):
        if "50" in each["links"]:
            each["links"]["50"] = each["links"]["50"][0]
        for number in ("0", "1", "2"):
            each["links"][number] = each["links"][number][0].split(":")[0]
    assert forked == new
    assert ("40" in forked["links"], "50" in forked["links"]) == (False, "passed" in options)


@pytest.mark.parametrize(
    "before",
    [
        "",
        _OURS + "\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        # (One that Python does not know of.)
        _OURS + "\nimport ctypes\nlibc = ctypes.CDLL(None)\n"
        "assert not libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)",
    ],
)
def test_a_program_of_others_or_with_threads_is_not_forked(place: _Place, before: str) -> None:
    told, code, _ = place.said(before)
    assert (told["forked"], code) == (False, 3)


def test_what_the_starter_would_clean_up_is_left_to_it(place: _Place) -> None:
    before = (
        _OURS
        + """
gc.disable()
place = os.getcwd() + "/"
class Cleaned:
    def __init__(self, name): self.name = name
    def __del__(self, open=open): open(place + self.name, "a").write(f"{os.getpid()} ")
atexit.register(lambda: open(place + "atexit", "a").write(f"{os.getpid()} "))
cycle = Cleaned("cycle"); cycle.itself = cycle; del cycle
kept = Cleaned("kept")
open("starter", "w").write(str(os.getpid()))
"""
    )
    told, code, _ = place.said(before, then="gc.collect()\ndel kept")
    assert (told["forked"], code) == (True, 3)
    starter = (place.path / "starter").read_text() + " "
    assert [(place.path / name).read_text() for name in ("atexit", "cycle", "kept")] == [starter] * 3


def test_blocks_around_the_start_are_left_by_the_starter_alone(place: _Place) -> None:
    code = f"""
import os, socket
from contextlib import contextmanager
from holdfast.processes import forked_process
{_OURS}
@contextmanager
def noted():
    try:
        yield
    finally:
        print("left", flush=True)
def fail():
    raise RuntimeError("in the fork")
with noted():
    print("begun")  # (to be written yet, and once)
    process = forked_process.fork(fail)
    print(forked_process.wait(process), forked_process.wait(process))
    print(forked_process.wait(forked_process.fork(lambda: os.kill(os.getpid(), 9))))
    print(forked_process.wait(forked_process.fork(lambda: exit(7))))
    forked_process.wait(forked_process.fork(lambda: print("forked", flush=True) or 0))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout.split() == ["begun", "1", "0", "-9", "7", "forked", "left"]
    assert done.stderr.splitlines()[-1] == "RuntimeError: in the fork"


def test_locks_and_sockets_of_the_starter_end_with_it(place: _Place) -> None:
    """A copy of a descriptor would keep a lock, and a connection, for as long as the fork lives."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fsencode(place.path / "socket"))
    listener.listen()
    before = (
        _OURS
        + """
lock = os.open("lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
connection = socket.socket(socket.AF_UNIX)
connection.connect("socket")
"""
    )
    starter = place.starter(before, then="print(process, flush=True); sys.stdin.read()")
    assert starter.stdout is not None
    assert json.loads(starter.stdout.readline())["forked"]
    starter.stdout.readline()
    process = int(starter.stdout.readline())
    os.kill(process, signal.SIGSTOP)
    with listener, listener.accept()[0] as connection, open(place.path / "lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        starter.kill()
        starter.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        connection.settimeout(30)
        assert connection.recv(1) == b""
    assert not has_ended(process)
    os.kill(process, signal.SIGCONT)
    starter.communicate()
    wait_until(lambda: has_ended(process), "the end of the fork")


def test_a_transaction_of_the_starter_goes_on(place: _Place) -> None:
    before = (
        _OURS
        + """
import sqlite3
database = sqlite3.connect("database", isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("create table numbers (number)")
database.execute("begin immediate")
database.execute("insert into numbers values (1)")
"""
    )
    then = """
other = sqlite3.connect("database", isolation_level=None, timeout=0)
try: other.execute("begin immediate")
except sqlite3.OperationalError: print("held", file=sys.stderr)
"""
    # (The fork has ended by then, with all that it had of the database.)
    told, code, errors = place.said(before, then=f"{then}\nours.close(); forked_process.wait(process)\n{then}")
    assert (told["forked"], code, errors) == (True, 0, "held\nheld\n")


def test_what_is_open_for_good_is_the_forks_own(place: _Place) -> None:
    code = f"""
import os
from holdfast.processes import forked_process
{_OURS}
own = forked_process.open_for_good("/proc/self/fd")
mark = os.open("/etc", os.O_PATH)
def look():
    kept = os.open("/usr", os.O_PATH)
    assert os.readlink(str(kept), dir_fd=own) == "/usr", os.listdir("/proc/self/fd")
    assert os.readlink(f"/proc/self/fd/{{own}}") == f"/proc/{{os.getpid()}}/fd"
    assert not os.get_inheritable(own)
    return 5
print(forked_process.wait(forked_process.fork(look)), os.readlink(str(mark), dir_fd=own))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["5", "/etc"], "")


def test_what_runs_in_forks_loads_no_database() -> None:
    """SQLite's idea of its open files is wrong in a fork."""
    modules = (
        "holdfast.engine.running.mount_service",
        "holdfast.supervisor.keeper.keeper",
        "holdfast.supervisor.launch.tree_parent",
        "holdfast.supervisor.operations",
    )
    code = f"import sys, {', '.join(modules)}\nprint({{'sqlite3', '_sqlite3'}}.intersection(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
