"""The loop that answers a kernel: requests come from a transport, a file system answers them, on several threads."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.bridge.server.request_failures import errno_of_failure
from holdfast.bridge.server.request_threads import (
    AGAIN,
    PATIENCE_SECONDS,
    LapsedError,
    Leader,
    ServingThreads,
    SlowRequests,
)
from holdfast.bridge.server.transport import ClosedTransportError
from holdfast.model.errors import FormatError, HoldfastError, StorageError
from holdfast.model.log import Log
from holdfast.wire.fuse import negotiation, replies
from holdfast.wire.fuse.protocol_constants import UNANSWERED, Opcode
from holdfast.wire.fuse.request_errors import errno_of
from holdfast.wire.fuse.requests import Decoder, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bridge.server.transport import Receiver, Reply, Transport
    from holdfast.wire.fuse.negotiation import Terms, Wishes
    from holdfast.wire.fuse.request_bodies import Body, Header

    Operation = Callable[[Header, Any], Reply]
    """Takes a request and its body, whose kind the opcode tells; returns the reply."""

_LOG = Log(__name__)
THREADS: Final = 4
_SETTLE_SECONDS: Final = 0.0001
_FIRST_FRAME: Final = 1 << 17
_LASTING: Final = frozenset(
    (
        Opcode.FSYNC,
        Opcode.FSYNCDIR,
        Opcode.SYNCFS,
        Opcode.FALLOCATE,
        Opcode.COPY_FILE_RANGE,
        Opcode.COPY_FILE_RANGE_64,
    )
)
"""Requests that usually wait for a disk, or move much data: another thread serves others meanwhile."""


class FuseOperations(Protocol):
    """Answers requests."""

    def wishes(self) -> Wishes:
        """The terms to propose to the kernel."""
        ...

    def operations(self, terms: Terms) -> Mapping[int, Operation]:
        """The operation for each opcode, under the agreed terms; the kernel does without the others (ENOSYS).

        An operation runs on any thread, beside others, and ends by itself. It raises `OSError` to refuse; and, before
        anything has happened, `LaterError`, `HeldError` or `StepEndedError`, to be called again by a thread where no
        other request waits (`holdfast.bridge.server.request_threads`), repeatedly for some seconds: a safeguard that
        was not answered by then denies (EPERM). Any other exception is logged, and is EIO for the calling process: an
        error of the store, or a bug.
        """
        ...


class FuseServer:
    """Serves one kernel until its transport is closed, or `stop`.

    A waiting process always gets an answer: a failure is answered with an error, and when the transport is closed the
    kernel answers the rest. INTERRUPT is refused once, as nothing here waits for long, and does not come again.
    """

    def __init__(
        self,
        transport: Transport,
        served: FuseOperations,
        *,
        threads: int = THREADS,
        alone: bool = True,
        own: ServingThreads | None = None,
        lapsed: Callable[[int], object] = lambda _ticket: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """``transport`` is the server's from now on. ``alone``: one thread answers, and others only while it is
        delayed; else all do. ``own`` is told the threads, ``lapsed`` each ticket that was not answered while its
        operation could be held back, for ``patience`` seconds: the held change must be refused soon.
        """
        self._transport = transport
        self._served = served
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._at_work = [False] * threads
        self._own = own or ServingThreads()
        self._later = SlowRequests(self._own, lapsed, patience=patience)
        self._turns = Leader(alone=alone)
        # (Not `threading.Event`: a signal handler may have to write to it, in any state of its thread.)
        self._gone = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_over = False
        self._stopping = False

    def start(self) -> None:
        """Agree with the kernel, and begin to serve. Raises `UnsupportedError` for a kernel that is too old, and
        `StorageError` if the transport is closed already.
        """
        terms = self._negotiate()
        decoder, operations = Decoder(terms), self._served.operations(terms)
        # Signals are for the threads that wait for them: a signal delivered here would wake none of them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for number in range(self._count):
                thread = threading.Thread(
                    target=self._serve,
                    args=(number, decoder, operations, terms.frame_bytes),
                    name=f"holdfast-fuse-{number}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def fileno(self) -> int:
        """Readable when the transport is closed, or after `end` or `stop`; until `stop`."""
        return self._gone

    def settle(self, timeout: float, waiting: Callable[[], int]) -> bool:
        """Wait, at most ``timeout`` seconds, until all requests up to now are answered, except slow ones; returns
        whether they are. ``waiting`` returns the number of threads that wait for the caller of this.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._transport.is_quiet() and sum(self._at_work) <= waiting():
                return True
            time.sleep(_SETTLE_SECONDS)
        return False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, at most ``timeout`` seconds, until the transport is closed, or until `end` or `stop`; returns whether
        that happened.
        """
        if self._is_over:
            return True
        poll = select.poll()
        poll.register(self._gone, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def end(self) -> None:
        """Have `wait` return. May be called by a signal handler."""
        if not self._is_over:
            os.eventfd_write(self._gone, 1)

    def stop(self, timeout: float = 10.0) -> bool:
        """Stop answering. Returns whether all threads have ended: only then may the base of the transport be closed.

        Harmless a second time.
        """
        if self._is_over:
            return True
        self._stopping = True
        self._later.end()
        self._turns.end()
        self._transport.wake()
        for thread in self._threads:
            thread.join(timeout)
        if not self._later.join(timeout) or any(thread.is_alive() for thread in self._threads):
            _LOG.warning("a request is still being worked on after %g s; it ends with this process", timeout)
            return False
        self._is_over = True
        self._transport.close()
        os.close(self._gone)
        return True

    def _negotiate(self) -> Terms:
        with self._transport.receiver(_FIRST_FRAME) as receiver:
            while (frame := self._receive(receiver)) is not None:
                header = decode_header(frame)
                if header.opcode != Opcode.INIT:
                    raise FormatError(f"INIT: opcode {header.opcode} came before it")
                try:
                    terms = negotiation.negotiate(negotiation.decode_offer(frame), self._served.wishes())
                except HoldfastError as error:
                    self._reply(header, replies.error(header.unique, errno_of(error)))
                    raise
                if terms is not None:
                    self._reply(header, negotiation.encode_terms(header.unique, terms))
                    return terms
                self._reply(header, negotiation.encode_version(header.unique))
        raise StorageError("the mount was gone before it could be served")

    def _serve(self, number: int, decoder: Decoder, operations: Mapping[int, Operation], frame_bytes: int) -> None:
        turns = self._turns
        try:
            with self._own.registered(), self._transport.receiver(frame_bytes) as receiver:
                while turns.wait(number):
                    while turns.leads(number):
                        if (frame := self._receive(receiver, number)) is None:
                            return
                        turns.note_taken(number)
                        self._handle(decoder, operations, frame, number)
                    self._at_work[number] = False
        except Exception:  # noqa: BLE001 - a process that waits for an answer has to get one: the transport is given up
            _LOG.exception("serving a mount has failed; it ends")
        finally:
            self._at_work[number] = False
            turns.end()
            os.eventfd_write(self._gone, 1)

    def _receive(self, receiver: Receiver, number: int | None = None) -> memoryview | None:
        """Wait for the next request for the thread of this number; None if none will come, or the server stops."""
        while not self._stopping:
            if number is None:
                receiver.wait()
            else:
                self._at_work[number] = False
                self._turns.note_waiting(number)
                receiver.wait()
                self._at_work[number] = True
            try:
                frame = receiver.take()
            except ClosedTransportError:
                return None
            if frame is not None:
                return frame
        return None

    def _handle(self, decoder: Decoder, operations: Mapping[int, Operation], frame: memoryview, number: int) -> None:
        header = decode_header(frame)
        operation = operations.get(header.opcode)
        reply: Reply
        try:
            body = decoder.decode(header, frame)
        except FormatError as error:
            reply = replies.error(header.unique, errno_of(error))
        else:
            if header.opcode in _LASTING:
                self._turns.resign(number)
            try:
                reply = _answer(operation, header, body)
            except AGAIN:
                # (The frame will be reused for another request.)
                kept = decoder.decode(header, memoryview(bytes(frame)))
                if self._later.do(lambda: self._answer_later(operation, header, kept)):
                    return
                reply = replies.error(header.unique, errno.ENOSPC)
        self._reply(header, reply if header.opcode not in UNANSWERED or header.opcode == Opcode.INTERRUPT else None)

    def _answer_later(self, operation: Operation | None, header: Header, body: Body) -> None:
        def is_given_up(ticket: int) -> bool:
            return bool(ticket) and self._transport.is_local and _is_killed(header.pid)

        try:
            reply = self._later.ask_again(lambda: _answer(operation, header, body), is_given_up)
        except LapsedError as error:
            reply = replies.error(header.unique, error.errno or errno.EPERM)
        self._reply(header, reply)

    def _reply(self, header: Header, reply: Reply) -> None:
        """Send a reply. No request waits for one that the kernel does not take."""
        try:
            self._transport.reply(header.unique, reply)
        except OSError as error:
            _LOG.error("the kernel has refused a reply: %s", error.strerror, opcode=_name(header))
            try:
                self._transport.reply(header.unique, replies.error(header.unique, errno.EIO))
            except OSError:
                return  # it was taken after all, or no process waits


def _answer(operation: Operation | None, header: Header, body: Body) -> Reply:
    """The answer of an operation, whatever happens; raises only the errors that ask for a retry."""
    if operation is None:
        return replies.error(header.unique, errno.ENOSYS)
    try:
        return operation(header, body)
    except AGAIN:
        raise
    except Exception as error:  # noqa: BLE001 - one request fails, and the mount goes on
        return replies.error(header.unique, errno_of_failure(error, _name(header)))


def _is_killed(thread: int) -> bool:
    """Whether a thread that waits for an answer dies as soon as it has one: the kernel lets none go before."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            pending = next(line for line in file if line.startswith(b"SigPnd:"))
    except (OSError, StopIteration):
        return False  # out of sight
    return bool(int(pending.split()[1], 16) & 1 << (signal.SIGKILL - 1))


def _name(header: Header) -> str:
    try:
        return Opcode(header.opcode).name
    except ValueError:
        return str(header.opcode)
