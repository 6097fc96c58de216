"""What starts the commands of a session, asked as its holder does; outside of any tree."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.processes.helper_process import program_words
from holdfast.sandbox import command_starter

from ...waiting import wait_until


def connected(channel: socket.socket) -> socket.socket:
    own, other = socket.socketpair()
    with other:
        socket.send_fds(channel, [b"\0"], [other.fileno()])
    own.settimeout(20)
    return own


class Talk:
    """A connection to a starter."""

    def __init__(self, channel: socket.socket) -> None:
        self.connection = connected(channel)
        self.answers = self.connection.makefile("rb")
        assert self.answer() == {"ready": 1}

    def send(self, body: bytes, streams: list[int] | None = None, length: int | None = None) -> None:
        given = [] if streams is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        self.connection.sendmsg([struct.pack(">I", len(body) if length is None else length)], given)
        with suppress(BrokenPipeError):  # it may have had enough
            self.connection.sendall(body)

    def ask(self, words: list[str], streams: list[int], directory: str = "/", **environment: str) -> dict[str, int]:
        asked = {"words": words, "directory": directory, "environment": environment, "umask": 0o027}
        self.send(json.dumps(asked).encode(), streams)
        return self.answer()

    def answer(self) -> dict[str, int]:
        line = self.answers.readline()
        return json.loads(line) if line else {}

    def close(self) -> None:
        self.answers.close()
        self.connection.close()


@pytest.fixture
def channels() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, and that of a starter."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


Channels = tuple[socket.socket, socket.socket]


def started(words: list[str], channels: Channels) -> subprocess.Popen[bytes]:
    with channels[1] as theirs:
        return subprocess.Popen([*words, str(theirs.fileno())], pass_fds=[theirs.fileno()])


@pytest.fixture
def starter(channels: Channels) -> Iterator[subprocess.Popen[bytes]]:
    with started(program_words(command_starter.__file__), channels) as process:
        yield process
        process.kill()


@pytest.fixture
def talk(starter: subprocess.Popen[bytes], channels: Channels) -> Iterator[Callable[[], Talk]]:
    with ExitStack() as stack:

        def begin() -> Talk:
            found = Talk(channels[0])
            stack.callback(found.close)
            return found

        yield begin


@pytest.fixture
def streams() -> Iterator[list[int]]:
    null = os.open(os.devnull, os.O_RDWR)
    yield [null, null, null]
    os.close(null)


def test_a_command_has_the_streams_that_come_with_it(talk: Callable[[], Talk], tmp_path: Path) -> None:
    with (tmp_path / "in").open("wb+") as given, (tmp_path / "out").open("wb+") as out:
        given.write(b"given\n")
        given.seek(0)
        one = talk()
        script = "cat; pwd; echo $A $$; umask; ls /proc/self/fd; exit 7"
        said = one.ask(
            ["/bin/sh", "-c", script], [given.fileno(), out.fileno(), out.fileno()], str(tmp_path), A="\udce9"
        )
        assert os.waitstatus_to_exitcode(one.answer()["status"]) == 7
        out.seek(0)
        lines = out.read().splitlines()
    assert lines[:3] == [b"given", os.fsencode(tmp_path), b"\xe9 %d" % said["pid"]]
    assert lines[3] == b"0027"
    assert lines[4:] == [b"0", b"1", b"2", b"3"], "3 is what they are listed by"


def leave(talk: Talk) -> dict[str, int]:
    talk.send(b'{"leave": true}')
    return talk.answer()


def test_it_ends_with_the_last_who_needs_it(
    starter: subprocess.Popen[bytes], talk: Callable[[], Talk], streams: list[int], tmp_path: Path
) -> None:
    keeps, asks = talk(), talk()
    assert os.waitstatus_to_exitcode((asks.ask(["/bin/true"], streams) and asks.answer())["status"]) == 0
    assert leave(keeps) == {"stays": 1}, "the other one is there"
    asks.close()
    assert leave(keeps) == {"stays": 0}
    os.mkfifo(tmp_path / "go")
    asks = talk()
    asks.ask(["/bin/sh", "-c", f"read line < {tmp_path}/go"], streams)
    asks.close()
    assert leave(keeps) == {"stays": 1}, "a command runs"
    keeps.close()
    late = talk()
    (tmp_path / "go").write_text("on\n")
    late.close()
    assert starter.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "directory", "error"), [(["/no/such"], "/", 2), (["/etc/passwd"], "/", 13), (["/bin/true"], "/no", 2)]
)
def test_what_cannot_be_started_is_said(
    talk: Callable[[], Talk], streams: list[int], words: list[str], directory: str, error: int
) -> None:
    one = talk()
    assert one.ask(words, streams, directory) == {"error": error}
    assert "pid" in one.ask(["/bin/true"], streams), "and another command may be asked for"


def test_a_signal_that_ends_a_command_is_told(talk: Callable[[], Talk], streams: list[int]) -> None:
    one = talk()
    os.killpg(one.ask(["/bin/sleep", "1000"], streams)["pid"], signal.SIGTERM)
    assert os.waitstatus_to_exitcode(one.answer()["status"]) == -signal.SIGTERM


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"words": 1, "directory": "/", "environment": {}, "umask": 18}',
        b'{"words": ["/bin/true"], "directory": null, "environment": {}, "umask": 18}',
        b'{"words": ["a\\u0000b"], "directory": "/", "environment": {}, "umask": 18}',
        b'{"words": ["/bin/true"], "directory": "/", "environment": {"a=b\\u0000": "c"}, "umask": 18}',
        b'{"words": ["/bin/true"], "directory": "/", "environment": {}, "umask": "x"}',
        b'{"words": [], "directory": "/", "environment": {}, "umask": 18}',
    ],
)
def test_garbage_costs_its_connection_at_most(
    starter: subprocess.Popen[bytes], talk: Callable[[], Talk], streams: list[int], asked: bytes
) -> None:
    keeps, bad = talk(), talk()
    bad.send(asked, streams)
    answer: dict[str, Any] = bad.answer()
    assert answer == {} or "error" in answer
    other = talk()
    assert "pid" in other.ask(["/bin/true"], streams)
    assert starter.poll() is None
    keeps.close()


def test_requests_that_are_cut_short_too_long_or_without_streams(
    starter: subprocess.Popen[bytes], talk: Callable[[], Talk], streams: list[int]
) -> None:
    keeps = talk()
    before = len(os.listdir(f"/proc/{starter.pid}/fd"))
    cut, long, without, many = talk(), talk(), talk(), talk()
    cut.send(b"{", streams, length=1000)
    cut.connection.shutdown(socket.SHUT_WR)
    long.send(b"", streams, length=command_starter.MAX_REQUEST_BYTES + 1)
    without.send(b'{"words": ["/bin/true"], "directory": "/", "environment": {}, "umask": 18}')
    many.send(b'{"words": ["/bin/true"], "directory": "/", "environment": {}, "umask": 18}', streams * 2)
    assert (cut.answer(), long.answer()) == ({}, {})
    assert "error" in without.answer()
    many.answer()
    for one in (cut, long, without, many):
        one.close()
    wait_until(lambda: len(os.listdir(f"/proc/{starter.pid}/fd")) == before, "what came to be closed")
    assert "pid" in talk().ask(["/bin/true"], streams)
    keeps.close()


def test_it_waits_for_a_request_no_longer_than_it_says(channels: Channels, streams: list[int]) -> None:
    """One that comes byte by byte does not hold up the others for ever."""
    code = "import sys; from holdfast.sandbox import command_starter as it; it.SECONDS = 1.0; it.main(int(sys.argv[1]))"
    with started([sys.executable, "-c", code], channels) as process:
        try:
            slow, other = Talk(channels[0]), Talk(channels[0])
            slow.send(b"", length=1000)

            def is_hung_up_on() -> bool:
                try:
                    slow.connection.send(b" ")
                except OSError:
                    return True
                return False

            wait_until(is_hung_up_on)
            assert "pid" in other.ask(["/bin/true"], streams)
            for one in (slow, other):
                one.close()
        finally:
            process.kill()


def test_connections_beyond_what_anyone_needs_are_hung_up_on(
    starter: subprocess.Popen[bytes], talk: Callable[[], Talk], streams: list[int], channels: Channels
) -> None:
    """Those that are there have descriptors left for their commands."""
    keeps = talk()
    with ExitStack() as stack:
        for _ in range(command_starter.MAX_CLIENTS - 1):
            talk()
        for _ in range(10):
            assert stack.enter_context(connected(channels[0])).recv(1) == b""
    assert "pid" in keeps.ask(["/bin/true"], streams)
    assert starter.poll() is None


def test_one_that_is_never_asked_ends(channels: Channels) -> None:
    """What has started it was killed before it asked for anything."""
    process = started(program_words(command_starter.__file__), channels)
    channels[0].close()
    assert process.wait(60) == 0


def test_it_goes_on_when_nothing_can_connect_any_more(
    starter: subprocess.Popen[bytes], talk: Callable[[], Talk], channels: Channels, streams: list[int]
) -> None:
    one = talk()
    channels[0].close()
    assert "pid" in one.ask(["/bin/true"], streams)
    one.close()
    assert starter.wait(20) == 0
