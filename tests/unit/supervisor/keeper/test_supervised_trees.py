"""Trees that join and go, with real processes, in a keeper that serves nobody yet."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from holdfast.ipc.server import Client, Server
from holdfast.model.clock import SystemClock
from holdfast.supervisor.confinement.seccomp_notify import give_up_privileges, install
from holdfast.supervisor.confinement.seccomp_program import program
from holdfast.supervisor.control.keeper_port import JoinRequest
from holdfast.supervisor.keeper.keeper import Keeper
from holdfast.supervisor.keeper.keeper_settings import KeeperSettings
from holdfast.undo.service import OFF


def agent(its: socket.socket, ours: socket.socket) -> int:
    """A filtered process that sends its listener and waits until it is told to end, or nobody is there to do it."""
    if pid := os.fork():
        return pid
    ours.close()
    try:
        give_up_privileges()
        listener = install(program(os.uname().machine))
        socket.send_fds(its, [b"x"], [listener])
        os.close(listener)
        its.recv(1)
    finally:
        os._exit(0)


def test_who_was_of_a_tree_is_until_all_that_it_did_has_been_noticed(tmp_path: Path) -> None:
    """I8: the listener ends first, then files are closed, then it is heard of that they were written to."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "log").mkdir()
    keeper = Keeper(
        KeeperSettings(root=os.fsencode(tmp_path / "tree"), log=os.fsencode(tmp_path / "log"), forbidden=())
    )
    runs = keeper._runs
    ours, its = socket.socketpair()
    pid = agent(its, ours)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    parent, others = socket.socketpair()
    server = Server(os.fsencode(tmp_path), b"socket", SystemClock(), lambda _client, _body: None)
    client = Client(server, ours)
    (tmp_path / "kept").mkdir()
    kept = os.open(tmp_path / "kept", os.O_PATH)
    client.descriptors = [*fds, parent.detach(), kept]
    runs.join(client, JoinRequest("r", pid, False, (b"agent",), b"/", 1, OFF, "filter"))
    (tree,) = runs.trees.values()
    assert os.readlink(f"/proc/self/fd/{kept}") == str(tmp_path / "kept")

    runs.tree_ended(tree)
    assert not os.path.lexists(f"/proc/self/fd/{kept}")
    assert tree.read_only[0].paths() == (os.fsencode(tmp_path / "kept"),) * 2  # for who is not done yet
    assert runs.is_inside(pid)
    assert runs.ended_trees() == ()
    ours.send(b"x")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie, with a name and a parent
    for fd, _ in keeper._epoll.poll(20):
        if runs.watches(fd):
            runs.ended(fd)
    assert runs.is_inside(pid)
    assert not runs.holds(os.getpid())  # whoever looked after it may speak for itself again
    assert runs.ended_trees() == (tree,)
    runs.forget_ended(runs.ended_trees())
    assert not runs.is_inside(pid)
    assert runs.ended_trees() == ()

    os.waitpid(pid, 0)
    keeper.stop()
    keeper.serve()
    server.close()
    server.hang_up()
    for each in (ours, its, others):
        each.close()
