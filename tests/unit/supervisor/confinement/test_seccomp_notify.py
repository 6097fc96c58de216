"""The listener, on behalf of a child that is under a filter."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.supervisor.confinement.seccomp_notify import Listener, give_up_privileges, install
from holdfast.supervisor.confinement.seccomp_program import program

MACHINE = os.uname().machine


@contextmanager
def child(act: Callable[[], object]) -> Generator[tuple[Listener, int, int]]:
    """A filtered child that acts; what it says of the result can be read."""
    ours, its = socket.socketpair()
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        said = "no result"
        try:
            give_up_privileges()
            listener = install(program(MACHINE))
            socket.send_fds(its, [b"x"], [listener])
            os.close(listener)
            its.recv(1)
            said = repr(act())
        except OSError as error:
            said = errno.errorcode[error.errno or 0]
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    ours.send(b"g")
    listener = Listener(fds[0])
    try:
        yield listener, pid, reader
    finally:
        os.close(reader)
        ours.close()
        its.close()
        listener.close()
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # the test has waited for it


def said(reader: int) -> str:
    return os.read(reader, 1000).decode()


def test_a_value_an_error_and_a_descriptor_are_passed_on(tmp_path: Path) -> None:
    def act() -> object:
        os.rmdir("/never/there")
        with pytest.raises(OSError, match="never") as caught:
            os.rmdir("/never/there")
        fd = os.open("/never/there", os.O_WRONLY)
        os.write(fd, b"written")
        return caught.value.errno, os.get_inheritable(fd)

    with child(act) as (listener, pid, reader):
        first = listener.receive()
        assert first is not None
        assert first[1] == pid
        assert listener.is_valid(first[0])
        listener.answer(first[0], 0, 0)
        second = listener.receive()
        assert second is not None
        listener.answer(second[0], 0, errno.ENOTEMPTY)
        third = listener.receive()
        assert third is not None
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        number, error = listener.add(third[0], fd, cloexec=True)
        assert error == 0
        os.close(fd)
        listener.answer(third[0], number, 0)
        assert said(reader) == repr((errno.ENOTEMPTY, False))
    assert (tmp_path / "file").read_text() == "written"


def test_a_call_goes_on_in_the_kernel(tmp_path: Path) -> None:
    with child(lambda: os.mkdir(tmp_path / "made")) as (listener, _, reader):
        call = listener.receive()
        assert call is not None
        listener.go_on(call[0])
        assert said(reader) == "None"
    assert (tmp_path / "made").is_dir()


def test_answers_to_the_dead_are_dropped_and_the_end_is_seen() -> None:
    with child(lambda: os.mkdir("/never/there/x")) as (listener, pid, _):
        call = listener.receive()
        assert call is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not listener.is_valid(call[0])
        listener.answer(call[0], 0, 0)
        assert listener.add(call[0], 0, cloexec=True) == (0, errno.ENOENT)


def test_a_call_that_was_received_before_the_descriptor_was_closed_has_failed_by_that() -> None:
    with child(lambda: os.mkdir("/never/there")) as (listener, _, reader):
        call = listener.receive()
        assert call is not None
        listener.close()
        taken = os.open(os.devnull, os.O_RDONLY)
        assert taken == listener.fd, "the number is another file's by now"
        listener.refuse(call[0])
        assert said(reader) == "ENOSYS"
        os.close(taken)


def test_without_a_listener_calls_fail() -> None:
    ours, its = socket.socketpair()
    if not (pid := os.fork()):
        code = 1
        try:
            give_up_privileges()
            os.close(install(program(MACHINE)))
            os.mkdir("/never/there")
        except OSError as error:
            code = error.errno or 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    ours.close()
    its.close()
    assert os.waitstatus_to_exitcode(status) == errno.ENOSYS


def test_the_listener_hangs_up_with_the_last_of_the_tree() -> None:
    with child(lambda: None) as (listener, pid, reader):
        assert said(reader) == "None"
        end = listener.receive()
        assert end is not None
        listener.go_on(end[0])
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        poll = select.poll()
        poll.register(listener.fd, select.POLLIN)
        os.waitpid(pid, 0)
        assert poll.poll(5000) == [(listener.fd, select.POLLHUP)]
