"""What the keeper gets through the parent of a tree, and that a parent that does not answer holds nobody else up."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Generator

import pytest

from holdfast.supervisor.launch._caller_access_server import begin_serving
from holdfast.supervisor.syscalls.caller_access import (
    ANSWER,
    DESCRIPTOR,
    MEMORY,
    REQUEST,
    CallerAccess,
    DirectAccess,
    Freezer,
)
from holdfast.supervisor.syscalls.caller_memory import read
from holdfast.supervisor.syscalls.pending_call import PendingCall, SlowError

CONTENT = ctypes.create_string_buffer(b"content")
ADDRESS = ctypes.addressof(CONTENT)


def blind() -> DirectAccess:
    permission = DirectAccess()
    permission.is_own = False
    return permission


def call(reach: CallerAccess, *, patient: bool = False, tid: int = 0) -> PendingCall:
    """One of this process; ``patient`` if it has to come out well, however busy the machine is."""
    return PendingCall(1, tid or os.getpid(), "open", (0, 0, 0, 0, 0, 0), reach, patient)


@pytest.fixture(name="reach")
def _reach() -> Generator[CallerAccess]:
    """Through what the parent of a tree runs."""
    reach = CallerAccess(begin_serving(), blind())
    yield reach
    reach.close()


@pytest.fixture(name="parent")
def _parent() -> Generator[tuple[CallerAccess, socket.socket]]:
    """With a parent that answers what the test says, and when."""
    its, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reach = CallerAccess(its, blind())
    with ours:
        yield reach, ours
    reach.close()


def asked(parent: socket.socket) -> tuple[int, ...]:
    return REQUEST.unpack(parent.recv(REQUEST.size))


def test_a_descriptor_is_the_same_open_file(reach: CallerAccess) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        got = reach.descriptor(call(reach, patient=True), theirs.fileno())
        with socket.socket(fileno=got) as copy:
            assert not copy.get_inheritable()
            ours.send(b"word")
            assert copy.recv(4) == b"word"


def test_what_fails_there_fails_here(reach: CallerAccess) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(ProcessLookupError):
        read(call(reach, patient=True, tid=ended.pid), ADDRESS, 1)
    with pytest.raises(ProcessLookupError):
        reach.descriptor(call(reach, patient=True, tid=ended.pid), 0)
    for number in (1 << 20, -1):
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            reach.descriptor(call(reach, patient=True), number)
    assert read(call(reach, patient=True), ADDRESS, 7) == b"content"


def test_a_parent_that_is_gone_is_an_error_of_the_call(parent: tuple[CallerAccess, socket.socket]) -> None:
    reach, theirs = parent
    theirs.close()
    for patient in (False, True):
        with pytest.raises(ProcessLookupError):
            read(call(reach, patient=patient), ADDRESS, 1)
    assert reach.freezer() is None


def test_while_a_parent_does_not_answer_only_who_has_time_waits(parent: tuple[CallerAccess, socket.socket]) -> None:
    reach, theirs = parent
    with pytest.raises(SlowError):
        reach.descriptor(call(reach, tid=5), 6)
    number, what, pid, first, _ = asked(theirs)
    assert (what, pid, first) == (DESCRIPTOR, 5, 6)
    with pytest.raises(SlowError):
        read(call(reach), ADDRESS, 7)
    assert reach.freezer() is None
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(read(call(reach, patient=True), ADDRESS, 7)))
    waiting.start()
    later, what, _, address, size = asked(theirs)  # nothing was asked in between
    assert (what, address, size) == (MEMORY, ADDRESS, 7)
    # What comes too late is nobody's.
    ours, sent = socket.socketpair()
    with ours:
        with sent:
            socket.send_fds(theirs, [ANSWER.pack(number, 0)], [sent.fileno()])
        theirs.send(ANSWER.pack(later, 0) + b"answer!")
        waiting.join(20)
        assert found == [b"answer!"]
        assert ours.recv(1) == b""
    # From then on, others ask again.
    theirs.send(ANSWER.pack(later + 1, 0) + b"more...")
    assert read(call(reach), ADDRESS, 7) == b"more..."


def test_who_has_no_time_asks_again_when_the_parent_has_caught_up(parent: tuple[CallerAccess, socket.socket]) -> None:
    """Else nothing of a step that waits as a whole would ever be stopped."""
    reach, theirs = parent
    for _ in range(2):
        assert reach.freezer() is None
    number = asked(theirs)[0]
    with socket.socket() as one:
        for late in range(2):
            socket.send_fds(theirs, [ANSWER.pack(number + late, 0)], [one.fileno()])
    freezer = reach.freezer()
    assert freezer is not None
    freezer.release()


def test_who_is_not_let_by_itself_asks_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(tid: int, _address: int, _size: int) -> tuple[bytearray, int]:
        tried.append(tid)
        raise PermissionError(errno.EPERM, "Yama")

    monkeypatch.setattr("holdfast.supervisor.syscalls.caller_access.peek", refuse)
    permission = DirectAccess()
    reaches = [CallerAccess(begin_serving(), permission) for _ in range(2)]
    for reach in (*reaches, *reaches):
        assert read(call(reach, patient=True), ADDRESS, 7) == b"content"
    assert tried == [os.getpid()]
    for reach in reaches:
        reach.close()


def test_what_nobody_may_look_at_says_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_tgid: int, _number: int) -> int:
        raise PermissionError(errno.EPERM, "not dumpable")

    monkeypatch.setattr("holdfast.supervisor.syscalls.caller_access.copy_descriptor", refuse)
    permission = DirectAccess()
    its, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reach = CallerAccess(its, permission)
    with theirs:
        theirs.send(ANSWER.pack(1, errno.EPERM))
        with pytest.raises(PermissionError):
            reach.descriptor(call(reach), 6)
    assert permission.is_own
    reach.close()


def freezing(reach: CallerAccess) -> Freezer:
    """On a busy machine, not the first one may come in time."""
    while (freezer := reach.freezer()) is None:
        pass
    return freezer


def wait_for_state(pid: int, *states: bytes) -> None:
    while True:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b") ")[2][:1] in states:
                return


def test_who_is_stopped_by_its_own_parent_ends_as_that_one_waits_for(reach: CallerAccess) -> None:
    """The command is a child of what stops it; how it ended is the launcher's exit code."""
    command, other = (os.posix_spawnp("sleep", ["sleep", "1000"], os.environ) for _ in range(2))
    freezer = freezing(reach)
    freezer.add([command])
    wait_for_state(command, b"t")
    os.kill(command, signal.SIGKILL)
    wait_for_state(command, b"Z")
    # The tracer has looked after what it stopped, the one that has ended too, when it has stopped another.
    freezer.add([other])
    wait_for_state(other, b"t")
    freezer.add([other])
    assert os.waitpid(command, 0)[1] == signal.SIGKILL
    freezer.release()
    os.kill(other, signal.SIGKILL)
    while os.WIFSTOPPED(os.waitpid(other, 0)[1]):
        pass


def test_who_is_stopped_goes_on_when_it_is_let_go_or_nobody_is_left_to_let_it(reach: CallerAccess) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            freezer = freezing(reach)
            freezer.add([process.pid] * 2500)
            wait_for_state(process.pid, b"t")
            freezer.release()
            process.stdin.write(b"word")
            assert process.stdout.read(4) == b"word"
