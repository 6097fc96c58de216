"""Processes are stopped and go on without their parents seeing anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

_TRACE = """
import sys
from holdfast.supervisor.process_tree.process_freezer import ProcessFreezer
frozen = ProcessFreezer()
for line in sys.stdin:
    frozen.add([int(word) for word in line.split()]) if line.strip() else frozen.release()
"""
_COUNT = """
import os, sys, threading
def count(name):
    while True:
        os.pwrite(name, b"%20d" % (int(os.pread(name, 20, 0) or b"0") + 1), 0)
for word in sys.argv[1:]:
    threading.Thread(target=count, args=(int(word),)).start()
print("go", flush=True)
"""


@pytest.fixture(name="counting")
def _counting(tmp_path: Path) -> Generator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process of which each of two threads counts in a file of its own."""
    fds = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(2)]
    with subprocess.Popen(
        [sys.executable, "-c", _COUNT, *map(str, fds)], pass_fds=fds, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        try:
            yield process, fds
        finally:
            process.kill()
    for fd in fds:
        os.close(fd)


class Tracer:
    """A process with a `ProcessFreezer`, as the parent of what is frozen must be another one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def add(self, *pids: int) -> None:
        self._say(" ".join(map(str, pids)))

    def release(self) -> None:
        self._say("")

    def kill(self) -> None:
        self._process.kill()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


@pytest.fixture(name="frozen")
def _frozen() -> Generator[Tracer]:
    with subprocess.Popen([sys.executable, "-c", _TRACE], stdin=subprocess.PIPE, text=True) as process:
        try:
            yield Tracer(process)
        finally:
            process.kill()


def counts(fds: list[int]) -> list[bytes]:
    return [os.pread(fd, 20, 0) for fd in fds]


def states(pid: int) -> set[bytes]:
    found: set[bytes] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        found.add(Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b") ")[2][:1])
    return found


def wait_until_stopped(pid: int) -> None:
    while states(pid) != {b"t"}:
        pass


def test_all_threads_stop_and_go_on_and_the_parent_is_told_nothing(
    counting: tuple[subprocess.Popen[bytes], list[int]], frozen: Tracer
) -> None:
    process, fds = counting
    frozen.add(process.pid)
    wait_until_stopped(process.pid)
    before = counts(fds)
    assert os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED) == (0, 0)
    frozen.add(process.pid)  # again
    assert counts(fds) == before
    frozen.release()
    while any(now == then for now, then in zip(counts(fds), before, strict=True)):
        pass
    assert os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED) == (0, 0)


def test_who_is_killed_meanwhile_ends_and_its_parent_sees_it(
    counting: tuple[subprocess.Popen[bytes], list[int]], frozen: Tracer
) -> None:
    process, _ = counting
    frozen.add(process.pid)
    wait_until_stopped(process.pid)
    process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    frozen.release()


def test_any_other_signal_comes_afterwards(counting: tuple[subprocess.Popen[bytes], list[int]], frozen: Tracer) -> None:
    process, _ = counting
    frozen.add(process.pid)
    wait_until_stopped(process.pid)
    process.send_signal(signal.SIGTERM)
    assert states(process.pid) == {b"t"}
    frozen.release()
    assert process.wait(20) == -signal.SIGTERM


def test_who_has_ended_is_passed_over(counting: tuple[subprocess.Popen[bytes], list[int]], frozen: Tracer) -> None:
    process, _ = counting
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    frozen.add(ended.pid, process.pid)
    wait_until_stopped(process.pid)
    frozen.release()


def test_nothing_stays_stopped_if_its_tracer_is_killed(
    counting: tuple[subprocess.Popen[bytes], list[int]], frozen: Tracer
) -> None:
    process, fds = counting
    frozen.add(process.pid)
    wait_until_stopped(process.pid)
    before = counts(fds)
    frozen.kill()
    while any(now == then for now, then in zip(counts(fds), before, strict=True)):
        pass
