"""A tree that is served over a pair of sockets, in the name of one step."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.bridge.p9.p9_server import P9Server
from holdfast.model.clock import SystemClock
from holdfast.testing.bridged import SingleStep
from holdfast.testing.p9_client import P9Client, Reply, decode_reply, encode_request
from holdfast.testing.tree_state import differences, photograph
from holdfast.undo.local_service.undo_service import LocalUndoService
from holdfast.undo.log import UndoLog
from holdfast.undo.recovery.keeper_recovery import recover
from holdfast.undo.safeguards.tickets import Safeguards
from holdfast.vfs.patience import LaterError
from holdfast.vfs.recorded.recorded_directory import RecordedDirectory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from holdfast.undo.journal.records import StepId
    from holdfast.vfs.file_system import FileSystem

LIMIT: Final = 30.0


class Line:
    """The client's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        self.socket = connection

    def send(self, kind: int, tag: int, *fields: Any) -> None:
        self.socket.sendall(encode_request(kind, tag, *fields))

    def receive(self) -> Reply:
        return decode_reply(self._frame())

    def exchange(self, frame: bytes) -> bytes:
        self.socket.sendall(frame)
        return self._frame()

    def is_hung_up_on(self) -> bool:
        """Whether the server hangs up, once all replies are read."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True

    def _frame(self) -> bytes:
        head = self._exactly(4)
        return head + self._exactly(struct.unpack("<I", head)[0] - 4)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the server has hung up")
            data += piece
        return bytes(data)


class Paused(SingleStep):
    """A host where nothing may change for a while."""

    def __init__(self, log: UndoLog, root_fd: int, step: StepId) -> None:
        super().__init__(log, root_fd, step)
        self.may_change = threading.Event()
        self.may_change.set()
        self.asked = threading.Semaphore(0)
        """Released each time that something was not allowed yet."""

    def step(self, tid: int, /) -> StepId:
        if not self.may_change.is_set():
            self.asked.release()
            raise LaterError
        return super().step(tid)


@contextmanager
def connected(file_system: FileSystem, msize: int = 1 << 16, **options: Any) -> Generator[tuple[Line, P9Client]]:
    """A server's client. At the end it hangs up, and nothing of the server is left."""
    ours, theirs = socket.socketpair()
    server = P9Server(theirs, file_system, **options)
    server.start()
    line = Line(ours)
    try:
        yield line, P9Client(line.exchange, msize)
    finally:
        ours.close()
        assert server.wait(LIMIT)


class RecordedTree:
    """A real directory, with its undo log."""

    def __init__(self, place: Path) -> None:
        self.path = place / "tree"
        self._root_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.before = photograph(self.path)
        safeguards = Safeguards(SystemClock())
        self._log = UndoLog(bytes(place / "log"), self._root_fd, SystemClock(), safeguards)
        recover(self._log)
        self.service = LocalUndoService(self._log, safeguards, intercepts=True)
        self._step = self.service.open("command")
        self.host = Paused(self._log, self._root_fd, self._step)
        self.directory = RecordedDirectory(self.host, self._log.preimages)
        self._log.writers = self.directory.objects.held_for_writing

    def note_state(self) -> None:
        """What the tree is now is what undo is to lead back to."""
        self.before = photograph(self.path)

    def known_nodes(self) -> int:
        return len(self.directory.objects.known_nodes())

    def undo(self) -> list[str]:
        """Undo all that was done; what is not as it was before."""
        self.service.close(self._step, 0)
        if self.service.steps():
            assert self.service.undo([self._step]).conflicts == ()
        return differences(self.before, photograph(self.path))

    def close(self) -> None:
        self.directory.close()
        self._log.close()
        os.close(self._root_fd)
