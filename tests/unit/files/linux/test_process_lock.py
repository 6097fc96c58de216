"""One at a time per workspace, and what somebody who waits in vain is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.files.linux.process_lock import exclusive, holder_of
from holdfast.model.clock import SystemClock
from holdfast.model.errors import LockedError, StorageError
from holdfast.testing.clocks import ManualClock

from ....disks import mounted

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys
from holdfast.files.linux.process_lock import exclusive
from holdfast.model.clock import SystemClock
with exclusive(sys.argv[1].encode(), timeout=0, clock=SystemClock(), what="it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, os.fsdecode(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    process.wait(30)


def test_it_is_free_again_after_the_block(tmp_path: Path) -> None:
    path = bytes(tmp_path / "lock")
    for _ in range(3):
        with exclusive(path, timeout=0, clock=ManualClock(), what="it"):
            pass
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_who_waits_in_vain_is_told_who_holds_it_and_what_to_do(tmp_path: Path) -> None:
    path = bytes(tmp_path / "lock")
    process = hold(path)
    try:
        with (
            pytest.raises(LockedError) as caught,
            exclusive(path, timeout=0, clock=SystemClock(), what="the workspace /w"),
        ):
            raise AssertionError("two at a time")
        assert "the workspace /w" in caught.value.message
        assert f"process {process.pid}: {sys.executable} -c" in caught.value.message
        assert "lock.timeout" in (caught.value.hint or "")
        assert (caught.value.code, caught.value.exit_code) == ("locked", 4)
    finally:
        end(process)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    # I3
    path = bytes(tmp_path / "lock")
    process = hold(path)
    process.send_signal(signal.SIGKILL)
    end(process)
    with exclusive(path, timeout=0, clock=SystemClock(), what="it"):
        pass


def test_who_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    path = bytes(tmp_path / "lock")
    process = hold(path)

    class Waiting(SystemClock):
        asked = 0

        def monotonic(self) -> float:
            self.asked += 1
            if self.asked == 3:
                end(process)
            return super().monotonic()

    clock = Waiting()
    with exclusive(path, timeout=60, clock=clock, what="it"):
        assert clock.asked >= 3


def test_a_long_wait_is_said_once_with_who_holds_it_and_how_long_it_may_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = bytes(tmp_path / "lock")
    process = hold(path)

    class Fast(SystemClock):
        ticks = 0.0

        def monotonic(self) -> float:
            self.ticks += 0.4
            return self.ticks

    try:
        with pytest.raises(LockedError), exclusive(path, timeout=3, clock=Fast(), what="the workspace /w"):
            pass
    finally:
        end(process)
    (said,) = caplog.messages
    assert said.startswith(f"the workspace /w is busy in another process (process {process.pid}: ")
    assert said.endswith("; waiting at most 3 s")


def test_threads_of_one_process_wait_for_each_other_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, waited = bytes(tmp_path / "lock"), threading.Event()

    class Long(SystemClock):
        ticks = 0.0

        def monotonic(self) -> float:
            self.ticks += 0.4
            if self.ticks > 3:
                waited.set()
            return self.ticks

    def wait(timeout: float) -> None:
        with exclusive(path, timeout=timeout, clock=Long(), what="what sessions share"):
            pass

    with ThreadPoolExecutor(1) as pool:
        with exclusive(path, timeout=0, clock=SystemClock(), what="it"):
            waiting = pool.submit(wait, 1e9)
            assert waited.wait(60)
            with pytest.raises(LockedError, match="is busy in another thread of this process, and 2 s of waiting"):
                wait(2)
        waiting.result(60)
    assert caplog.messages == []


def test_the_holder_of_a_file_with_the_same_number_on_another_file_system_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    with mounted("tmpfs", tmp_path / "ours") as ours, mounted("tmpfs", tmp_path / "theirs") as theirs:
        holder = hold(bytes(theirs / "lock"))
        with exclusive(bytes(ours / "lock"), timeout=0, clock=SystemClock(), what="it"):
            assert os.stat(ours / "lock").st_ino == os.stat(theirs / "lock").st_ino
            for directory, process in ((ours, os.getpid()), (theirs, holder.pid)):
                with open(directory / "lock", "rb") as file:
                    assert holder_of(file.fileno()) == process
        holder.communicate()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError), exclusive(bytes(tmp_path / "lock"), timeout=0, clock=ManualClock(), what="it"):
        pass
    assert (tmp_path / "victim").read_text() == "mine"
