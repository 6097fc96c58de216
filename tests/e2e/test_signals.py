"""Signals to a run: the command gets each of them once, whoever else is in its process group, and has its time."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from holdfast.processes.process_tree import descendants

from ..fuse import ONLY_WITH_FUSE
from ..waiting import wait_until
from .conftest import INSTALLED
from .isolated import need_namespaces

if TYPE_CHECKING:
    from .conftest import Cli

TOLD = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM)
"""What is tried; after these comes `LAST`, to the launcher alone."""
LAST = signal.SIGUSR2
PROGRAM = """
import os, signal, sys
def tell(number, frame):
    os.write(1, b"%d\\n" % number)
for number in map(int, sys.argv[2:]):
    signal.signal(number, tell)
if sys.argv[1] == "apart":
    os.setpgid(0, 0)
os.write(1, b"ready\\n")
sys.stdin.readline()
open("data", "w").write("saved")
sys.exit(3)
"""


class Running:
    """A run in a process group of its own, whose command tells of each signal that it gets."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid
        self.wait_for("ready")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def wait_for(self, line: str) -> list[str]:
        """What was told before that."""
        told: list[str] = []
        while (one := self.line()) != line:
            assert one, "it has ended"
            told.append(one)
        return told

    def told(self) -> list[int]:
        """All that the command got until now."""
        os.kill(self.pid, LAST)
        return [int(line) for line in self.wait_for(str(int(LAST)))]

    def end(self) -> None:
        _, err = self.process.communicate(b"now\n", timeout=60)
        assert (self.process.returncode, b"Traceback" in err, b"reset by peer" in err) == (3, False, False), err


@contextmanager
def running(cli: Cli, *options: str, where: str = "here") -> Generator[Running]:
    numbers = [str(int(number)) for number in (*TOLD, LAST)]
    process = subprocess.Popen(
        [*INSTALLED, "-q", "run", *options, "--", sys.executable, "-c", PROGRAM, where, *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        run = Running(process)
        yield run
        run.end()
        assert (cli.root / "data").read_text() == "saved"
    finally:
        process.kill()
        process.communicate()


MODES = [
    pytest.param((), id="supervised"),
    pytest.param(("--one-step",), id="one-step"),
    pytest.param(("--bridge", "fuse"), id="fuse", marks=ONLY_WITH_FUSE),
    pytest.param(("--isolation", "namespace"), id="namespace"),
]


@pytest.mark.parametrize("options", MODES)
def test_what_the_whole_group_gets_the_command_gets_once_and_has_its_time(cli: Cli, options: Sequence[str]) -> None:
    if "namespace" in options:
        need_namespaces()
    with running(cli, *options) as run:
        for number in TOLD:
            os.killpg(run.pid, number)
        assert sorted(run.told()) == sorted(TOLD)
        for number in TOLD:
            os.kill(run.pid, number)
            assert run.line() == str(int(number)), "the launcher alone got it"


def test_what_timeout_does_arrives_once(cli: Cli) -> None:
    """It signals the process that it started, and then its group."""
    with running(cli) as run:
        os.kill(run.pid, signal.SIGTERM)
        os.killpg(run.pid, signal.SIGTERM)
        assert set(run.told()) == {signal.SIGTERM}


def test_what_the_parent_of_the_tree_alone_gets_is_the_commands(cli: Cli) -> None:
    with running(cli) as run:
        parent = next(pid for pid in descendants(run.pid) if os.getpgid(pid) == run.pid)
        os.kill(parent, signal.SIGTERM)
        assert run.line() == str(int(signal.SIGTERM))


def test_a_command_that_has_left_the_group_is_told_of_its_signals(cli: Cli) -> None:
    """Without us between, it might lead the group, and could not leave it."""
    with running(cli, where="apart") as run:
        os.killpg(run.pid, signal.SIGTERM)
        assert run.line() == str(int(signal.SIGTERM))


def test_a_signal_to_all_before_the_command_runs_ends_it(cli: Cli) -> None:
    for _ in range(3):
        process = cli.start("-q", "run", "--", "sleep", "100", start_new_session=True)
        wait_until(lambda: descendants(process.pid), "the parent of the tree")  # noqa: B023
        os.killpg(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (128 + signal.SIGTERM, b"")


def test_an_interrupt_from_the_terminal_arrives_once(cli: Cli) -> None:
    numbers = [str(int(number)) for number in (*TOLD, LAST)]
    words = [*INSTALLED, "-q", "run", "--", sys.executable, "-c", PROGRAM, "here", *numbers]
    pid, terminal = pty.fork()
    if not pid:
        try:
            flags = termios.tcgetattr(0)
            flags[3] &= ~termios.ECHO  # what is typed would stand among what is told
            termios.tcsetattr(0, termios.TCSANOW, flags)
            os.execv(words[0], words)
        finally:
            os._exit(99)
    shown: list[bytes] = []

    def read_until(word: bytes) -> None:
        while word not in shown:
            assert select.select([terminal], [], [], 60)[0], shown
            shown.extend(os.read(terminal, 4096).split())

    read_until(b"ready")
    os.write(terminal, b"\x03")
    read_until(b"%d" % signal.SIGINT)
    os.kill(pid, LAST)
    read_until(b"%d" % LAST)
    assert shown == [b"ready", b"%d" % signal.SIGINT, b"%d" % LAST]
    os.write(terminal, b"now\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    os.close(terminal)
    assert (cli.root / "data").read_text() == "saved"
