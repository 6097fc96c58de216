"""The process that serves a mount when the command that asked for it has ended: one of its own, never a bare fork.

It is started early, so that it gets ready while the command sees to the rest, and is told on a socket what to mount:
one MessagePack object. There it says how that went, and nothing more; it ends when nothing is mounted any more.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.engine import fork_note
from holdfast.engine.detaching import open_log
from holdfast.engine.fork_serving import ServedFork
from holdfast.engine.modules import Outcome, failure, start
from holdfast.engine.mount import mount_checkpoint
from holdfast.engine.opening import Opener
from holdfast.model.errors import HoldfastError, NotFoundError, StorageError, unexpected
from holdfast.model.ids import CheckpointId
from holdfast.model.log import Level, arrange
from holdfast.model.loglines import Lines, send

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = b"mount.log"
_MOST_BYTES: Final = 1 << 20
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS: Final = 60.0
"""That a mount may take: the home may be slow."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to mount."""

    home: bytes
    root: bytes
    """Of the workspace."""
    directory: bytes
    """Where."""
    checkpoint: str = ""
    """Empty: the workspace is a fork, and is mounted itself."""
    allow_other: bool = False
    log_level: Level = "info"


class MountServer:
    """Such a process, that waits for its order. Use it as a context manager: without one it ends."""

    def __init__(self) -> None:
        """Start it. Raises `StorageError`."""
        ours, its = socket.socketpair()
        with its:
            try:
                self._process = start(__name__, its, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            except OSError as error:
                ours.close()
                raise StorageError(f"cannot start a process that serves the mount: {error.strerror}") from error
        self._socket = ours
        self.pid = self._process.pid

    def mount(self, order: Order) -> None:
        """Have it mount something and go on by itself. Returns when it is mounted; raises what went wrong."""
        self._socket.settimeout(_SECONDS)
        said = bytearray()
        try:
            self._socket.sendall(msgspec.msgpack.encode(order))
            self._socket.shutdown(socket.SHUT_WR)
            while (piece := self._socket.recv(_MOST_BYTES)) and len(said) < _MOST_BYTES:
                said += piece
        except TimeoutError:
            self._process.terminate()
            raise StorageError(f"nothing was mounted within {_SECONDS:g} s") from None
        except OSError:
            said.clear()
        try:
            outcome = msgspec.msgpack.decode(said, type=Outcome)
        except msgspec.MsgspecError:
            raise StorageError("the process that was to serve the mount has ended at once") from None
        if outcome.error is not None:
            raise outcome.error
        self._process.returncode = 0  # it is not ours to wait for any more, and to be warned about

    def __enter__(self) -> MountServer:
        """The process itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """It is without an order, or has failed: then it ends."""
        self._socket.close()
        self._process.wait()


def main(fd: int) -> None:
    """Be such a process: read an `Order` from the socket ``fd``, and serve until it is unmounted."""
    with socket.socket(fileno=fd) as starter:
        starter.set_inheritable(False)
        data = bytearray()
        while (piece := starter.recv(_MOST_BYTES)) and len(data) < _MOST_BYTES:
            data += piece
        if not data:
            return
        order = msgspec.msgpack.decode(data, type=Order)
        ready = _Ready(starter, order)
        opener = Opener(home=order.home, lenient=True)
        try:
            (_serve if order.checkpoint else _serve_fork)(opener, order, ready)
        except HoldfastError as error:
            ready.failed(error)
        except Exception as error:  # noqa: BLE001 - whoever waits is to hear of it
            ready.failed(unexpected(error))
        finally:
            opener.close()


class _Ready:
    """Tells the starter, once, how it went."""

    def __init__(self, starter: socket.socket, order: Order) -> None:
        self._starter = starter
        self._order = order

    def log_to(self, folder: bytes) -> None:
        """From now on what there is to say goes to the log in the workspace's folder."""
        log = open_log(folder, LOG)
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        level = self._order.log_level
        arrange(level, lambda: send(level, Lines(as_json=True)))

    def mounted(self) -> None:
        """It is mounted."""
        self._say(Outcome())

    def failed(self, error: HoldfastError) -> None:
        """It is not."""
        self._say(failure(error))

    def _say(self, outcome: Outcome) -> None:
        with suppress(OSError):  # whoever started it is gone, and asks no more
            self._starter.sendall(msgspec.msgpack.encode(outcome))
            self._starter.shutdown(socket.SHUT_RDWR)


def _serve(opener: Opener, order: Order, ready: _Ready) -> None:
    context = opener.open(order.root)
    ready.log_to(context.folder)
    checkpoint = CheckpointId(order.checkpoint)
    with mount_checkpoint(
        context, checkpoint, order.directory, home=order.home, allow_other=order.allow_other
    ) as mounted:
        _at_signals(mounted.end)
        ready.mounted()
        mounted.wait()


def _serve_fork(opener: Opener, order: Order, ready: _Ready) -> None:
    context = opener.open_fork(order.root)
    ready.log_to(context.folder)
    note = fork_note.read(context.folder)
    if note is None:
        raise NotFoundError("this is no fork by mount any more", code="no_fork")
    with ServedFork(context, note, order.directory) as served:
        _at_signals(served.try_to_end)
        ready.mounted()
        served.wait()


def _at_signals(end: Callable[[], None]) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda _number, _frame: end())


if __name__ == "__main__":
    main(int(sys.argv[1]))
