"""Serves a file system to one client that speaks 9P2000.L over a connected stream socket."""

from __future__ import annotations

import errno
import select
import signal
import socket
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast.bridge.p9._operations import Operations
from holdfast.bridge.p9.byte_range_locks import ByteRangeLocks
from holdfast.bridge.server.request_failures import errno_of_failure
from holdfast.bridge.server.request_threads import (
    AGAIN,
    PATIENCE_SECONDS,
    LapsedError,
    ServingThreads,
    SlowRequests,
)
from holdfast.model.errors import FormatError
from holdfast.model.log import Log
from holdfast.wire.p9.framing import FrameSplitter
from holdfast.wire.p9.protocol_constants import Type
from holdfast.wire.p9.session import Limits, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.bridge.p9._fids import Kept
    from holdfast.bridge.p9._operations import Answer
    from holdfast.vfs.file_system import FileSystem
    from holdfast.wire.p9.session import Actions, Buffer, Request

_LOG = Log(__name__)
_READ_BYTES: Final = 1 << 16
_MOST_PIECES: Final = 512
"""Of one sendmsg(2); the system takes 1,024."""
_SETTLE_SECONDS: Final = 0.0005
_LOOK_SECONDS: Final = 0.5
"""How often the client is checked while nothing is read from it."""
_TYPE_AT: Final = 4
"""The place of the type in a message."""
_MOST_UNSENT_BYTES: Final = 1 << 26
"""Of replies that a client does not take; until then its requests are read on."""
_NEVER_KEPT_BACK: Final = (Type.FLUSH, Type.VERSION)
"""May be received even at the limit of requests in flight: these need no room, and can make some."""
_LIMITS: Final = Limits(requests=64)
"""Each request in flight can have its own thread."""


class P9Server:
    """Serves one client until it hangs up, or `stop`. The client is not trusted.

    One thread reads and answers requests. Those that must wait, or sync to disk, have their own threads: others are
    answered meanwhile. Replies that a client does not take at once are sent by another thread, while requests are still
    read: QEMU takes nothing from a stream while it waits to write to it. In the end, nothing more is read from a client
    that takes no replies.
    """

    def __init__(
        self,
        connection: socket.socket,
        file_system: FileSystem,
        *,
        is_read_only: bool = False,
        uid: int | None = None,
        locks: ByteRangeLocks | None = None,
        own: ServingThreads | None = None,
        lapsed: Callable[[int], object] = lambda _ticket: None,
        limits: Limits = _LIMITS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``connection`` is the server's from now on; the file system stays the caller's.

        ``uid``: the user for a client that gives no user id; by default the owner of the root. All clients of one file
        system must share ``locks``. For ``own``, ``lapsed`` and ``patience`` see
        `holdfast.bridge.server.loop.FuseServer`.
        """
        connection.setblocking(True)
        self._connection = connection
        self._operations = Operations(file_system, locks or ByteRangeLocks(), is_read_only=is_read_only, uid=uid)
        self._session: Session[Kept] = Session(limits)
        self._splitter = FrameSplitter()
        self._lock = threading.Lock()
        """For each call of the session, and for sending its result."""
        self._room = threading.Condition(self._lock)
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        """While there are some, `_sender` sends them, and no other thread sends anything."""
        self._sender: threading.Thread | None = None
        self._own = own or ServingThreads()
        # (As many threads again may have answered and be about to end.)
        self._later = SlowRequests(self._own, lapsed, most=2 * limits.requests, patience=patience)
        self._thread = threading.Thread(target=self._serve, name="holdfast-9p", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        # Signals are for the threads that wait for them: a signal delivered here would wake none of them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, at most ``timeout`` seconds, until the client has hung up, or until `stop`; returns whether that
        happened, and no request is in progress.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive() and self._later.join(threading.TIMEOUT_MAX if timeout is None else timeout)

    def settle(self, timeout: float, waiting: Callable[[], int]) -> bool:
        """See `holdfast.bridge.server.loop.FuseServer.settle`."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self._lock:
                if not self._is_asked() and self._session.in_flight <= waiting():
                    return True
            time.sleep(_SETTLE_SECONDS)
        return False

    def stop(self, timeout: float = 10.0) -> bool:
        """Hang up. Returns whether all threads have ended: only then the file system may be closed.

        Harmless a second time.
        """
        self._hang_up()
        if self._thread.ident is None:
            self._connection.close()
        elif not self.wait(timeout):
            _LOG.warning("a request is still being worked on after %g s; it ends with this process", timeout)
            return False
        return True

    def _hang_up(self) -> None:
        # (This ends every wait: of a thread that reads, and of one that sends, which may hold the lock.)
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client was quicker
        self._later.end()

    # -- messages -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with self._own.registered():
                while data := self._connection.recv(_READ_BYTES):
                    for frame in self._splitter.split(data):
                        self._receive(frame)
        except FormatError as error:
            _LOG.warning("a client of a 9P server is hung up on: %s", error.message)
        except OSError:
            pass  # it has hung up
        except Exception:  # noqa: BLE001 - the client must not wait for answers that do not come
            _LOG.exception("serving a 9P client has failed; it is hung up on")
        finally:
            self._hang_up()
            with self._lock:
                actions = self._session.close()
                sender = self._sender
            if sender is not None:
                sender.join()
            with self._lock:
                self._connection.close()
            self._close(actions.gone)

    def _receive(self, frame: memoryview) -> None:
        with self._lock:
            while self._is_kept_back(frame[_TYPE_AT]):
                if not self._room.wait(_LOOK_SECONDS) and self._is_gone():
                    raise ConnectionResetError(errno.ECONNRESET, "the client has hung up")
            actions = self._session.receive(frame)
            self._splitter.limit = self._session.msize
            self._send(actions.output)
        self._close(actions.gone)
        if actions.request is not None:
            self._carry_out(actions.request)

    def _is_kept_back(self, kind: int) -> bool:
        """With the lock."""
        if self._unsent_bytes > _MOST_UNSENT_BYTES:
            return True
        return self._session.full and kind not in _NEVER_KEPT_BACK

    def _is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _is_asked(self) -> bool:
        """Whether there is a request that was not read yet; with the lock."""
        if self._connection.fileno() < 0:
            return False  # it has hung up
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))

    def _send(self, output: Sequence[Buffer]) -> None:
        """Send, unless the client has hung up; with the lock."""
        left = deque(memoryview(piece) for piece in output if piece)
        if not self._unsent_bytes:
            try:
                while left:
                    pieces = list(islice(left, _MOST_PIECES))
                    _take_off(left, self._connection.sendmsg(pieces, (), socket.MSG_DONTWAIT))
            except BlockingIOError:
                self._sender = threading.Thread(target=self._send_later, name="holdfast-9p-sender", daemon=True)
                self._sender.start()
            except OSError:
                # (The reading thread ends by that, and closes.)
                self._hang_up()
                return
        self._unsent += left
        self._unsent_bytes += sum(map(len, left))

    def _send_later(self) -> None:
        """Send what could not be sent at once, as the client takes it."""
        count = 0
        while True:
            with self._lock:
                _take_off(self._unsent, count)
                self._unsent_bytes -= count
                self._room.notify()
                if not self._unsent_bytes:
                    return
                pieces = list(islice(self._unsent, _MOST_PIECES))
            try:
                count = self._connection.sendmsg(pieces)
            except OSError:
                self._hang_up()
                return

    @staticmethod
    def _close(gone: Sequence[Kept]) -> None:
        for kept in gone:
            try:
                kept.close()
            except Exception:  # noqa: BLE001 - the others are to be closed as well
                _LOG.exception("what a 9P client had open could not be closed")

    # -- requests -------------------------------------------------------------------------------------------------

    def _carry_out(self, request: Request[Kept]) -> None:
        if request.type == Type.FSYNC:
            self._later.do(lambda: self._carry_out_later(request))
            return
        try:
            answer = self._perform(request)
        except AGAIN:
            self._later.do(lambda: self._carry_out_later(request))
            return
        self._finish(request, answer)

    def _carry_out_later(self, request: Request[Kept]) -> None:
        try:
            answer = self._later.ask_again(lambda: self._perform(request), lambda _ticket: request.interrupted)
        except LapsedError as error:
            # Nothing has happened: an interrupted request gets no answer.
            answer = None if request.interrupted else error.errno or errno.EPERM
        self._finish(request, answer)

    def _perform(self, request: Request[Kept]) -> Answer | int:
        """The answer to a request, or an errno, whatever happens; raises only the errors that ask for a retry."""
        try:
            return self._operations.perform(request)
        except AGAIN:
            raise
        except Exception as error:  # noqa: BLE001 - one request fails, and the client is served on
            return errno_of_failure(error, Type(request.type).name)

    def _finish(self, request: Request[Kept], answer: Answer | int | None) -> None:
        """With an errno, or with None: as if it had never come."""
        actions: Actions[Kept]
        with self._lock:
            if answer is None:
                actions = self._session.abandon(request)
            elif isinstance(answer, int):
                actions = self._session.fail(request, answer)
            else:
                actions = self._session.finish(request, *answer)
            self._send(actions.output)
            self._room.notify()
        self._close(actions.gone)


def _take_off(pieces: deque[memoryview], count: int) -> None:
    """Remove the first ``count`` bytes from the pieces."""
    while pieces and count >= len(pieces[0]):
        count -= len(pieces.popleft())
    if count:
        pieces[0] = pieces[0][count:]
