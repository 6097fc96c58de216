"""The keeper's socket by itself: no peer takes more of the keeper than its share, and who it is stays who it was."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.ipc import messages
from holdfast.ipc.port import encode_result
from holdfast.ipc.private_socket import address
from holdfast.ipc.server import Client
from holdfast.model.clock import SystemClock
from holdfast.model.errors import FormatError, HoldfastError, RefusedError
from holdfast.model.paths import KEEPER_SOCKET
from holdfast.supervisor.confinement import landlock
from holdfast.supervisor.control._unsupervised_proof import make_proof
from holdfast.supervisor.control.keeper_port import PORT
from holdfast.supervisor.control.keeper_server import LATER, KeeperServer
from holdfast.undo.journal.log_ownership import lock_log

needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


def request(method: str) -> bytes:
    return messages.frame(PORT.encode_request(method, []))


STEPS = request("steps")


class Served:
    """A socket whose keeper takes its time with ``steps``, and does all else at once."""

    def __init__(self, folder: bytes) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.waiting: list[Client] = []
        self.left: list[Client] = []
        self.insiders: set[int] = set()
        self.epoll = select.epoll()
        self.control = KeeperServer(
            folder, self.epoll, SystemClock(), self._perform, self.left.append, self.insiders.__contains__
        )

    def _perform(self, client: Client, method: str, _: tuple[Any, ...]) -> object:
        self.asked.append(method)
        if method != "steps":
            return 0
        self.waiting.append(client)
        return LATER

    def serve(self) -> None:
        """Do all that there is to do."""
        while ready := self.epoll.poll(0):
            for fd, _ in ready:
                assert self.control.owns(fd)
                self.control.serve(fd)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(20)
        with address(self.folder, KEEPER_SOCKET) as path:
            connection.connect(path)
        self.serve()
        return connection


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Generator[Served]:
    lock = lock_log(os.fsencode(tmp_path))
    served = Served(os.fsencode(tmp_path))
    yield served
    os.close(lock)
    served.control.close()
    served.epoll.close()


def answer(connection: socket.socket, method: str) -> Any:
    length = messages.body_bytes(connection.recv(messages.HEADER_BYTES, socket.MSG_WAITALL), 1 << 30)
    return PORT.decode_answer(method, connection.recv(length, socket.MSG_WAITALL))


def discards(served: Served, peer: socket.socket, proof: int | None = None) -> None:
    """Ask for what only those outside may, with the proof or with what is to pass for it."""
    with make_proof(served.folder) as own:
        socket.send_fds(peer, [request("discard")], own if proof is None else [proof])
    served.serve()
    answer(peer, "discard")


def test_who_waits_for_an_answer_is_not_heard(served: Served) -> None:
    with served.connect() as peer:
        peer.sendall(STEPS)
        served.serve()
        peer.sendall(STEPS)
        served.serve()
        assert served.asked == ["steps"]
        served.waiting[0].send(encode_result([]))
        served.serve()
        assert answer(peer, "steps") == []
        assert served.asked == ["steps"] * 2


def test_requests_in_advance_are_refused(served: Served) -> None:
    with served.connect() as peer:
        peer.sendall(STEPS * 100)
        served.serve()
        assert served.asked == []
        with pytest.raises(FormatError, match="before the last one was answered"):
            answer(peer, "steps")
        assert peer.recv(1) == b""
        assert len(served.left) == 1


def test_who_hangs_up_while_it_waits_is_let_go(served: Served) -> None:
    with served.connect() as peer:
        peer.sendall(STEPS)
        served.serve()
        assert served.left == []
    served.serve()
    assert served.left == served.waiting
    assert served.waiting[0].is_gone


CONNECTS = """
import socket, sys
taken = []
for _ in range(int(sys.argv[2])):
    taken.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    taken[-1].connect(sys.argv[1])
    print(flush=True)
sys.stdin.read()
"""


def test_a_tree_cannot_keep_those_outside_away(served: Served) -> None:
    with address(served.folder, KEEPER_SOCKET) as path:
        insider = subprocess.Popen(
            [sys.executable, "-c", CONNECTS, path, "70"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        served.insiders.add(insider.pid)
        with insider:
            assert insider.stdout is not None
            for _ in range(70):
                insider.stdout.readline()
                served.serve()
            with served.connect() as outside:
                discards(served, outside)
            insider.communicate()


def test_answers_that_a_tree_does_not_read_are_bounded_together(served: Served) -> None:
    """However many ask, and whatever; what is read or hung up makes room again, and nobody outside misses any."""
    long = encode_result(["x" * (30 << 20)])

    def asks(connection: socket.socket) -> list[str]:
        """Ask for the long answer, which is not read here; the code of the error if it is one."""
        connection.sendall(STEPS)
        served.serve()
        client = served.waiting.pop()
        client.send(long)
        served.serve()
        if len(client.outbox):
            return []
        with pytest.raises(HoldfastError) as refused:
            answer(connection, "forgotten")
        return [refused.value.code]

    with served.connect() as outside:
        assert asks(outside) == []
        served.insiders.add(os.getpid())
        inside = [served.connect() for _ in range(4)]
        assert [asks(each) for each in inside] == [[], [], ["too_long"], ["too_long"]]
        assert asks(inside[2]) == ["too_long"]
        left = len(messages.frame(long))
        while left:
            left -= len(inside[0].recv(left))
            served.serve()
        assert asks(inside[2]) == []
        assert asks(inside[0]) == ["too_long"]
        inside[1].close()
        served.serve()
        assert asks(inside[0]) == []
        for each in inside:
            each.close()
        served.serve()


HANDS_ON = """
import socket, sys
socket.socket(fileno=int(sys.argv[1])).connect(sys.argv[2])
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ends", ["before it is taken in", "later"])
def test_a_connection_whose_maker_has_ended_approves_nothing(served: Served, ends: str) -> None:
    """I9: its number may be that of a process outside by now, and the connection is in other hands."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        with address(served.folder, KEEPER_SOCKET) as path:
            maker = subprocess.Popen(
                [sys.executable, "-c", HANDS_ON, str(peer.fileno()), path],
                pass_fds=[peer.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert maker.stdout is not None
            maker.stdout.readline()
        if ends == "later":
            served.serve()
        maker.communicate()
        served.serve()
        with pytest.raises(RefusedError):
            discards(served, peer)
        assert served.asked == []


def test_who_was_inside_when_it_connected_stays_inside(served: Served) -> None:
    served.insiders.add(os.getpid())
    with served.connect() as inside:
        served.insiders.clear()
        with pytest.raises(RefusedError):
            discards(served, inside)
    with served.connect() as outside:
        discards(served, outside)
        served.insiders.add(os.getpid())
        with pytest.raises(RefusedError):
            discards(served, outside)
    assert served.asked == ["discard"]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("lock", os.O_RDONLY),
        ("lock", os.O_PATH),
        ("lock", os.O_PATH | os.O_RDWR),
        ("other", os.O_RDWR | os.O_CREAT),
        ("keeper", os.O_PATH),
        pytest.param("lock", os.O_WRONLY, marks=needs_landlock),
    ],
)
def test_what_does_not_show_that_its_bearer_is_outside_is_no_proof(served: Served, name: str, flags: int) -> None:
    """I9: these somebody inside could have as well."""
    fd = os.open(os.path.join(served.folder, os.fsencode(name)), flags, 0o600)
    with served.connect() as peer:
        with pytest.raises(RefusedError, match="supervised"):
            discards(served, peer, fd)
        discards(served, peer)  # and it is shown again each time
        peer.sendall(request("discard"))
        served.serve()
        with pytest.raises(RefusedError):
            answer(peer, "discard")
    os.close(fd)
    assert served.asked == ["discard"]
