"""The keeper's access to a tree's processes: their memory, their descriptors, and stopping them.

It is direct where the kernel permits it. Where Yama does not (with ``kernel.yama.ptrace_scope`` 1 a process may only
trace its descendants, or read their memory), the keeper asks the parent of the tree, which is the ancestor of all its
processes as long as it lives (`holdfast.supervisor.launch._caller_access_server`). Each read is a new request: a kept
descriptor of ``/proc/PID/mem`` would not show that a process executes another program.

A request is one message on a ``SOCK_SEQPACKET``, with a number that its answer begins with. Sources: ptrace(2), "Ptrace
access mode checking"; ``Documentation/admin-guide/LSM/Yama.rst``.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.supervisor.process_tree.process_freezer import ProcessFreezer
from holdfast.supervisor.syscalls.caller_memory import peek
from holdfast.supervisor.syscalls.pending_call import SlowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.supervisor.syscalls.pending_call import PendingCall

# Not `holdfast.ipc`: a waiting call waits for each of these, so they must cost no more than two messages.
REQUEST: Final = struct.Struct("=IIiQI")
"""The number of the request, its kind, the thread, and two arguments, unsigned."""
MEMORY, DESCRIPTOR, FREEZER = range(3)
"""The kinds of requests: bytes (address, size), a copy of a descriptor (its number), and a socket: processes whose
numbers (`NUMBER`) are sent there are stopped until it is closed.
"""
ANSWER: Final = struct.Struct("=Ii")
"""The number of the request, and the errno; the bytes follow, the descriptor comes with it."""
NUMBER: Final = "i"
MOST_NUMBERS: Final = 1000
"""In one message."""

_ANSWER_BYTES = ANSWER.size + 4096
_PATIENCE_SECONDS = 0.05
"""How long other calls wait for a parent that does not answer: it may be stopped."""
_DESCRIPTOR = struct.Struct("=i")
_TIMEVAL = struct.Struct("@ll")
SYS_PIDFD_GETFD = 438
_PIDFD_THREAD = os.O_EXCL

_libc = ctypes.CDLL(None, use_errno=True)


class Freezer(Protocol):
    """Processes that are stopped until `release`; see `ProcessFreezer`."""

    def add(self, processes: Sequence[int]) -> None:
        """Stop these, with all their threads, in a moment; naming one again does nothing."""
        ...

    def release(self) -> None:
        """Let all go on, in a moment."""
        ...


class DirectAccess:
    """Whether the keeper has direct access to processes, as far as known: the same for all trees."""

    __slots__ = ("is_own",)

    def __init__(self) -> None:
        self.is_own = True


class CallerAccess:
    """The processes of one tree. For several threads at once."""

    def __init__(self, parent: socket.socket, permission: DirectAccess) -> None:
        """Take over the socket on which the parent of the tree answers."""
        seconds = int(_PATIENCE_SECONDS)
        patience = _TIMEVAL.pack(seconds, int((_PATIENCE_SECONDS - seconds) * 1_000_000))
        parent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._parent = parent
        self._permission = permission
        self._lock = threading.Lock()
        self._number = 0
        """Of the last request."""
        self._answered = 0
        """The request that was answered last."""
        self._is_late = False
        """The parent has let a call wait for too long, and has not answered since."""

    @property
    def is_own(self) -> bool:
        """Whether this process has direct access to the tree's processes, as far as known."""
        return self._permission.is_own

    def close(self) -> None:
        """Send no more requests. (A waiting thread still gets its answer, or notices the parent's end.)"""
        self._parent.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._parent.close()

    def memory(self, call: PendingCall, address: int, size: int) -> tuple[bytes | bytearray, int]:
        """`peek` at the memory of who calls. Raises also `SlowError`."""
        if self._permission.is_own:
            try:
                return peek(call.tid, address, size)
            except PermissionError:
                pass  # the keeper may not look; perhaps the parent may
        found = self._ask(call, MEMORY, call.tid, address, size)[0]
        self._permission.is_own = False
        return found, len(found)

    def descriptor(self, call: PendingCall, number: int) -> int:
        """`copy_descriptor`, from the thread that calls. Raises also `SlowError`."""
        if self._permission.is_own:
            try:
                return copy_descriptor(call.tid, number)
            except PermissionError:
                pass
        found = self._ask(call, DESCRIPTOR, call.tid, number & 0xFFFFFFFF)[1]
        self._permission.is_own = False
        return found

    def freezer(self) -> Freezer | None:
        """A means to stop processes of the tree; None if there is none at the moment. Does not wait long."""
        if self._permission.is_own:
            return ProcessFreezer()
        try:
            return _RemoteFreezer(socket.socket(fileno=self._ask(None, FREEZER)[1]))
        except (SlowError, OSError):
            return None

    def _ask(
        self, call: PendingCall | None, what: int, pid: int = 0, first: int = 0, second: int = 0
    ) -> tuple[bytes, int]:
        """Bytes or a descriptor. Raises `SlowError` where others wait, if the parent has not answered in time."""
        is_patient = call is not None and call.patient
        if not self._lock.acquire(timeout=-1 if is_patient else 0 if self._is_late else _PATIENCE_SECONDS):
            self._is_late = True
            raise SlowError
        try:
            if not is_patient:
                self._catch_up()
            self._number = self._number + 1 & 0xFFFFFFFF
            self._parent.send(REQUEST.pack(self._number, what, pid, first, second))
            while True:
                try:
                    error, found, descriptor = self._receive(wants_one=what != MEMORY)
                except BlockingIOError:
                    self._is_late = True
                    if not is_patient:
                        raise
                    continue
                if self._answered == self._number:
                    break
                # It answers an earlier request, whose thread did not wait for it.
                if descriptor >= 0:
                    os.close(descriptor)
        except BlockingIOError:
            raise SlowError from None
        except (BrokenPipeError, ConnectionResetError):
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
        finally:
            self._lock.release()
        if error:
            raise OSError(error, os.strerror(error))
        return found, descriptor

    def _catch_up(self) -> None:
        """Read answers that were not waited for. Raises `BlockingIOError` if one is not there yet."""
        while self._answered != self._number:
            self._receive(wants_one=False, flags=socket.MSG_DONTWAIT)

    def _receive(self, *, wants_one: bool, flags: int = 0) -> tuple[int, bytes, int]:
        """The next answer: its errno, bytes, and descriptor, which is closed at once if none is wanted."""
        descriptor = -1
        if wants_one:
            # Not `socket.recv_fds`, which ignores flags.
            room = socket.CMSG_SPACE(_DESCRIPTOR.size)
            answer, ancillary, _, _ = self._parent.recvmsg(_ANSWER_BYTES, room, flags | socket.MSG_CMSG_CLOEXEC)
            for _, _, data in ancillary:
                (descriptor,) = _DESCRIPTOR.unpack_from(data)
        else:
            answer = self._parent.recv(_ANSWER_BYTES, flags)
        if not answer:
            raise ConnectionResetError  # its tree is about to end, too
        self._answered, error = ANSWER.unpack_from(answer)
        self._is_late = False
        return error, answer[ANSWER.size :], descriptor


class _RemoteFreezer:
    """A `Freezer` where the parent is."""

    def __init__(self, parent: socket.socket) -> None:
        parent.setblocking(False)
        self._parent = parent

    def add(self, processes: Sequence[int]) -> None:
        """See `Freezer`."""
        try:
            for at in range(0, len(processes), MOST_NUMBERS):
                self._parent.send(array.array(NUMBER, processes[at : at + MOST_NUMBERS]))
        except OSError:
            pass  # it is stopped, and will be told again; or it has ended

    def release(self) -> None:
        """See `Freezer`."""
        self._parent.close()


def copy_descriptor(tid: int, number: int) -> int:
    """A copy, close-on-exec, of another thread's descriptor (pidfd_getfd(2)). Raises `OSError`.

    A thread may have descriptors of its own (``CLONE_FILES`` of unshare(2)). Before Linux 6.9 only those of a process's
    first thread can be copied: ESRCH for others.
    """
    owner = _open_thread(tid)
    found = _libc.syscall(SYS_PIDFD_GETFD, owner, number, 0)
    os.close(owner)
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return found


def _open_thread(tid: int) -> int:
    try:
        return os.pidfd_open(tid, _PIDFD_THREAD)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    try:
        return os.pidfd_open(tid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH)) from error  # as later kernels say of no first thread
