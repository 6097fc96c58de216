"""A process that makes system calls on command: by itself, or through the supervisor's handlers.

The same call made in both ways, in trees that are equal, must come out the same.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import pickle
import signal
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.supervisor.operations import HANDLERS
from holdfast.supervisor.syscalls.caller_access import CallerAccess, DirectAccess
from holdfast.supervisor.syscalls.pending_call import PendingCall, Reply

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from holdfast.supervisor.resolution.handler_context import HandlerContext
    from holdfast.supervisor.resolution.territory import ReadOnly
    from holdfast.undo.interceptor import Interceptor
    from holdfast.undo.journal.records import StepId

_ROOM = 1 << 16
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class StepSupervision:
    """A `HandlerContext` of one workspace in which everything belongs to one step."""

    def __init__(
        self,
        interceptor: Interceptor,
        root_fd: int,
        step: StepId,
        forbidden: tuple[int, ...] = (),
        read_only: tuple[ReadOnly, ...] = (),
        tree: Collection[int] = (),
    ) -> None:
        """``tree`` are the processes that belong to it, besides the caller."""
        self.interceptor = interceptor
        self.root_fd = root_fd
        self.forbidden = forbidden
        self.read_only = read_only
        self._tree = tree
        self._step = step

    def step(self, call: PendingCall) -> StepId:
        """See `HandlerContext.step`."""
        assert self.is_valid(call)
        return self._step

    def holds(self, tgid: int) -> bool:
        """See `HandlerContext.holds`."""
        return tgid in self._tree

    def is_valid(self, call: PendingCall) -> bool:
        """See `HandlerContext.is_valid`."""
        assert call
        return True

    def note_territory(self, root: bytes, borders: tuple[bytes, ...], fresh_ns: int) -> None:
        """See `HandlerContext.note_territory`."""


class Outcome(NamedTuple):
    """How a call came out."""

    value: int
    error: int
    native: bool = False


class ScriptedProcess:
    """The process. Arguments are numbers, or bytes, which lie in its memory while the call is made."""

    def __init__(self, directory: bytes) -> None:
        """It starts in ``directory``."""
        self._memory = mmap.mmap(-1, _ROOM)
        self._view = (ctypes.c_char * _ROOM).from_buffer(self._memory)
        self._address = ctypes.addressof(self._view)
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            try:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                self._socket.close()
                os.chdir(directory)
                _dance(other)
            finally:
                os._exit(0)
        other.close()
        self._nobody, parent = socket.socketpair()  # we are the parent, and have all its permissions
        self._reach = CallerAccess(parent, DirectAccess())
        self.run("getpid")  # it is where it should be as soon as it answers

    def __enter__(self) -> ScriptedProcess:
        """Return itself; leaving ends the process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._socket.close()
        self._nobody.close()
        self._reach.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def do(self, number: int, *arguments: int | bytes) -> Outcome:
        """Make the call with this number, natively, unsupervised."""
        return Outcome(*self._ask(("call", number, self._placed(arguments))))

    def run(self, name: str, *arguments: object) -> Any:
        """Call a function of `os` in the process."""
        return self._ask(("os", name, arguments))

    def take(self, fd: int) -> int:
        """Give the process a copy of our descriptor; returns its number there."""
        return self._ask(("take", True), fd)

    def supervised(self, world: HandlerContext, name: str, *arguments: int | bytes, patient: bool = False) -> Outcome:
        """Let the call ``name`` be carried out by its handler."""
        placed = [*self._placed(arguments), 0, 0, 0, 0, 0, 0][:6]
        registers = placed[0], placed[1], placed[2], placed[3], placed[4], placed[5]
        call = PendingCall(1, self.pid, name, registers, self._reach, patient)
        try:
            reply: Reply = HANDLERS[name](call, world)
        except OSError as error:
            return Outcome(-1, error.errno or 0)
        if reply.fd >= 0:
            got = self._ask(("take", reply.cloexec), reply.fd)
            os.close(reply.fd)
            return Outcome(got, 0)
        return Outcome(-1 if reply.error else reply.value, reply.error, reply.native)

    def _placed(self, arguments: tuple[int | bytes, ...]) -> list[int]:
        placed: list[int] = []
        at = 0
        for argument in arguments:
            if isinstance(argument, bytes):
                self._memory[at : at + len(argument) + 1] = argument + b"\0"
                placed.append(self._address + at)
                at += len(argument) + 64 & ~7
            else:
                placed.append(argument & (1 << 64) - 1)
        return placed

    def _ask(self, question: tuple[object, ...], fd: int = -1) -> Any:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
        self._socket.sendmsg([pickle.dumps(question)], passed)
        answer = pickle.loads(self._socket.recv(_ROOM))  # noqa: S301 - our own child wrote it
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _dance(orders: socket.socket) -> None:
    while True:
        data, passed, _, _ = orders.recvmsg(_ROOM, 64)
        if not data:
            return
        kind, *rest = pickle.loads(data)  # noqa: S301 - our own parent wrote it
        answer: object
        try:
            if kind == "call":
                number, arguments = rest
                value = _libc.syscall(ctypes.c_long(number), *(ctypes.c_uint64(argument) for argument in arguments))
                answer = (value, ctypes.get_errno() if value < 0 else 0)
            elif kind == "take":
                answer = array.array("i", passed[0][2])[0]
                os.set_inheritable(answer, not rest[0])
            else:
                name, arguments = rest
                answer = getattr(os, name)(*arguments)
        except OSError as error:
            answer = error
        orders.send(pickle.dumps(answer))
