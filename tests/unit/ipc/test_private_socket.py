"""Private sockets: reached however long their path, and who is at the other end."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.ipc.listener import bind
from holdfast.ipc.private_socket import connect, peer_of, peer_process, receive, try_connect


@pytest.mark.parametrize("depth", [0, 40])
def test_a_socket_is_reached_however_long_its_path(tmp_path: Path, depth: int) -> None:
    folder = tmp_path / "/".join(["long"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    where = os.fsencode(folder)
    with pytest.raises(FileNotFoundError):
        connect(where, b"s")
    assert try_connect(where, b"s", 1) is None
    with bind(where, b"s") as bound:
        with pytest.raises(ConnectionRefusedError):
            connect(where, b"s")
        assert try_connect(where, b"s", 1) is None
        bound.listen(1)
        with connect(where, b"s") as ours:
            assert ours.gettimeout() is None
            assert peer_of(ours) == (os.getpid(), os.geteuid())
            assert peer_of(ours).may_speak
    found = try_connect(where, b"s", 1)
    assert found is None, "what a dead process has left"


def test_who_takes_no_client_in_is_not_waited_for(tmp_path: Path) -> None:
    where = os.fsencode(tmp_path)
    with bind(where, b"s") as bound:
        bound.listen(0)
        with connect(where, b"s"):
            assert try_connect(where, b"s", 0.01) is None


def test_of_a_process_that_has_ended_there_is_none(tmp_path: Path) -> None:
    where = os.fsencode(tmp_path)
    with bind(where, b"s") as bound:
        bound.listen(2)
        bound.setblocking(True)
        with connect(where, b"s"):
            accepted, _ = bound.accept()
            with accepted:
                process = peer_process(accepted)
                assert process is not None
                assert not select.select([process], [], [], 0)[0]
                os.close(process)
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, where + b"/s"], check=True)
        accepted, _ = bound.accept()
        with accepted:
            process = peer_process(accepted)
            if process is not None:  # a kernel before 6.5, where the number has come again; or one that tells it still
                os.close(process)


def test_descriptors_are_received_closed_on_exec() -> None:
    ours, its = socket.socketpair()
    with ours, its, open(os.devnull) as file:
        socket.send_fds(its, [b"body"], [file.fileno()] * 3)
        piece, found = receive(ours, 100, 2)
        assert (piece, len(found)) == (b"body", 2)
        assert not any(map(os.get_inheritable, found))
        for fd in found:
            os.close(fd)
        its.close()
        assert receive(ours, 100, 2) == (b"", [])
