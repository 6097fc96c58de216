"""I3: signals, and kills of callers and of the keeper, at every moment of a call, natively and in Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from platform import machine

import pytest

from holdfast.files.linux.native import SWITCH
from holdfast.supervisor.syscalls.table import ARCHITECTURES
from holdfast.testing.tree_state import PathState, differences, photograph

from ..sampling import some
from ..waiting import stop, wait_until
from . import checked_calls
from .conftest import INSTALLED, Cli
from .test_run import keeper_of

CALLS = str(Path(checked_calls.__file__))
ROUNDS = 200
MKDIR = f"{ARCHITECTURES[machine()].numbers['mkdirat']} "


KEEPS_WAITING = pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 18),
    reason="before Linux 6.18 a signal may begin a call anew that was answered",
)


@pytest.fixture(params=["1", "0"], ids=["native", "python"], autouse=True)
def switch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(SWITCH, request.param)
    return request.param


def planted(cli: Cli, rounds: int) -> dict[bytes, PathState]:
    subprocess.run((sys.executable, CALLS, "plant", str(rounds)), cwd=cli.root, check=True)
    return photograph(cli.root)


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=KEEPS_WAITING) for how in ("interrupts", "restarts")), "killed"]
)
def test_a_call_that_is_interrupted_or_killed_is_carried_out_once_or_not_at_all(cli: Cli, how: str) -> None:
    before = planted(cli, ROUNDS)
    told = json.loads(cli.process("run", "--", sys.executable, CALLS, how, str(ROUNDS)).stdout)
    assert told["wrong"] == []
    assert told.get("signals", ROUNDS) >= ROUNDS
    cli.process("undo", "--run")
    assert differences(before, photograph(cli.root)) == []


_WAITS = """
import ctypes, errno, os, signal, sys
open("first", "w").close()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.siginterrupt(signal.SIGUSR1, sys.argv[1] == "interrupts")
libc = ctypes.CDLL(None, use_errno=True)
print(os.getpid(), flush=True)
sys.stdin.readline()
done = libc.mkdirat(-100, b"made", 0o700)
print(errno.errorcode[ctypes.get_errno()] if done else "made", flush=True)
"""


@pytest.mark.parametrize("how", ["interrupts", "restarts"])
def test_a_signal_to_a_call_that_nothing_has_taken_up_interrupts_it_or_begins_it_anew(cli: Cli, how: str) -> None:
    with subprocess.Popen(
        (*INSTALLED, "run", "--", sys.executable, "-c", _WAITS, how), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        caller = int(run.stdout.readline())
        keeper = keeper_of(cli.home)
        stop(keeper)
        try:
            run.stdin.write(b"\n")
            run.stdin.flush()
            wait_until(lambda: Path(f"/proc/{caller}/syscall").read_text().startswith(MKDIR), "the call")
            os.kill(caller, signal.SIGUSR1)
            if how == "interrupts":
                assert run.stdout.readline() == b"EINTR\n"
        finally:
            os.kill(keeper, signal.SIGCONT)
        if how == "restarts":
            assert run.stdout.readline() == b"made\n"
    assert (cli.root / "made").exists() == (how == "restarts")


WRITES = ("write",)
"""By which the keeper records: at one of them nothing of what the record speaks of may have happened."""
CALLED = (
    *("openat", "open_by_handle_at", "mkdirat", "symlinkat", "linkat", "renameat2", "unlinkat", "ftruncate"),
    *("copy_file_range", "fchmodat2", "fchownat", "utimensat", "ioctl"),
)
"""By which it carries calls out; by ``ioctl`` it asks for callers, and answers them."""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    "moment",
    [*some([(WRITES, at) for at in range(3, 45)], 5), *some([(CALLED, at) for at in range(1, 200, 7)], 3)],
    ids=lambda moment: f"{moment[0][0]}-{moment[1]}",
)
def test_a_keeper_that_is_killed_at_any_call_of_its_own_leaves_what_can_be_taken_back(
    cli: Cli, moment: tuple[Sequence[str], int]
) -> None:
    """It is killed before the kernel carries that call out."""
    names, at = moment
    before = planted(cli, 2)
    words = (*INSTALLED, "run", "--one-step", "--", sys.executable, CALLS, "once", "2")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        told = f"inject={','.join(f'?{name}' for name in names)}:signal=KILL:when={at}"
        tracer = subprocess.Popen(
            ("strace", "-f", "-o", "/dev/null", "-e", told, "-p", str(keeper_of(cli.home))), stderr=subprocess.PIPE
        )
        assert tracer.stderr is not None
        if b"attached" not in tracer.stderr.readline():
            tracer.wait()
            run.communicate(b"\n")
            pytest.skip("a process cannot be traced here")
        run.communicate(b"\n", timeout=60)
        tracer.communicate(timeout=60)
    cli.process("status")
    if differences(before, photograph(cli.root)):  # (the step had come to its end)
        cli.process("undo", "--run")
    assert differences(before, photograph(cli.root)) == []
