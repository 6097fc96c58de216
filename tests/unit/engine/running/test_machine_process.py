"""What has commands run in a session's machine, with a real shim in the guest's place."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engine.running.machine_process import GuestCommands
from holdfast.engine.running.session_machine import GuestConnection
from holdfast.sandbox.channel import Channel, shim_command
from holdfast.sandbox.command_starter import Client

from ....processes import command_of
from ....waiting import wait_until


class Bench:
    def __init__(self, guest: GuestCommands) -> None:
        self.guest = guest
        self.connections: list[GuestConnection] = []

    def connection(self) -> GuestConnection:
        ours, its = socket.socketpair()
        threading.Thread(target=self.guest.attend, args=(Client(its),), daemon=True).start()
        made = GuestConnection(ours)
        self.connections.append(made)
        assert made.is_ready()
        return made


@pytest.fixture(name="over")
def _over() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture(name="bench")
def _bench(over: int) -> Iterator[Bench]:
    with subprocess.Popen(
        shim_command("--grace", "0.1"), stdin=-1, stdout=-1, bufsize=0, start_new_session=True
    ) as shim:
        assert shim.stdin is not None
        assert shim.stdout is not None
        with Channel(shim.stdout, shim.stdin) as channel:
            made = Bench(GuestCommands(channel, over))
            yield made
            for connection in made.connections:
                connection.close()


def runs(*words: str) -> bool:
    wanted = "".join(f"{word}\0" for word in words).encode()
    return any(command_of(int(each.name)) == wanted for each in Path("/proc").glob("[0-9]*"))


def start(connection: GuestConnection, script: str, stdin: bytes = b"") -> tuple[int, int]:
    """What can be read of its output, and of its standard error."""
    given, its_input = os.pipe()
    os.write(its_input, stdin)
    os.close(its_input)
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    assert connection.start([b"sh", b"-c", os.fsencode(script)], b"/", {}, (given, its_out, its_err))
    for fd in (given, its_out, its_err):
        os.close(fd)
    return out, err


def all_of(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()


def exit_code(connection: GuestConnection) -> int:
    said = connection.receive()
    assert said is not None
    return os.waitstatus_to_exitcode(said["status"])


def test_input_output_and_the_exit_code(bench: Bench) -> None:
    for _ in range(2):  # (each by a connection of its own)
        connection = bench.connection()
        out, err = start(connection, "cat; echo wrong >&2; exit 7", b"read")
        assert (all_of(out), all_of(err), exit_code(connection)) == (b"read", b"wrong\n", 7)


def test_a_signal_is_for_the_command_and_the_end_for_all_of_it(bench: Bench) -> None:
    connection = bench.connection()
    out, _ = start(connection, "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done")
    assert os.read(out, 6) == b"ready\n"
    connection.signal(2)
    assert (all_of(out), exit_code(connection)) == (b"caught\n", 3)
    connection = bench.connection()
    out, _ = start(connection, "trap '' TERM; sleep 8765432 & echo ready; wait; wait")
    assert os.read(out, 6) == b"ready\n"
    connection.signal(15)
    assert exit_code(connection) == 137
    wait_until(lambda: not runs("sleep", "8765432"))


def test_a_command_whose_client_is_gone_is_ended(bench: Bench) -> None:
    connection = bench.connection()
    start(connection, "exec sleep 8765433")
    wait_until(lambda: runs("sleep", "8765433"))
    connection.close()
    wait_until(lambda: not runs("sleep", "8765433"))
    out, _ = start(again := bench.connection(), "echo on")
    assert (all_of(out), exit_code(again)) == (b"on\n", 0)


def test_a_command_that_stops_itself_stops_nothing_else(bench: Bench, tmp_path: Path) -> None:
    connection = bench.connection()
    out, _ = start(connection, f"echo $$ > {tmp_path}/pid; echo ready; kill -STOP $$; echo on")
    assert os.read(out, 6) == b"ready\n"
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "T")
    other = bench.connection()
    assert exit_code_of(other, f"kill -CONT $(cat {tmp_path}/pid)") == 0
    assert (all_of(out), exit_code(connection)) == (b"on\n", 0)


def test_what_is_too_long_for_the_channel_is_refused(bench: Bench) -> None:
    connection = bench.connection()
    with pytest.raises(OSError, match=os.strerror(errno.E2BIG)):
        start(connection, "#" * (1 << 20))
    assert exit_code_of(connection, "exit 2") == 2


def exit_code_of(connection: GuestConnection, script: str) -> int:
    start(connection, script)
    return exit_code(connection)


def test_who_leaves_keeps_the_machine_and_who_stops_it_waits_for_its_end(bench: Bench, over: int) -> None:
    assert bench.connection().leave()
    connection = bench.connection()
    stopping = threading.Thread(target=connection.stop)
    stopping.start()
    wait_until(lambda: is_told(over))
    assert stopping.is_alive()
    (its,) = bench.guest.waiting
    bench.guest = None  # type: ignore[assignment]
    assert stopping.is_alive()
    os.close(its)
    stopping.join()


def is_told(over: int) -> bool:
    try:
        return os.eventfd_read(over) == 1
    except BlockingIOError:
        return False
