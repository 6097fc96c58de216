"""Calls are received at once, whatever else goes on, and carried out one after the other."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor.confinement.seccomp_notify import Listener, give_up_privileges, install
from holdfast.supervisor.confinement.seccomp_program import program
from holdfast.supervisor.keeper._call_dispatcher import (
    DispatchLock,
    SupervisedTree,
    TreeDescriptors,
    handler_table,
    receive_calls,
)
from holdfast.supervisor.keeper._keeper_context import KeeperContext, ServedWorkspace
from holdfast.supervisor.process_tree.members import Processes, Run
from holdfast.supervisor.resolution.handler_context import HandlerContext
from holdfast.supervisor.syscalls.pending_call import PendingCall, Reply

from ....waiting import wait_until


class Counted(DispatchLock):
    """They count what was received."""

    received = 0

    def put(self, call: Callable[[], None]) -> None:
        """See `DispatchLock.put`."""
        self.received += 1
        super().put(call)


@pytest.fixture(name="selector")
def _selector() -> Generator[select.epoll]:
    with select.epoll() as selector:
        yield selector


def test_whoever_has_received_a_call_carries_it_out(selector: select.epoll) -> None:
    done: list[threading.Thread] = []
    turns = DispatchLock(lambda: False, selector)
    thread = threading.Thread(target=lambda: turns.put(lambda: done.append(threading.current_thread())))
    thread.start()
    thread.join(20)
    assert done == [thread]


def test_while_the_serving_thread_has_the_turn_nobody_waits_for_it(selector: select.epoll) -> None:
    done: list[threading.Thread] = []
    turns = DispatchLock(lambda: False, selector)
    with turns:
        thread = threading.Thread(target=lambda: turns.put(lambda: done.append(threading.current_thread())))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert done == []
        assert turns.has_calls
    assert done == [threading.current_thread()]


def test_what_is_quiet_or_has_ended_comes_first(selector: select.epoll) -> None:
    done: list[int] = []
    is_quiet = True
    turns = DispatchLock(lambda: is_quiet, selector)
    turns.put(lambda: done.append(1))
    assert not turns.has_calls
    is_quiet = False
    event = os.eventfd(1)
    selector.register(event, select.EPOLLIN)
    turns.put(lambda: done.append(2))
    assert done == []
    with turns:
        os.eventfd_read(event)
    assert done == [1, 2]
    os.close(event)


def test_all_calls_are_carried_out_and_never_two_at_once(selector: select.epoll) -> None:
    turns = DispatchLock(lambda: False, selector)
    busy, done, most = 0, 0, 0

    def call() -> None:
        nonlocal busy, done, most
        busy += 1
        most = max(most, busy)
        os.getppid()  # (the interpreter may go on with another thread here)
        busy -= 1
        done += 1

    threads = [threading.Thread(target=lambda: [turns.put(call) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or turns.has_calls:
        with turns:
            busy += 1
            most = max(most, busy)
            busy -= 1
    assert (done, most) == (2000, 1)


def test_a_call_that_comes_while_another_is_carried_out_is_not_interrupted(selector: select.epoll) -> None:
    """Natively, no signal interrupts it; the kernel sees to that as soon as the call is received."""
    ours, its = socket.socketpair()
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        _call_twice(its, writer)
    os.close(writer)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    listener = Listener(fds[0])
    begun, goes_on = threading.Event(), threading.Event()

    def rmdir(call: PendingCall, world: HandlerContext) -> Reply:
        begun.set()
        assert goes_on.wait(60)
        return Reply(error=errno.ENOTEMPTY)

    nothing: Any = None
    calls = handler_table(os.uname().machine, {"rmdir": rmdir, "unlinkat": rmdir})
    processes = Processes(lambda fd: None)
    keeper = KeeperContext(ServedWorkspace(-1, (), nothing, nothing), *[nothing] * 6)
    tree = SupervisedTree(keeper, Run("r", pid), TreeDescriptors(listener, nothing), processes, calls, lambda *_: None)
    turns = Counted(lambda: False, selector)
    receive_calls(tree, turns, lambda: None)
    ours.send(b"g")
    assert begun.wait(60)
    (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    try:
        ours.send(b"g")
        wait_until(lambda: turns.received == 2, "the second call")
        os.kill(child, signal.SIGUSR1)
        goes_on.set()
        assert os.read(reader, 100) == b"ENOTEMPTY"
    finally:
        goes_on.set()
        os.waitpid(pid, 0)
        listener.close()
        os.close(reader)
        ours.close()
        its.close()


def _call_twice(orders: socket.socket, result: int) -> None:
    """One process calls, and then its child, which says how that came out."""
    try:
        give_up_privileges()
        listener = install(program(os.uname().machine))
        socket.send_fds(orders, [b"x"], [listener])
        os.close(listener)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.siginterrupt(signal.SIGUSR1, True)
        orders.recv(1)
        if not (child := os.fork()):
            orders.recv(1)
            try:
                os.rmdir("/never/there")
            except OSError as error:
                os.write(result, errno.errorcode[error.errno or 0].encode())
            os._exit(0)
        try:
            os.rmdir("/never/there")
        except OSError:
            os.waitpid(child, 0)
    finally:
        os._exit(0)
