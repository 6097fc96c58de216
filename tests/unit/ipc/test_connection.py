"""The end of a private socket that waits: for how long, and what it says of another process that is gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator

import pytest

from holdfast.ipc import messages
from holdfast.ipc.connection import Connection
from holdfast.model.errors import FormatError, NotFoundError
from holdfast.testing.clocks import ManualClock


@pytest.fixture(name="ends")
def _ends() -> Generator[tuple[Connection, socket.socket]]:
    ours, its = socket.socketpair()
    with Connection(ours, 1 << 22) as connection, its:
        its.settimeout(20)
        yield connection, its


def answering(its: socket.socket, act: Callable[[], object]) -> threading.Thread:
    """Once there is a request, ``act``."""

    def wait() -> None:
        its.recv(1, socket.MSG_PEEK)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_request_gets_its_answer_however_long_both_are(ends: tuple[Connection, socket.socket]) -> None:
    connection, its = ends
    long = os.urandom(1 << 22)

    def answer() -> None:
        with Connection(its.dup()) as other:
            other.send(other.receive())

    thread = answering(its, answer)
    assert connection.ask(long) == long
    thread.join()
    thread = answering(its, answer)
    assert connection.ask(b"", seconds=20) == b""
    thread.join()


def test_descriptors_come_with_the_request(ends: tuple[Connection, socket.socket]) -> None:
    connection, its = ends
    found: list[str] = []

    def answer() -> None:
        _, descriptors, _, _ = socket.recv_fds(its, 100, 2)
        for fd in descriptors:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.close(fd)
        its.sendall(messages.frame(b"x"))

    thread = answering(its, answer)
    with open(os.devnull) as file:
        assert connection.ask(b"body", [file.fileno()] * 2) == b"x"
        assert file.fileno() >= 0
    thread.join()
    assert found == [os.devnull] * 2


def test_the_peer_is_known_after_the_end_too(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    connection.close()
    connection.close()
    assert connection.peer == (os.getpid(), os.geteuid())


def test_no_answer_in_time(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    with pytest.raises(TimeoutError):
        connection.ask(b"x", seconds=0.01)
    assert connection.fileno() < 0
    with pytest.raises(ConnectionError):
        connection.ask(b"x", seconds=0.01)


def test_an_answer_that_comes_byte_by_byte_gets_no_more_time() -> None:
    ours, its = socket.socketpair()
    clock = ManualClock()

    def monotonic() -> float:
        clock.advance(1)
        its.send(b"H")
        return clock.monotonic()

    with its, Connection(ours, monotonic=monotonic) as connection, pytest.raises(TimeoutError):
        connection.ask(b"x", seconds=5)


def test_a_request_that_is_not_taken_has_its_time() -> None:
    ours, its = socket.socketpair()
    with its, Connection(ours) as connection, pytest.raises(TimeoutError):
        connection.ask(b"x" * (1 << 24), seconds=0.05)


@pytest.mark.parametrize("before", [b"", messages.frame(b"answer")[:5], messages.frame(b"answer")[:-1]])
def test_a_process_that_ends_before_it_has_answered(ends: tuple[Connection, socket.socket], before: bytes) -> None:
    connection, its = ends
    its.sendall(before)
    its.close()
    with pytest.raises(ConnectionError):
        connection.ask(b"x")
    assert connection.fileno() < 0


def test_a_process_that_hangs_up_may_say_why(ends: tuple[Connection, socket.socket]) -> None:
    connection, its = ends
    its.sendall(messages.frame(messages.encode_error(NotFoundError("it ends"))))
    its.close()
    with pytest.raises(NotFoundError, match="it ends"):
        messages.decode_result(connection.ask(b"x"))


@pytest.mark.parametrize("said", [b'{"ok": true}\n', messages.frame(b"x" * ((1 << 22) + 1))[:100]])
def test_an_answer_of_another_protocol_or_without_end(ends: tuple[Connection, socket.socket], said: bytes) -> None:
    connection, its = ends
    its.sendall(said)
    with pytest.raises(FormatError):
        connection.ask(b"x")
    assert connection.fileno() < 0


def test_waiting_for_the_end(ends: tuple[Connection, socket.socket]) -> None:
    connection, its = ends
    its.sendall(b"more")
    with pytest.raises(TimeoutError):
        connection.wait_for_end(0.01)
    its.close()
    connection.wait_for_end(20)
    connection.wait_for_end()


def test_too_many_descriptors_are_no_end_of_the_other_process(ends: tuple[Connection, socket.socket]) -> None:
    """Nothing was sent: an answer would be waited for without end."""
    connection, _ = ends
    with open(os.devnull) as file, pytest.raises(ConnectionError):
        connection.ask(b"x", [file.fileno()] * 300)
